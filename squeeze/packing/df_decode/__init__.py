"""Decoding coded tensors (tensors/floats.py, fixed.py) where they lie: numba on the CPU, Triton on a GPU.

`prepare` parses a payload once and keeps its parts on their device; `decode`
turns it, or some of its segments, into values. reference.py defines the
result; kernel.py equals it. Triton is imported only when a kernel is run.
"""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch

from squeeze.packing.df_decode import reference
from squeeze.packing.df_decode.cpu import DTYPES, Tiles
from squeeze.packing.tensors import fixed, floats
from squeeze.packing.tensors.float_payload import Coded, Plane, parse

# torch's dtype of each safetensors dtype that it has. An element of torch's F4 is two numbers.
TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}
_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class DevicePlane:
    """A plane's parts on a device: see float_payload.Plane. Unsigned numbers stand in signed types of their width."""

    width: int
    raw_bits: int
    precision: int
    constant: int
    table: torch.Tensor  # uint8 [tables, 2^precision]: the symbol of a slot
    entries: torch.Tensor  # int64 [tables, 256], of a symbol: its frequency, start and prefix, after 16 bits each
    ids: torch.Tensor  # uint8 [segments]
    starts: torch.Tensor  # int64 [segments + 1]
    states: torch.Tensor  # int32 [segments, lanes]
    words: torch.Tensor  # int16, and what follows them in the payload
    raw: torch.Tensor  # int32 packed raw bits, or the values themselves where raw_bits is width


