"""A GGUF file as tensors and metadata by transformers' names, one tensor in memory at a time.

This is the inverse of export.py, for the architectures that lm/ reads and for mixtures of experts and Gemma.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from squeeze.checkpoint.checkpoint import View
from squeeze.errors import ModelError, printable
from squeeze.integrations.gguf.families import FAMILIES, Family
from squeeze.lm import config, sources
from squeeze.lm.config import ARCHITECTURES

__all__ = ["GgufModel"]

_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
READ = {  # by GGUF's general.architecture
    **ARCHITECTURES,
    "llama": replace(ARCHITECTURES["llama"], handled_keys=("expert_count",)),
    "qwen3moe": config.Family(32768, head_size=128, handled_keys=("expert_count",)),
    "gemma": config.Family(8192, head_size=256),
    "gemma2": config.Family(8192, head_size=256, handled_keys=_CAPS),
    "gemma3": config.Family(131072, head_size=256, handled_keys=(*_CAPS, "attention.sliding_window_pattern")),
}
_GATED = ("gate", "up", "down")
_MLP_BIASES = {f"{part}_bias": (f"mlp.{part}_proj.bias", f"ffn_{part}.bias") for part in _GATED}
_MORE_NORMS = {
    "attention_norm_after": ("post_attention_layernorm.weight", "post_attention_norm.weight"),
    "feed_forward_norm": ("pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    "feed_forward_norm_after": ("post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
}


def _experts(router: str, expert: str, *leaves: str) -> dict[str, tuple[str, str]]:
    """Return the parts of a layer with experts; `expert` has a place for the expert's number."""
    parts = {part: names for part, names in sources.INNER.items() if part not in _GATED}
    parts["router"] = f"{router}.weight", "ffn_gate_inp.weight"
    for part, leaf in zip(_GATED, leaves, strict=True):
        parts[f"expert_{part}"] = f"{expert}.{leaf}.weight", f"ffn_{part}_exps.weight"
    return parts


_PARTS = {  # of a layer, by model_type, where it has others than lm/ knows: (checkpoint, GGUF)
    "llama": sources.INNER | _MLP_BIASES,
    "mixtral": _experts("block_sparse_moe.gate", "block_sparse_moe.experts.{}", "w1", "w3", "w2"),
    "qwen3_moe": _experts("mlp.gate", "mlp.experts.{}", "gate_proj", "up_proj", "down_proj"),
    "gemma2": sources.INNER | _MORE_NORMS,
    "gemma3_text": sources.INNER | _MORE_NORMS,
}


@dataclass(frozen=True)
class GgufModel:
    """An open GGUF file.

    `kind` is the model_type of config.json. `source` is the file as lm/ reads it, with lm's own names of tensors.
    `fields` is the metadata.
    """

    path: Path
    kind: str
    source: sources.Source
    fields: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> "GgufModel":
        """Open a GGUF file.

        Raises ModelError if it is not a GGUF file, is damaged, or holds an architecture that is not in READ.
        """
        with sources.damage_as_model_error(path):
            file = sources.gguf_file(path)
            kind = _kind(file.fields)
            source = sources.gguf_source(path, file, _PARTS.get(kind, sources.INNER), READ)
            model = cls(path, kind, source, file.fields)
            sources.check_complete(source, model._shapes())
        return model

    @property
    def family(self) -> Family:
        return FAMILIES[self.kind]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value of this architecture, or the default."""
        return self.fields.get(f"{self.source.config.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a positive size from the metadata; raises ModelError if it is not one."""
        value = self.get(key, default)
        if type(value) is not int or not 0 < value < 1 << 31:
            raise ModelError(
                f"{self.source.name}: the model's description is damaged: {key} is {printable(repr(value))}"
            )
        return value

    @property
    def expert_width(self) -> int:
        return self.whole("expert_feed_forward_length", self.source.config.feed_forward)

    def views(self) -> dict[str, View]:
        """Return a view of every tensor in float32, by its name in a checkpoint. Reading a damaged one raises
        ModelError.
        """
        parts, views = _PARTS.get(self.kind, sources.INNER), {}
        for key, tensor in self.source.tensors.items():
            layer, _, part = key.partition(".")
            name = f"model.layers.{layer}.{parts[part][0]}" if part else sources.OUTER[key][0]
            experts: Iterator[int | None] = iter(range(tensor.shape[0])) if "{}" in name else iter([None])
            shape = tensor.shape[1:] if "{}" in name else tensor.shape
            for expert in experts:
                views[name.format(expert)] = self._view(name.format(expert), key, shape, expert)
        return views

    def _view(self, name: str, key: str, shape: tuple[int, ...], expert: int | None) -> View:
        def read(index: int | None) -> torch.Tensor:
            values = self._values(key, shape, expert)
            return torch.from_numpy(values if index is None else values[index])

        return View(name, "F32", shape, read)

    def _values(self, key: str, shape: tuple[int, ...], expert: int | None) -> np.ndarray:
        """Read a tensor or one expert of it, float32 of the given shape."""
        tensor, part = self.source.tensors[key], key.rpartition(".")[2]
        with sources.damage_as_model_error(self.path):
            start, stop = (0, shape[0]) if expert is None else (expert, expert + 1)
            values = tensor.rows(start, stop)
        values = values if expert is None else values[0]
        if values.shape != shape or not np.isfinite(values).all():
            raise ModelError(f"{self.source.name}: the model is damaged: tensor {key} is cut off or not finite")
        if self.family.shifted and "norm" in part:
            return values - np.float32(1)
        return self._straight(part, values)

    def _straight(self, part: str, values: np.ndarray) -> np.ndarray:
        """Reorder rows of queries and keys so that rotary pairs are half a head apart."""
        leaf = part.removesuffix("_bias")
        if not self.source.interleaved or leaf not in ("query", "key"):
            return values
        heads = self.source.config.heads if leaf == "query" else self.source.config.kv_heads
        pairs = values.reshape(heads, -1, 2, *values.shape[1:])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors that a layer can have."""
        shapes, width = sources.shapes_of(self.source.config), self.source.config.width
        if self.kind in ("gemma2", "gemma3_text"):
            return shapes | dict.fromkeys(_MORE_NORMS, (width,))
        if self.kind == "llama":
            return shapes | {f"{part}_bias": shapes[part][:1] for part in _GATED}
        if not self.family.experts:
            return shapes
        count, hidden = self.whole("expert_count"), self.expert_width
        shapes = {part: shape for part, shape in shapes.items() if part not in _GATED}
        into = dict.fromkeys(("expert_gate", "expert_up"), (count, hidden, width))
        return shapes | into | {"router": (count, width), "expert_down": (count, width, hidden)}


def _kind(fields: Mapping[str, Any]) -> str:
    """Return the model_type of the metadata, or the architecture's name if it is not in FAMILIES."""
    import gguf

    architecture = fields.get("general.architecture")
    experts = bool(fields.get(f"{architecture}.expert_count"))
    kinds = [
        kind
        for kind, family in FAMILIES.items()
        if gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[family.name]] == architecture and family.experts == experts
    ]
    if fields.get(f"{architecture}.attention.sliding_window"):
        kinds.sort(key=lambda kind: not FAMILIES[kind].windowed)
    return kinds[0] if kinds else str(architecture)
