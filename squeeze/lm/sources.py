"""Where weights come from: GGUF files and folders of safetensors, seen alike.

Tensors are renamed to one set of names, and read as float32 a few rows at a time.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from squeeze.errors import ModelError
from squeeze.lm import config, vocabulary
from squeeze.lm.config import Config
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.mapped import MappedFile

# Our name: (safetensors, GGUF).
OUTER = {
    "embedding": ("model.embed_tokens.weight", "token_embd.weight"),
    "final_norm": ("model.norm.weight", "output_norm.weight"),
    "head": ("lm_head.weight", "output.weight"),
}
INNER = {
    "attention_norm": ("input_layernorm.weight", "attn_norm.weight"),
    "query": ("self_attn.q_proj.weight", "attn_q.weight"),
    "key": ("self_attn.k_proj.weight", "attn_k.weight"),
    "value": ("self_attn.v_proj.weight", "attn_v.weight"),
    "output": ("self_attn.o_proj.weight", "attn_output.weight"),
    "query_bias": ("self_attn.q_proj.bias", "attn_q.bias"),
    "key_bias": ("self_attn.k_proj.bias", "attn_k.bias"),
    "value_bias": ("self_attn.v_proj.bias", "attn_v.bias"),
    "output_bias": ("self_attn.o_proj.bias", "attn_output.bias"),
    "query_norm": ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    "key_norm": ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    "feed_forward_norm": ("post_attention_layernorm.weight", "ffn_norm.weight"),
    "gate": ("mlp.gate_proj.weight", "ffn_gate.weight"),
    "up": ("mlp.up_proj.weight", "ffn_up.weight"),
    "down": ("mlp.down_proj.weight", "ffn_down.weight"),
}
LAYER_PARTS = tuple(INNER)


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]  # float32 rows from start to stop


@dataclass(frozen=True)
class Source:
    """A model as it lies on disk."""

    name: str
    config: Config
    tensors: dict[str, Tensor]  # "embedding", "0.query", ...
    tokenizer: str  # tokenizer.json
    interleaved: bool  # rotary pairs are neighbouring rows of query and key, not half a head apart


def files(path: Path) -> list[Path]:
    """The files that decide a model's weights and tokens."""
    if not path.is_dir():
        return [path]
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise ModelError(f"{path}: not a model folder: it holds no {needed}")
    return [path / "config.json", path / "tokenizer.json", *_shards(path)]


def fingerprint(path: Path, tag: str) -> str:
    """XXH3-128 of everything in the source's files."""
    digest = xxhash.xxh3_128(tag.encode())
    for file in files(path):
        digest.update(f"{file.name if path.is_dir() else ''} {file.stat().st_size} ".encode())
        with file.open("rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def open_source(path: Path) -> Source:
    """Read the description of a model; ModelError where it is not one that we can run."""
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _renamed(name: str, style: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    outer = {names[style]: ours for ours, names in OUTER.items()}
    inner = {names[style]: ours for ours, names in INNER.items()}
    layer = re.compile((r"model\.layers\.(\d+)\.(.*)", r"blk\.(\d+)\.(.*)")[style])
    out = {}
    for key, tensor in tensors.items():
        match = layer.fullmatch(key)
        ours = f"{match[1]}.{inner[match[2]]}" if match and match[2] in inner else outer.get(key)
        if ours is None:
            raise config.unsupported(name, f"a network with a tensor '{key}'")
        out[ours] = tensor
    return out


def _open_folder(path: Path) -> Source:
    name = path.resolve().name
    values = json.loads((path / "config.json").read_bytes())
    if values.get("model_type") not in config.ARCHITECTURES:
        raise config.unsupported(name, f"architecture '{values.get('model_type')}'")
    found = {}
    for shard in _shards(path):
        file = MappedFile(shard)
        for key, tensor in file.tensors.items():
            if not key.endswith("rotary_emb.inv_freq"):
                found[key] = Tensor(tensor.shape, partial(file.float_rows, key))
    tensors = _renamed(name, 0, found)
    if values.get("tie_word_embeddings"):
        tensors.pop("head", None)
    rows = _rows(name, tensors)
    tokenizer = (path / "tokenizer.json").read_text("utf-8")
    return Source(name, config.from_folder(name, values, rows), tensors, tokenizer, interleaved=False)


def _shards(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    if not index.is_file():
        raise ModelError(f"{path}: not a model folder: it holds no model.safetensors")
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    return [path / Path(name).name for name in names]


def _open_gguf(path: Path) -> Source:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file")
    gguf = GgufFile(path)
    fields = gguf.fields
    name = str(fields.get("general.name") or path.stem)
    if int(fields.get("split.count") or 1) > 1:
        raise ModelError(f"{path}: one part of a split model; join its parts with llama-gguf-split --merge first")
    if fields["general.architecture"] not in config.ARCHITECTURES:
        raise config.unsupported(name, f"architecture '{fields['general.architecture']}'")
    found = {key: Tensor(shape, partial(gguf.float_rows, key)) for key, shape in gguf.shapes.items()}
    factors = found.pop("rope_freqs.weight", None)
    divisors = None if factors is None else [float(f) for f in factors.rows(0, factors.shape[0])]
    tensors = _renamed(name, 1, found)
    settings = config.from_gguf(name, fields, _rows(name, tensors), divisors)
    tokenizer = vocabulary.from_gguf(name, fields)
    return Source(name, settings, tensors, tokenizer, config.ARCHITECTURES[settings.architecture].interleaved)


def _rows(name: str, tensors: dict[str, Tensor]) -> int:
    if "embedding" not in tensors:
        raise ModelError(f"{name}: the model has no embedding: its file is damaged")
    return tensors["embedding"].shape[0]
