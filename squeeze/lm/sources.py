"""Models on disk, GGUF files and Hugging Face folders, behind one interface.

Tensors are renamed to one set of names, and read as float32 a few rows at a time.
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from squeeze.checkpoint.config_json import check_layers, read_config
from squeeze.checkpoint.weight_files import INDEX, own_files, weight_files, why_missing
from squeeze.errors import FormatError, ModelError, printable
from squeeze.lm import config, vocabulary
from squeeze.lm.config import ARCHITECTURES, Config, Family
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.tensor_files import Shard
from squeeze.system.documents import parse_object

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
_ROWS = 4096  # rows of a tensor that are compared at once
# Errors of reading a damaged file, besides ModelError; gguf raises NotImplementedError for unknown types.
READ_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    struct.error,
)


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    rows: Callable[[int, int], np.ndarray]  # float32 rows from start to stop


@dataclass(frozen=True)
class Source:
    """A model on disk."""

    name: str
    config: Config
    tensors: dict[str, Tensor]  # "embedding", "0.query", ...
    tokenizer: str  # tokenizer.json
    interleaved: bool  # rotary pairs are adjacent rows of query and key, not half a head apart


def files(path: Path) -> list[Path]:
    """Return the files that decide a model's weights and tokens."""
    if not path.is_dir():
        return [path]
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise ModelError(f"{path}: not a model folder: {why_missing(path, needed)}")
    return [path / "config.json", path / "tokenizer.json", *weight_files(path)]


