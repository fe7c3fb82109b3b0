"""Write safetensors files and sharded folders without the code that reads them."""

import json
from pathlib import Path

import numpy as np

from tests.makers.floats import as_bf16, weights


def write(path, tensors, metadata=None, pad=0):
    """Write a safetensors file.

    Args:
        path: new file
        tensors: (dtype, shape, bytes) by name
        metadata: strings by name, None for no metadata
        pad: spaces that pad the header
    """
    entries, at = {}, 0
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(entries).encode() + b" " * pad
    body = b"".join(data for _, _, data in tensors.values())
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)
    return Path(path)


def tensors(seed=1, rows=64, tied=True):
    layer = as_bf16(weights(rows * 256, seed))
    other = layer if tied else as_bf16(weights(rows * 256, seed + 3))
    return {
        "layer.weight": ("BF16", (rows, 256), layer.tobytes()),
        "empty": ("F32", (0, 7), b""),
        "scalar": ("F32", (), np.float32(2.5).tobytes()),
        "half": ("F16", (rows, 100), weights(rows * 100, seed + 1).astype(np.float16).tobytes()),
        "ids": ("I64", (1, 512), np.arange(512).tobytes()),
        "mask": ("BOOL", (300,), bytes(300)),
        "wide": ("F32", (3, 50, 60), weights(9_000, seed + 2).astype(np.float32).tobytes()),
        "tied ö": ("BF16", (rows, 256), other.tobytes()),
        "fp8": ("F8_E4M3", (64, 64), (as_bf16(weights(4_096)) >> 4).astype(np.uint8).tobytes()),
        "noise": ("U8", (999,), np.random.default_rng(0).bytes(999)),
    }


def model_folder(path, seed=1, tied=True):
    """Write a sharded folder as Hugging Face stores it."""
    path = Path(path)
    (path / "sub").mkdir(parents=True)
    all_tensors = tensors(seed, tied=tied)
    order = list(all_tensors)
    shards = {
        "model-00001-of-00002.safetensors": order[:5],
        "model-00002-of-00002.safetensors": order[5:],
    }
    for shard, part in shards.items():
        write(path / shard, {name: all_tensors[name] for name in part}, {"format": "pt"})
    index = {
        "metadata": {"total_size": sum(len(data) for _, _, data in all_tensors.values())},
        "weight_map": {name: shard for shard, part in shards.items() for name in part},
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "llama",   "hidden_size": 64}\n')
    (path / "tokenizer.json").write_text("{}")
    (path / "sub" / "notes.txt").write_bytes(b"\0\1\2")
    return path


def same(one, other):
    return Path(one).read_bytes() == Path(other).read_bytes()


def content(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(Path(root).rglob("*")) if p.is_file()}
