"""Tensors of a model that are loaded as payloads: what is known of each, and how it is decoded and checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

import torch
import xxhash
from transformers.core_model_loading import ConversionOps

from squeeze.checkpoint.safetensors import Bytes
from squeeze.integrations.coded_layers import Buffers, CodedWeight
from squeeze.integrations.experts import CodedExperts, ConvertedExperts, JoinedExperts, Part, convert
from squeeze.packing import device_decode
from squeeze.packing.others import Others
from squeeze.packing.record import Record, naming, other_checksum
from squeeze.packing.weights import prepare, shaped, torch_dtype, torch_shape
from squeeze.system.parallel import ordered_map

__all__ = ["PackedTensor", "Place", "compare", "compare_coded", "decoded", "merged"]

_LEAST_CODED = 1 << 16  # bytes: smaller tensors are decoded once


@dataclass(frozen=True)
class PackedTensor:
    """A tensor of a packed file."""

    name: str
    record: Record
    size: int  # bytes of its payload
    others: Others | None = None  # for a difference, or one that repeats other tensors


@dataclass(frozen=True)
class Place:
    """A tensor of a model that is replaced by a payload, or by the payloads of the experts that are merged into it."""

    tensors: tuple[PackedTensor, ...]
    experts: int  # that are merged, 0 for one tensor
    shape: tuple[int, ...]
    dtype: torch.dtype  # that the model computes in
    steps: tuple[ConversionOps, ...] = ()  # that a converter takes with one tensor

    @property
    def size(self) -> int:
        """Bytes of the payloads."""
        return self._parts[-1].end if self.experts else self.tensors[0].size

    @property
    def nbytes(self) -> int:
        """Bytes of the model's tensor."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def can_stay(self) -> bool:
        """True if it may be decoded at each use: its coding allows that, it has its own dtype, and it is large
        enough."""
        codings = [one.record.coding for one in self.tensors]
        allowed = all(one.stays_coded or (self.experts > 0 and one.is_stored) for one in codings)
        large = sum(one.record.size for one in self.tensors) >= _LEAST_CODED
        own = all(one.record.layout == one.record.dtype for one in self.tensors)
        return large and own and allowed and any(one.stays_coded for one in codings)

    @property
    def is_coded(self) -> bool:
        """True if decoded values share no memory with the payload."""
        return self.experts > 0 or not self.tensors[0].record.coding.is_stored

    @property
    def needs_processor(self) -> bool:
        """True if only a CPU decodes it."""
        return any(one.record.coding.cpu_only for one in self.tensors)

    @property
    def _parts(self) -> list[Part]:
        parts, at = [], 0
        for one in self.tensors:
            parts.append(Part(one.record, at, at + one.size))
            at += -(-one.size // 8) * 8
        return parts

    def split(self, payload: torch.Tensor) -> Iterator[tuple[PackedTensor, torch.Tensor]]:
        """Yield each tensor with its own payload."""
        if not self.experts:
            yield self.tensors[0], payload
            return
        for one, part in zip(self.tensors, self._parts, strict=True):
            yield one, payload[part.begin : part.end]

    def joined(self, payloads: Sequence[torch.Tensor]) -> torch.Tensor:
        """Join the payloads in the order of `stored`."""
        if not self.experts:
            return payloads[0]
        out = torch.empty(self.size, dtype=torch.uint8, device=payloads[0].device)
        for part, payload in zip(self._parts, payloads, strict=True):
            out[part.begin : part.end] = payload
        return out

    def decoded(self, payload: torch.Tensor, check: bool = True) -> torch.Tensor:
        """Decode the tensor; raises DamagedError. `check` is that of the function `decoded`."""
        if not self.experts:
            return convert(decoded(self.tensors[0], payload, check).to(self.dtype), self.steps)
        out = torch.empty(self.shape, dtype=self.dtype, device=payload.device).view(-1)
        at = 0
        for one, data in self.split(payload):
            values = decoded(one, data, check).view(-1)
            out[at : at + values.numel()] = values
            at += values.numel()
        return out.view(self.shape)

    def coded(self, buffers: Buffers, slot: int, piece: int) -> CodedWeight:
        """Return a decoder of a layer's weight."""
        return CodedWeight(self.tensors[0].record, self.dtype, buffers, slot, piece)

    def coded_experts(self, buffers: Buffers, slot: int) -> CodedExperts:
        """Return a decoder of a layer's experts."""
        if not self.experts:
            one = self.coded(buffers, slot, 0)
            return ConvertedExperts(one, self.steps, self.shape) if self.steps else one
        parts, each = self._parts, len(self.tensors) // self.experts
        return JoinedExperts([parts[i : i + each] for i in range(0, len(parts), each)], self.dtype, buffers, slot)


def merged(experts: list[list[PackedTensor]], shape: tuple[int, ...], dtype: torch.dtype) -> Place | None:
    """Return the Place of experts whose tensors follow each other by rows in a merged tensor.

    Returns None if they do not, or if they should be decoded once.

    Args:
        experts: Tensors of each expert.
        shape: Shape of the merged tensor.
        dtype: Dtype of the model.
    """
    first = [(one.record.dtype, one.record.shape) for one in experts[0]]
    alike = all([(one.record.dtype, one.record.shape) for one in expert] == first for expert in experts)
    if not alike or len(shape) != 3 or any(len(sizes) != 2 or sizes[1] != shape[2] for _, sizes in first):
        return None
    if shape[:2] != (len(experts), sum(sizes[0] for _, sizes in first)) or len({kind for kind, _ in first}) != 1:
        return None
    place = Place(tuple(chain(*experts)), len(experts), shape, dtype)
    return place if place.can_stay else None


def decoded(stored: PackedTensor, payload: torch.Tensor, check: bool = True) -> torch.Tensor:
    """Decode a payload and compare the values with their checksum.

    Without `check` they are compared only if that copies nothing back from a device. Raises DamagedError on a mismatch.
    """
    base = stored.others.for_record(stored.name, stored.record) if stored.others else None
    with naming(stored.name):
        values = _values(stored, payload, base)
    if check or values.device.type == "cpu":
        compare(values, stored.record, stored.name)
    return values


def _values(stored: PackedTensor, payload: torch.Tensor, base: Bytes | None) -> torch.Tensor:
    record, dtype = stored.record, torch_dtype(stored.record.dtype, stored.name)
    if record.coding.is_stored:
        return shaped(payload, record, dtype) if record.size else torch.empty(torch_shape(record), dtype=dtype)
    if not record.coding.stays_coded:
        data = payload.cpu()
        data = data.clone() if data.data_ptr() % 8 else data  # compiled code takes aligned arrays
        values = record.decode(data.numpy(), base, torch.get_num_threads())
        return shaped(torch.from_numpy(values).to(payload.device), record, dtype)
    return shaped(device_decode.decode(prepare(payload, record), threads=torch.get_num_threads()), record, dtype)


_PIECE = 1 << 20  # bytes that a thread decodes, or brings from a device, at a time
_AHEAD = 8  # payloads a thread

Coded = tuple[str, Record, torch.Tensor]  # name, record, payload: uint8, on any device


def compare_coded(coded: Iterable[Coded], threads: int) -> None:
    """Decode payloads on the CPU in threads, some MiB each, to compare them with their checksums.

    Weights that stay coded are checked only here. Raises DamagedError if one does not decode or does not match.
    """
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
    """Return the XXH3-64 of the values of a payload on the CPU."""
    prepared, state = prepare(payload, record), xxhash.xxh3_64()
    size = prepared.per_segment * prepared.bits // 8
    at_a_time = max(_PIECE // (size * prepared.together), 1) * prepared.together
    piece = torch.empty(min(at_a_time, prepared.segments) * size, dtype=torch.uint8)
    for first in range(0, prepared.segments, at_a_time):
        segments = list(range(first, min(first + at_a_time, prepared.segments)))
        values = device_decode.decode_segments(prepared, segments, piece[: len(segments) * size]).view(-1)
        state.update(values.view(torch.uint8)[: record.size - first * size].numpy().data)
    return state.intdigest()


def compare(values: torch.Tensor, record: Record, name: str) -> None:
    """Compare decoded values, on any device, with the checksum of the record; raises DamagedError on a mismatch."""
    state = xxhash.xxh3_64()
    for piece in values.reshape(-1).view(torch.uint8).split(_PIECE) if record.size else ():
        state.update(piece.cpu().numpy().data)
    if state.intdigest() != record.checksum:
        raise other_checksum(name)