def fingerprint(path: Path, tag: str) -> str:
    """Return the XXH3-128 of a tag and of the source's files."""
    digest = xxhash.xxh3_128(tag.encode())
    for file in files(path):
        digest.update(f"{file.name if path.is_dir() else ''} {file.stat().st_size} ".encode())
        with file.open("rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


@contextmanager
def damage_as_model_error(path: Path) -> Iterator[None]:
    """Turn the errors of reading a damaged model into a ModelError of one line."""
    try:
        yield
    except FormatError as error:
        raise ModelError(str(error)) from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except KeyError as error:
        raise ModelError(f"{path}: the model is damaged or incomplete: it has no {printable(error.args[0])}") from error
    except READ_ERRORS as error:
        raise ModelError(f"{path}: the model is damaged or incomplete: {printable(error)}") from error


def open_source(path: Path) -> Source:
    """Read the description of a model.

    Raises:
        ModelError: if it is not one that the exact engine runs.
    """
    return _open_folder(path) if path.is_dir() else gguf_source(path, gguf_file(path))


def _renamed(
    name: str,
    style: int,
    tensors: dict[str, Tensor],
    parts: Mapping[str, tuple[str, str]] = INNER,
    families: Mapping[str, Family] = ARCHITECTURES,
) -> dict[str, Tensor]:
    outer = {names[style]: ours for ours, names in OUTER.items()}
    inner = {names[style]: ours for ours, names in parts.items()}
    layer = re.compile((r"model\.layers\.(0|[1-9]\d{0,4})\.(.*)", r"blk\.(0|[1-9]\d{0,4})\.(.*)")[style], re.ASCII)
    out = {}
    for key, tensor in tensors.items():
        match = layer.fullmatch(key)
        ours = f"{match[1]}.{inner[match[2]]}" if match and match[2] in inner else outer.get(key)
        if ours is None:
            raise config.unsupported(name, f"a network with a tensor '{printable(key)}'", families)
        if not tensor.shape or 0 in tensor.shape:
            raise ModelError(f"{name}: the model is damaged: tensor {printable(key)} has no elements")
        out[ours] = tensor
    return out


def _open_folder(path: Path) -> Source:
    name = printable(path.resolve().name)
    values = read_config(path)
    config.check_architecture(name, values.get("model_type"))
    shards, index = {shard: Shard(shard) for shard in weight_files(path)}, path / INDEX
    own = own_files({shard: file.shapes for shard, file in shards.items()}, [index] if index.is_file() else ())
    by_key = {
        key: Tensor(shards[shard].shapes[key], partial(shards[shard].float_rows, key))
        for key, shard in own.items()
        if not key.endswith("rotary_emb.inv_freq")
    }
    check_layers(values, len(by_key))
    tensors = _renamed(name, 0, by_key)
    if values.get("tie_word_embeddings") and "head" in tensors and _equal(tensors["head"], tensors.get("embedding")):
        del tensors["head"]
    rows = _rows(name, tensors)
    tokenizer = (path / "tokenizer.json").read_text("utf-8")
    parse_object(tokenizer)
    return Source(name, config.from_folder(name, values, rows), tensors, tokenizer, interleaved=False)


def _equal(one: Tensor, other: Tensor | None) -> bool:
    """Return whether two tensors have the same values."""
    if other is None or one.shape != other.shape:
        return False
    starts = range(0, one.shape[0], _ROWS)
    return all(np.array_equal(one.rows(i, i + _ROWS), other.rows(i, i + _ROWS)) for i in starts)


def gguf_file(path: Path) -> GgufFile:
    """Open a GGUF file.

    Raises:
        ModelError: if it is another file; damage raises READ_ERRORS.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file")
    return GgufFile(path)


def gguf_source(
    path: Path,
    file: GgufFile,
    parts: Mapping[str, tuple[str, str]] = INNER,
    families: Mapping[str, Family] = ARCHITECTURES,
) -> Source:
    """Return the model in a GGUF file.

    Args:
        path: of the file.
        file: the open file.
        parts: names of a layer's tensors, as in INNER.
        families: architectures that are supported.

    Raises:
        ModelError: if the network is not supported.
    """
    fields = file.fields
    name = printable(fields.get("general.name") or path.stem)
    if fields.get("split.count", 1) not in (0, 1):
        raise ModelError(f"{path}: this is one part of a split model: join the parts with llama-gguf-split --merge")
    config.check_architecture(name, fields.get("general.architecture"), families)
    by_key = {key: Tensor(shape, partial(file.float_rows, key)) for key, shape in file.shapes.items()}
    factors = by_key.pop("rope_freqs.weight", None)
    divisors = None if factors is None else [float(f) for f in factors.rows(0, factors.shape[0])]
    tensors = _renamed(name, 1, by_key, parts, families)
    settings = config.from_gguf(name, fields, _rows(name, tensors), divisors, families)
    tokenizer = vocabulary.from_gguf(name, fields)
    return Source(name, settings, tensors, tokenizer, families[settings.architecture].interleaved)


def check_complete(source: Source, parts: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Check that all tensors are there, with the shapes of the description.

    Args:
        source: the model.
        parts: shapes of a layer's tensors; None: those of `shapes_of`.

    Raises:
        ModelError: if a tensor is missing, unknown, or has another shape.
    """
    settings, tensors = source.config, source.tensors
    if settings.layers > len(tensors):
        raise ModelError(f"{source.name}: it is described as {settings.layers} layers, and has {len(tensors)} tensors")
    shapes = _all_shapes(settings, shapes_of(settings) if parts is None else parts)
    for name, tensor in tensors.items():
        if name not in shapes:
            raise ModelError(f"{source.name}: the model has a tensor '{name}' that its description does not explain")
        if tensor.shape != shapes[name]:
            raise ModelError(
                f"{source.name}: the model is damaged: tensor {name} has shape {list(tensor.shape)}, "
                f"and its description says {list(shapes[name])}"
            )
    needed = {name for name in shapes if name != "head" and name.partition(".")[2] not in _OPTIONAL}
    if missing := needed - tensors.keys():
        raise ModelError(f"{source.name}: the model is damaged or incomplete: it has no tensor {min(missing)}")


_OPTIONAL = (
    *("query_bias", "key_bias", "value_bias", "output_bias", "query_norm", "key_norm"),
    *("gate_bias", "up_bias", "down_bias"),
)


def shapes_of(settings: Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that a layer can have."""
    queries, keys = settings.heads * settings.head_size, settings.kv_heads * settings.head_size
    return {
        **dict.fromkeys(("attention_norm", "feed_forward_norm", "output_bias"), (settings.width,)),
        **dict.fromkeys(("query_norm", "key_norm"), (settings.head_size,)),
        **dict.fromkeys(("key", "value"), (keys, settings.width)),
        **dict.fromkeys(("key_bias", "value_bias"), (keys,)),
        **dict.fromkeys(("gate", "up"), (settings.feed_forward, settings.width)),
        **{"query": (queries, settings.width), "query_bias": (queries,), "output": (settings.width, queries)},
        "down": (settings.width, settings.feed_forward),
    }


def _all_shapes(settings: Config, parts: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    outer = {
        **dict.fromkeys(("embedding", "head"), (settings.vocabulary, settings.width)),
        "final_norm": (settings.width,),
    }
    return outer | {f"{i}.{part}": shape for i in range(settings.layers) for part, shape in parts.items()}


def _rows(name: str, tensors: dict[str, Tensor]) -> int:
    if "embedding" not in tensors:
        raise ModelError(f"{name}: the model has no embedding: its file is damaged")
    return tensors["embedding"].shape[0]
