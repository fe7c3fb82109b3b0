"""Decoding of packed tensors (tensors/floats.py, fixed.py) on their device: numba on the CPU, Triton on a GPU.

`prepare` parses a payload once and keeps its parts on their device; `decode` turns it, or some of its segments, into
values. reference.py defines the result; kernel.py computes the same. Triton is imported only when a kernel runs.
"""

import warnings
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.packing.device_decode import reference
from squeeze.packing.device_decode.cpu import DTYPES, Tiles
from squeeze.packing.tensors import fixed, floats
from squeeze.packing.tensors.float_payload import Coded, Plane, parse

_WORDS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


@dataclass(frozen=True)
class DevicePlane:
    """The parts of a plane on a device, see float_payload.Plane. Signed types hold unsigned numbers of their width."""

    width: int
    raw_bits: int
    precision: int
    constant: int
    table: torch.Tensor  # uint8 [tables, 2^precision]: the symbol of each slot
    entries: torch.Tensor  # int64 [tables, 256], for each symbol: frequency, start << 16, prefix << 32
    ids: torch.Tensor  # uint8 [segments]
    starts: torch.Tensor  # int64 [segments + 1]
    states: torch.Tensor  # int32 [segments, lanes]
    words: torch.Tensor  # int16, up to the end of the payload
    raw: torch.Tensor  # int32 packed raw bits, or the values themselves if raw_bits is width


@dataclass(frozen=True)
class Prepared:
    """A parsed payload. On a GPU it has planes; for the CPU it has `coded`, with places in the payload."""

    dtype: str
    size: int  # bytes decoded
    payload: torch.Tensor  # uint8
    count: int
    bits: int
    rotated: bool
    lanes: int
    rows: int
    planes: tuple[DevicePlane, ...]
    coded: Coded | fixed.Coded | None  # if the CPU decodes it

    @property
    def per_segment(self) -> int:
        """The values of a full segment."""
        return self.lanes * self.rows

    @property
    def segments(self) -> int:
        """The number of segments."""
        return -(-self.count // self.per_segment)

    @cached_property
    def tiles(self) -> Tiles | None:
        """The tiles for torch's threads, or None unless this is a float type on the CPU."""
        if not self.coded or self.payload.device.type != "cpu" or self.dtype not in DTYPES:
            return None
        return Tiles(self.coded, self.dtype)

    @property
    def together(self) -> int:
        """The number of segments that are best decoded together, from a multiple of it on."""
        return self.tiles.segments if self.tiles else 1


def prepare(payload: torch.Tensor, dtype: str, size: int, is_fixed: bool = False) -> Prepared:
    """Parse a payload.

    Before a GPU decodes a new kind of planes, it decodes the first and last segment of a tensor. If the CPU decodes
    them differently, the CPU decodes all such tensors, with a warning.

    Args:
        payload: uint8, on its device.
        dtype: safetensors' name of the type.
        size: bytes of the tensor.
        is_fixed: whether it has codes of fixed length, which a GPU does not decode.

    Raises DamagedError.
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
    """Return whether the GPU decodes the first and the last segment as the CPU does."""
    device, planes = by_gpu.payload.device, by_gpu.planes
    of_planes = tuple((plane.width, plane.precision, plane.raw_bits) for plane in planes)
    kind = device, by_gpu.bits, by_gpu.rotated, by_gpu.lanes, of_planes
    if not by_gpu.count:
        return True
    if kind not in _known:
        segments = sorted({0, by_gpu.segments - 1})
        present = by_gpu.count - (by_gpu.segments - len(segments)) * by_gpu.per_segment
        found, expected = (decode_segments(one, segments).view(-1)[:present] for one in (by_gpu, by_cpu))
        _known[kind] = torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
        if not _known[kind]:
            warnings.warn(f"{device} decodes {by_gpu.dtype} wrongly: the CPU decodes it, slowly", stacklevel=2)
    return _known[kind]


def _tables(plane: Plane) -> tuple[np.ndarray, np.ndarray]:
    """Return table and entries of a DevicePlane.

    They are separate, and a slot is one byte, so that the tables of a multiprocessor stay in its cache.
    """
    frequencies, symbols = plane.frequencies, np.arange(len(plane.prefixes))
    starts = np.cumsum(frequencies, axis=1) - frequencies
    entries = np.zeros((len(frequencies), 256), np.int64)
    entries[:, : symbols.size] = frequencies | starts << 16 | plane.prefixes << 32
    return np.array([np.repeat(symbols, row) for row in frequencies]).astype(np.uint8), entries


def device_planes(coded: Coded, payload: torch.Tensor) -> tuple[DevicePlane, ...]:
    """Return the planes of a payload for kernels and reference: views of it, with tables of their own."""
    if payload.data_ptr() % 8:
        payload = payload.clone()
    return tuple(_device_plane(coded, plane, payload) for plane in coded.planes)


def _device_plane(coded: Coded, plane: Plane, payload: torch.Tensor) -> DevicePlane:
    def view_of(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        begin = array.ctypes.data - coded.payload.ctypes.data
        if not 0 <= begin < coded.payload.size:  # not in the payload, for example if all segments have one table
            return torch.from_numpy(array.copy()).view(dtype).to(payload.device)
        return payload[begin : begin + array.nbytes].view(dtype).view(array.shape)

    table, entries = (torch.from_numpy(array).to(payload.device) for array in _tables(plane))
    return DevicePlane(
        *(plane.width, plane.raw_bits, plane.precision, plane.constant),
        table=table,
        entries=entries,
        ids=view_of(plane.ids, torch.uint8),
        starts=torch.from_numpy(plane.starts).to(payload.device),
        states=view_of(plane.states, torch.int32),
        words=view_of(plane.words, torch.int16),
        raw=view_of(plane.raw, _WORDS[plane.width] if plane.raw_bits == plane.width else torch.int32),
    )


def decode(prepared: Prepared, out: torch.Tensor | None = None, threads: int = 1) -> torch.Tensor:
    """Decode all values to a flat tensor of the payload's dtype, in the bytes of `out` (contiguous) if given.

    Raises DamagedError if a segment does not decode, on the CPU; a GPU does not check.
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
    """Decode some segments to [segments, per_segment]; values after the end of the tensor are undefined.

    Args:
        prepared: the payload.
        segments: their numbers.
        out: uint8 memory for the values, or None.
        threads: threads on the CPU.
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
    """Decode segments, consecutive ones together."""
    breaks = [0, *(k for k in range(1, len(segments)) if segments[k] != segments[k - 1] + 1), len(segments)]
    size = prepared.per_segment
    for begin, end in pairwise(breaks):
        first, last = segments[begin], segments[end - 1] + 1
        present = min(last * size, prepared.count) - first * size
        _decode_run(prepared, first, last, out[begin * size : begin * size + present], threads)


def decode_planes(prepared: Prepared, segments: torch.Tensor, out: torch.Tensor, packed: bool = False) -> None:
    """Decode segments (int64) on their device into `out`, at their places or, if `packed`, one after the other."""
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
    return reference if device == "cpu" else triton_kernels()


def triton_kernels() -> ModuleType:
    """Return the module of the Triton kernels, which are imported when the first one runs: triton is optional."""
    from squeeze.packing.device_decode import kernel

    return kernel
