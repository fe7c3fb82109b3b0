"""The definition of decoding a plane, in plain torch: all segments and lanes at once, a row at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from squeeze.packing.device_decode import DevicePlane, Prepared

_STATE_LOW = 1 << 15


def decode_plane(
    prepared: Prepared, plane: DevicePlane, segments: torch.Tensor, out: torch.Tensor, rotated: bool, packed: bool
) -> None:
    """Decode segments of a plane into `out`, words of its width.

    Args:
        prepared: the payload.
        plane: the plane.
        segments: their numbers, int64 [S].
        out: the words.
        rotated: whether the values are rotated.
        packed: put segments one after the other, instead of at their places in the tensor.
    """
    rows, lanes = prepared.rows, prepared.lanes
    lane = torch.arange(lanes, device=out.device)
    begins = segments * prepared.per_segment
    sizes = torch.clamp(prepared.count - begins, max=prepared.per_segment)
    targets = torch.arange(len(segments), device=out.device) * prepared.per_segment if packed else begins
    if plane.precision:
        states, positions = plane.states[segments].to(torch.int64), plane.starts[segments]
        tables = plane.ids[segments].to(torch.int64)[:, None]
    raw_begins = segments * (lanes * (-(-rows * plane.raw_bits // 32)))
    for row in range(int(-(-sizes.max() // lanes))):
        index = row * lanes + lane  # [lanes]
        present = index < sizes[:, None]  # [S, lanes]
        if plane.raw_bits == plane.width:
            value = _take(plane.raw, begins[:, None] + index).to(torch.int64)
        elif plane.precision:
            stepped, prefix = _look_up(plane, tables, states)
            small = (stepped < _STATE_LOW) & present
            rank = small.cumsum(1) - small.to(torch.int64)
            word = _take(plane.words, positions[:, None] + rank).to(torch.int64) & 0xFFFF
            stepped = torch.where(small, stepped << 16 | word, stepped)
            states = torch.where(present, stepped, states)
            positions = positions + small.sum(1)
            value = prefix << plane.raw_bits
        else:
            value = torch.full(present.shape, plane.constant << plane.raw_bits, device=out.device)
        if 0 < plane.raw_bits < plane.width:
            value = value | _raw_field(plane, raw_begins[:, None] + lane, row, lanes)
        if rotated:
            value = rotate_right(value & ((1 << plane.width) - 1), plane.width)
        out[(targets[:, None] + index)[present]] = value[present].to(out.dtype)


def _look_up(plane: DevicePlane, tables: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return states after their slots, before they take a word, and the prefixes of the slots."""
    slots, quotients = states & ((1 << plane.precision) - 1), states >> plane.precision
    entries = plane.entries[tables, plane.table[tables, slots].to(torch.int64)]
    return (entries & 0xFFFF) * quotients + slots - (entries >> 16 & 0xFFFF), entries >> 32


def _take(source: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return source[index], and anything if the index is after its end."""
    return source[index.clamp(max=len(source) - 1)] if len(source) else torch.zeros_like(index)


def _raw_field(plane: DevicePlane, first: torch.Tensor, row: int, lanes: int) -> torch.Tensor:
    bit = row * plane.raw_bits
    word, offset = first + bit // 32 * lanes, bit % 32
    field = (_take(plane.raw, word).to(torch.int64) & 0xFFFFFFFF) >> offset
    if offset + plane.raw_bits > 32:
        field |= (_take(plane.raw, word + lanes).to(torch.int64) & 0xFFFFFFFF) << (32 - offset)
    return field & ((1 << plane.raw_bits) - 1)


def rotate_right(value: torch.Tensor, width: int) -> torch.Tensor:
    """Move the lowest bit of a `width`-bit value (int64) above its highest one."""
    return (value >> 1 & ((1 << (width - 1)) - 1)) | value << (width - 1)
