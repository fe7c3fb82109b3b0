"""Folders of LoRA adapters as peft writes them, and checkpoints with an adapter's products added to their weights.

Hu et al. 2021, arXiv 2106.09685: W + s B A with s = alpha / R, or alpha / sqrt(R) (rsLoRA, Kalajdzievski 2023, arXiv
2312.03732). What such a sum does not hold, such as DoRA's magnitudes, is refused.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.checkpoint import Checkpoint, View
from squeeze.checkpoint.renaming import model_modules, transposed
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system.documents import read_object
from squeeze.system.storage import component

__all__ = ["ADAPTER", "CONFIG", "LEAVES", "PREFIX", "LoraFolder"]

ADAPTER, CONFIG = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."  # of all names of an adapter's tensors
LEAVES = ("lora_A.weight", "lora_B.weight")
_REFUSED = {
    "use_dora": "magnitudes (DoRA)",
    "modules_to_save": "whole modules",
    "trainable_token_indices": "tokens",
    "layer_replication": "copies of layers",
    "alora_invocation_tokens": "tokens that invoke it (aLoRA)",
    "use_qalora": "sums of inputs (QA-LoRA)",
}
_CHANGING = ("pissa", "olora", "corda", "loftq", "lora_ga")  # initialisations that change the base's weights, too
_MOST_ALPHA = 1e9  # a product with more is damage, and float32 may not hold it


@dataclass(frozen=True)
class LoraFolder:
    """A folder with an adapter.

    Attributes:
        folder: Its path.
        config: adapter_config.json.
        modules: Factors B [O, R] and A [R, I] of each of the model's modules, with the factor s of their product.
    """

    folder: Path
    config: Mapping[str, Any]
    modules: Mapping[str, tuple[torch.Tensor, torch.Tensor, float]]

    @classmethod
    def open(cls, folder: Path) -> "LoraFolder":
        """Read an adapter. Raises FormatError if it is invalid, or holds more than products of two factors."""
        config = read_object(folder / CONFIG)
        if config.get("peft_type") != "LORA":
            kind = printable(repr(config.get("peft_type")))
            raise FormatError(f"{folder / CONFIG}: expected a peft_type of LORA, got {kind}")
        held = [what for key, what in _REFUSED.items() if config.get(key)]
        if config.get("bias", "none") != "none":
            held.append("biases")
        start = config.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_CHANGING):
            held.append(f"a change of its base ({printable(start)})")
        if held:
            raise FormatError(f"{folder / CONFIG}: the adapter holds {held[0]}, too: merge it with peft")
        try:
            tensors = _tensors(folder / ADAPTER)
        except FormatError as error:
            raise FormatError(f"{folder / ADAPTER}: {error}") from None
        return cls(folder, config, {name: (*pair, _scale(config, name, pair)) for name, pair in tensors.items()})

    @property
    def base_name(self) -> str:
        """The last part of the base's path or hub id; empty if it cannot be the name of a folder."""
        try:
            return component(Path(str(self.config.get("base_model_name_or_path") or "")).name)
        except FormatError:
            return ""

    def merged(self, checkpoint: Checkpoint, model: nn.Module) -> Checkpoint:
        """Return a base with the products added to its weights when they are loaded.

        Args:
            checkpoint: The base, in floats.
            model: Its model, on the meta device.

        Raises:
            SqueezeError: If the base has no such module, or one of another shape.
        """
        stored = [name.removesuffix(".weight") for name in checkpoint.files if name.endswith(".weight")]
        own = {name: source for source, name in model_modules(model, stored).items()}
        turned = transposed(model, stored)
        views: dict[str, View] = {}
        for name, (left, right, scale) in self.modules.items():
            if name not in own:
                raise SqueezeError(f"{self.folder}: the base {checkpoint.folder} has no module {printable(name)}")
            full, turn = f"{own[name]}.weight", own[name] in turned
            info, shape = checkpoint.info(full), (len(left), right.shape[1])
            if tuple(info.shape) != (shape[::-1] if turn else shape):
                raise SqueezeError(
                    f"{self.folder}: {printable(name)} is {list(shape)}, and {list(info.shape)} in {checkpoint.folder}"
                )
            product = _product(checkpoint, full, (right.T, left.T) if turn else (left, right), scale)
            views[full] = View(full, info.dtype, info.shape, product)
        return checkpoint.showing(views)


def _product(
    checkpoint: Checkpoint, name: str, factors: tuple[torch.Tensor, torch.Tensor], scale: float
) -> Callable[[int | None], torch.Tensor]:
    """Return a reader of the sum of a weight and a product, rounded once to the weight's dtype."""

    def read(index: int | None) -> torch.Tensor:
        weight = checkpoint.load([name])[name]
        one, other = (part.float() for part in factors)
        total = torch.addmm(weight.float(), one, other, alpha=scale).to(weight.dtype)
        return total if index is None else total[index]

    return read


def _tensors(path: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the factors B and A of an adapter's modules. Raises FormatError if one is missing or not a matrix."""
    file = tensorfile.read(path)
    tensorfile.check_known(file.tensors)
    names = [tensor.name for tensor in file.tensors]
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for module, pair in _pairs(names).items():
        loaded = tensorfile.load(path, pair, "cpu")
        right, left = (loaded[name] for name in pair)
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0] or not right.numel():
            raise FormatError(f"factors of {printable(module)} are {list(left.shape)} and {list(right.shape)}")
        if not all(part.is_floating_point() and bool(torch.isfinite(part).all()) for part in (left, right)):
            raise FormatError(f"factors of {printable(module)} are not finite floats")
        found[module] = left, right
    return found


def _pairs(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of A and B by module. Raises FormatError for tensors that are neither, or have no partner."""
    known = set(names)
    modules: dict[str, list[str]] = {}
    for name in sorted(known):
        leaf = next((leaf for leaf in LEAVES if name.endswith(f".{leaf}")), None)
        if leaf is None or not name.startswith(PREFIX):
            raise FormatError(f"{printable(repr(name))} is no factor of a linear module: merge the adapter with peft")
        module = name.removesuffix(f".{leaf}").removeprefix(PREFIX)
        modules[module] = [f"{PREFIX}{module}.{leaf}" for leaf in LEAVES]
        if missing := [other for other in modules[module] if other not in known]:
            raise FormatError(f"it lacks {printable(repr(missing[0]))}")
    if not modules:
        raise FormatError("it has no tensors")
    return modules


def _scale(config: Mapping[str, Any], module: str, pair: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Return the factor of a module's product. Raises FormatError if it is not a number."""
    rank = pair[1].shape[0]
    alpha = _of_module(config.get("alpha_pattern"), module, config.get("lora_alpha"))
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not -_MOST_ALPHA < alpha < _MOST_ALPHA:
        raise FormatError(f"{CONFIG}: expected a number below {_MOST_ALPHA:g} as lora_alpha of {printable(module)}")
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _of_module(pattern: Any, module: str, default: Any) -> Any:
    """Return the entry of a pattern by the end of a module's name. Raises FormatError for regular expressions."""
    if not isinstance(pattern, Mapping):
        return default
    for key, value in pattern.items():
        if not all(part.replace("_", "").isalnum() for part in key.split(".")):
            raise FormatError(f"{CONFIG}: {printable(repr(key))} is a regular expression: merge the adapter with peft")
        if module == key or module.endswith(f".{key}"):
            return value
    return default
