"""Calls of all kernels of packed checkpoints: each coding of each type, at all levels, in memory and in parts."""

from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np

import squeeze
from squeeze.packing.codings import LEVELS
from squeeze.packing.store import Store
from squeeze.packing.tensors.grid_levels import FP4, TABLES
from tests.golden.checkpoint import golden_checkpoint
from tests.makers.checkpoints import same, write
from tests.makers.floats import as_bf16, blocks, bytes_of, weights

_WIDTHS = (2, 3, 4, 5, 6, 7, 8)  # bits of codes in words
_LARGE = 9 << 20  # values
_BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")


def run() -> None:
    """Pack and restore checkpoints of many kinds."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        _golden(folder)
        for pad in (0, 1):  # values at odd addresses of the file, or at even ones
            path = write(folder / f"types.{pad}.safetensors", _tensors(), pad=pad)
            for level in LEVELS:
                for threads in (1,) if level == "archive" else (1, 2):
                    _round_trip(path, folder, level, threads)
        large, step = (write(folder / f"large.{steps}.safetensors", _large(steps)) for steps in (0, 1))
        for level in ("fast", "runtime"):
            _round_trip(large, folder, level, 2)
        _round_trip(step, folder, "runtime", 2, large)
        for level in ("runtime", "archive"):
            _round_trip(_blocks(folder / "model.gguf"), folder, level, 1)
        _stored(folder)


def _golden(folder: Path) -> None:
    source, base = folder / "source.safetensors", folder / "base.safetensors"
    base.write_bytes(golden_checkpoint())
    for steps, zeros in ((0, False), (0, True), (3, False)):
        source.write_bytes(golden_checkpoint(steps=steps, zeros=zeros))
        for level in LEVELS:
            _round_trip(source, folder, level, 1, base if steps else None)


def _round_trip(source: Path, folder: Path, level: str, threads: int, base: Path | None = None) -> None:
    packed, restored = folder / f"packed{source.suffix}", folder / f"restored{source.suffix}"
    squeeze.pack(source, packed, level=level, threads=threads, base=base, overwrite=True)
    squeeze.verify(packed, base=base, threads=threads)
    squeeze.unpack(packed, restored, threads=threads, base=base, overwrite=True)
    if not same(restored, source):
        raise AssertionError(f"{source.name} does not unpack to what was packed at level {level}")
    if source.suffix == ".safetensors" and base is None:
        _read(packed)


def _read(packed: Path) -> None:
    """Read tensors and rows of a packed file."""
    with squeeze.safe_open(packed, framework="np") as opened:
        for name in list(opened.keys()):
            part = opened.get_slice(name)
            if part.get_dtype() in ("F32", "F16", "I32", "U8") and part.get_shape():
                opened.get_tensor(name)
                part[1:2]


def _tensors() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    values, count = weights(64 * 256), 64 * 256
    chance = np.random.default_rng(1)
    kinds = {"BF16": as_bf16, "F16": lambda x: x.astype(np.float16), "F32": lambda x: x.astype(np.float32)}
    found = {}
    for dtype, convert in kinds.items():
        made = {
            "plain": values,
            "vector": values[:700],
            "zeros": np.where(np.arange(count) % 3, values, 0),
            "whole": _whole(values),
            "zero points": _offsets(values),
            "levels": _nearest(values, np.concatenate((-TABLES[FP4, 1, :8], TABLES[FP4, 0, :8]))),
            "whole, no -0": _whole(values) + 0.0,
            "one scale": np.round(values * 500) / 512,
            "palette": values[:40][np.arange(count) * 7919 % 40],
        }
        for name, row in made.items():
            shape = (64, 256) if row.size == count else (row.size,)
            found[f"{dtype} {name}"] = dtype, shape, bytes_of(convert(row)).tobytes()
    for dtype in ("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"):
        eights = as_bf16(values) >> 4 if dtype.startswith("F8") else (values * 300).astype(np.int8) & 1
        found[dtype] = dtype, (64, 256), eights.astype(np.uint8).tobytes()
    for dtype, kind in {"I16": np.int16, "U16": np.uint16, "I64": np.int64, "F64": np.float64}.items():
        found[dtype] = dtype, (64, 256), (values * 300).astype(kind).tobytes()
    for width in _WIDTHS:
        codes = np.clip(chance.normal(1 << width - 1, (1 << width) / 10, 32 * 9_450 // width), 0, (1 << width) - 1)
        bits = codes.astype(np.uint8)[:, None] >> np.arange(width) & 1
        words = np.packbits(bits.astype(np.uint8).reshape(-1), bitorder="little")
        found[f"words {width}"] = "I32", (90, 105), words.tobytes()
    shared = found["BF16 plain"][2]
    twice = as_bf16(weights(1 << 16, 5)).tobytes()
    found |= {"again": ("BF16", (64, 256), shared), "twice": ("BF16", (256, 256), twice)}
    found["half"] = "BF16", (384, 256), twice[1 << 16 :] + as_bf16(weights(1 << 16, 6)).tobytes()
    return found


def _whole(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, 64)
    scale = (np.abs(rows).max(1, keepdims=True) / 7).astype(np.float32)
    return (np.round(rows / scale).astype(np.float32) * scale).reshape(-1)


def _offsets(values: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, 32).astype(np.float32)
    least = rows.min(1, keepdims=True)
    scale = (rows.max(1, keepdims=True) - least) / np.float32(15)
    codes = np.clip(np.floor((rows - least) / scale + np.float32(0.5)), 0, 15).astype(np.float32)
    half = np.float16
    return (codes * scale.astype(half).astype(np.float32) + least.astype(half).astype(np.float32)).reshape(-1)


def _nearest(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    rows = values.reshape(-1, 16).astype(np.float32)
    scale = np.abs(rows).max(1, keepdims=True) / levels.max()
    return (levels[np.abs(rows[..., None] / scale[..., None] - levels).argmin(-1)] * scale).reshape(-1)


def _large(steps: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return tensors that are read in parts. steps: what is added to each third value, in units of the last place."""
    values = weights(_LARGE)
    values[_LARGE // 2 :] = np.abs(values[_LARGE // 2 :]) * 1e3  # which other tables code shorter
    zeros = np.where(np.arange(_LARGE) % 3, values, 0)
    words = {"BF16": as_bf16(values), "F16": values.astype(np.float16).view(np.uint16)}
    thirds = np.arange(_LARGE) % 3 == 0
    made = {dtype: (row + steps * thirds).astype(np.uint16) for dtype, row in words.items()}
    shape = _LARGE >> 8, 256
    found = {dtype: (dtype, shape, row.tobytes()) for dtype, row in made.items()}
    whole = bytes_of(_whole(values[: _LARGE // 2]).astype(np.float32)).tobytes()
    return found | {"zeros": ("BF16", shape, as_bf16(zeros).tobytes()), "whole": ("F32", (_LARGE >> 9, 256), whole)}


def _blocks(path: Path) -> Path:
    """Write a GGUF file with block types."""
    writer = gguf.GGUFWriter(path, "llama")
    for name in _BLOCKS:
        writer.add_tensor(name, blocks(name, 256).reshape(64, -1), raw_dtype=gguf.GGMLQuantizationType[name])
    quantised = gguf.quantize(weights(64 * 256).astype(np.float32).reshape(64, 256), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("peaks", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("plain", weights(64 * 256).astype(np.float32).reshape(64, 256))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stored(folder: Path) -> None:
    """Add checkpoints to a store, of which one is a difference, and get them back."""
    store = Store(folder / "store")
    for steps in (0, 3):
        (folder / f"model{steps}").mkdir()
        (folder / f"model{steps}" / "model.safetensors").write_bytes(golden_checkpoint(steps=steps))
        store.add(folder / f"model{steps}")
        store.get(f"model{steps}", folder / f"back{steps}")