@dataclass(frozen=True)
class Prepared:
    """A parsed payload: its planes on a device, or, on the CPU, where they lie in it."""

    dtype: str
    size: int  # bytes decoded
    payload: torch.Tensor  # uint8
    count: int
    bits: int
    rotated: bool
    lanes: int
    rows: int
    planes: tuple[DevicePlane, ...]
    coded: Coded | fixed.Coded | None  # where the CPU decodes it

    @property
    def per_segment(self) -> int:
        return self.lanes * self.rows

    @property
    def segments(self) -> int:
        return -(-self.count // self.per_segment)

    @cached_property
    def tiles(self) -> Tiles | None:
        """For torch's threads; None elsewhere than on the CPU, and for other types than those of weights."""
        if not self.coded or self.payload.device.type != "cpu" or self.dtype not in DTYPES:
            return None
        return Tiles(self.coded, self.dtype)

    @property
    def together(self) -> int:
        """Segments that are best decoded together, from a multiple of so many on."""
        return self.tiles.segments if self.tiles else 1


def prepare(payload: torch.Tensor, dtype: str, size: int, is_fixed: bool = False) -> Prepared:
    """Parse a payload (uint8) of a tensor of `size` bytes; `is_fixed`: in codes of fixed length, which a GPU does not
    decode. Raises DamagedError.

    Before a GPU decodes a kind of planes, it is asked for a piece of the first tensor that has them: where it is not
    what the CPU makes of it, the CPU decodes all such tensors, and a warning says so.
    """
    if is_fixed:
        found = fixed.parse(payload.cpu().numpy(), dtype, size)
        return Prepared(dtype, size, payload, found.count, found.bits, True, found.lanes, found.rows, (), found)
    coded = parse(payload.cpu().numpy(), dtype, size)
    on_cpu = payload.device.type == "cpu"
    planes = () if on_cpu else device_planes(coded, payload)
    parts = (coded.count, coded.bits, coded.rotated, coded.lanes, coded.rows)
    by_cpu = Prepared(dtype, size, payload, *parts, (), coded)
    by_gpu = Prepared(dtype, size, payload, *parts, planes, None)
    return by_gpu if not on_cpu and _is_right(by_gpu, by_cpu) else by_cpu


_known: dict[tuple[object, ...], bool] = {}  # whether a device decodes a kind of planes as the CPU does


def _is_right(by_gpu: Prepared, by_cpu: Prepared) -> bool:
    """Of the first and the last segment."""
    device, planes = by_gpu.payload.device, by_gpu.planes
    of_planes = tuple((plane.width, plane.precision, plane.raw_bits) for plane in planes)
    kind = device, by_gpu.bits, by_gpu.rotated, by_gpu.lanes, of_planes
    if not by_gpu.count:
        return True
    if kind not in _known:
        segments = sorted({0, by_gpu.segments - 1})
        present = by_gpu.count - (by_gpu.segments - len(segments)) * by_gpu.per_segment
        found, wanted = (decode_segments(one, segments).view(-1)[:present] for one in (by_gpu, by_cpu))
        _known[kind] = torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
        if not _known[kind]:
            warnings.warn(f"{device} decodes {by_gpu.dtype} wrongly, so the CPU does it, slowly", stacklevel=2)
    return _known[kind]


def _tables(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """Table and entries of a DevicePlane. They are in two, and a slot is a byte, so that all that a GPU's processor
    decodes from at once stays in its cache."""
    frequencies, symbols = plane.frequencies, np.arange(len(plane.prefixes))
    starts = np.cumsum(frequencies, axis=1) - frequencies
    entries = np.zeros((len(frequencies), 256), np.int64)
    entries[:, : symbols.size] = frequencies | starts << 16 | plane.prefixes << 32
    return np.array([np.repeat(symbols, row) for row in frequencies]).astype(np.uint8), entries


def device_planes(coded: Coded, payload: torch.Tensor) -> tuple[DevicePlane, ...]:
    """The planes of a payload as kernels and reference take them: views of it, with tables of their own."""
    if payload.data_ptr() % 8:
        payload = payload.clone()
    return tuple(_device_plane(coded, plane, payload) for plane in coded.planes)


def _device_plane(coded: Coded, plane: Plane, payload: torch.Tensor) -> DevicePlane:
    def there(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        begin = array.ctypes.data - coded.payload.ctypes.data
        if not 0 <= begin < coded.payload.size:  # made by the parser, as where all segments have one table
            return torch.from_numpy(array.copy()).view(dtype).to(payload.device)
        return payload[begin : begin + array.nbytes].view(dtype).view(array.shape)

    table, entries = (torch.from_numpy(array).to(payload.device) for array in _tables(plane))
    return DevicePlane(
        *(plane.width, plane.raw_bits, plane.precision, plane.constant),
        table=table,
        entries=entries,
        ids=there(plane.ids, torch.uint8),
        starts=torch.from_numpy(plane.starts).to(payload.device),
        states=there(plane.states, torch.int32),
        words=there(plane.words, torch.int16),
        raw=there(plane.raw, _WORDS[plane.width] if plane.raw_bits == plane.width else torch.int32),
    )


def decode(prepared: Prepared, out: torch.Tensor | None = None, threads: int = 1) -> torch.Tensor:
    """All values, as a flat tensor of the payload's dtype, into the bytes of `out` (contiguous) if given.

    Raises DamagedError where a segment does not decode, on the CPU; a GPU is not asked.
    """
    dtype = TORCH_DTYPES[prepared.dtype]
    if out is None:
        out = torch.empty(prepared.size // dtype.itemsize, dtype=dtype, device=prepared.payload.device)
    flat = out.view(-1).view(torch.uint8)
    if prepared.coded:
        values = flat.numpy() if flat.device.type == "cpu" else np.empty(prepared.size, np.uint8)
        _decode_run(prepared, 0, prepared.segments, values.view(f"u{prepared.bits // 8}"), threads)
        if flat.device.type != "cpu":
            flat.copy_(torch.from_numpy(values))
    else:
        segments = torch.arange(prepared.segments, device=flat.device)
        decode_planes(prepared, segments, flat.view(_WORDS[prepared.bits]))
    return out.view(-1).view(dtype)


def decode_segments(
    prepared: Prepared, segments: list[int], out: torch.Tensor | None = None, threads: int = 1
) -> torch.Tensor:
    """The values of some segments, [segments, per_segment], those after the end of the tensor undefined.

    out: uint8 memory of as many values.
    """
    device, words = prepared.payload.device, _WORDS[prepared.bits]
    if out is None:
        out = torch.empty(len(segments) * prepared.per_segment * prepared.bits // 8, dtype=torch.uint8, device=device)
    values = out.view(words).view(len(segments), prepared.per_segment)
    if prepared.coded:
        here = values if device.type == "cpu" else torch.empty_like(values, device="cpu")
        _decode_on_cpu(prepared, segments, here.view(-1).numpy().view(f"u{prepared.bits // 8}"), threads)
        if here is not values:
            values.copy_(here)
    else:
        decode_planes(prepared, torch.tensor(segments, device=device), values.view(-1), packed=True)
    return values.view(TORCH_DTYPES[prepared.dtype])


def _decode_run(prepared: Prepared, first: int, last: int, out: np.ndarray, threads: int) -> None:
    coded, tiles = prepared.coded, prepared.tiles
    whole = first % prepared.together == 0 and (last % prepared.together == 0 or last == prepared.segments)
    if tiles and whole:
        tiles.decode(first // prepared.together, -(-last // prepared.together), out, threads)
    elif isinstance(coded, fixed.Coded):
        fixed.decode_segments(coded, first, last, out, threads)
    elif coded:
        floats.decode_segments(coded, first, last, out, threads)


def _decode_on_cpu(prepared: Prepared, segments: list[int], out: np.ndarray, threads: int) -> None:
    """Runs of segments that follow each other go through together."""
    breaks = [0, *(k for k in range(1, len(segments)) if segments[k] != segments[k - 1] + 1), len(segments)]
    size = prepared.per_segment
    for begin, end in pairwise(breaks):
        first, last = segments[begin], segments[end - 1] + 1
        present = min(last * size, prepared.count) - first * size
        _decode_run(prepared, first, last, out[begin * size : begin * size + present], threads)


def decode_planes(prepared: Prepared, segments: torch.Tensor, out: torch.Tensor, packed: bool = False) -> None:
    """Decode `segments` (int64) on their device into `out`, at their places or, `packed`, one after the other."""
    if len(prepared.planes) == 1:
        plane = prepared.planes[0]
        _backend(out.device.type).decode_plane(prepared, plane, segments, out, prepared.rotated, packed)
        return
    value: torch.Tensor | None = None
    for plane in prepared.planes:
        decoded = torch.empty(out.numel(), dtype=_WORDS[plane.width], device=out.device)
        _backend(out.device.type).decode_plane(prepared, plane, segments, decoded, False, packed)
        wide = decoded.to(torch.int64) & ((1 << plane.width) - 1)
        value = wide if value is None else value << plane.width | wide
    assert value is not None
    out.copy_(reference.rotate_right(value, prepared.bits) if prepared.rotated else value)


@cache
def _backend(device: str) -> ModuleType:
    if device == "cpu":
        return reference
    from squeeze.packing.df_decode import kernel

    return kernel
