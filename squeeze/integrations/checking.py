"""Payloads that stay coded, decoded once to compare them with their checksums: later nobody looks whether what they
stand for is right."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash

from squeeze.packing import df_decode
from squeeze.packing.load import prepare
from squeeze.packing.record import Record, naming, other_checksum
from squeeze.system.parallel import ordered_map

__all__ = ["compare", "compare_coded"]

_PIECE = 1 << 20  # bytes that a thread decodes, or brings from a device, at a time
_AHEAD = 8  # payloads a thread

Coded = tuple[str, Record, torch.Tensor]  # name, record, payload: uint8, on any device


def compare_coded(coded: Iterable[Coded], threads: int) -> None:
    """Decode payloads on the CPU, each by one of the threads, which takes some MiB. Raises DamagedError where one does
    not decode, or to something else than was packed."""
    for _ in ordered_map(_compare, coded, threads, ahead=_AHEAD * threads):
        pass


def _compare(coded: Coded) -> None:
    name, record, payload = coded
    if record.coding.is_stored:
        compare(payload, record, name)
        return
    with naming(name):
        checksum = _checksum(payload.cpu(), record)
    if checksum != record.checksum:
        raise other_checksum(name)


def _checksum(payload: torch.Tensor, record: Record) -> int:
    """XXH3-64 of what a payload on the CPU stands for."""
    prepared, state = prepare(payload, record), xxhash.xxh3_64()
    size = prepared.per_segment * prepared.bits // 8
    at_a_time = max(_PIECE // (size * prepared.together), 1) * prepared.together
    piece = torch.empty(min(at_a_time, prepared.segments) * size, dtype=torch.uint8)
    for first in range(0, prepared.segments, at_a_time):
        segments = list(range(first, min(first + at_a_time, prepared.segments)))
        values = df_decode.decode_segments(prepared, segments, piece[: len(segments) * size]).view(-1)
        state.update(values.view(torch.uint8)[: record.size - first * size].numpy().data)
    return state.intdigest()


def compare(values: torch.Tensor, record: Record, name: str) -> None:
    """What was decoded, on any device. Raises DamagedError where it is something else than was packed."""
    state = xxhash.xxh3_64()
    for piece in values.reshape(-1).view(torch.uint8).split(_PIECE) if record.size else ():
        state.update(piece.cpu().numpy().data)
    if state.intdigest() != record.checksum:
        raise other_checksum(name)
