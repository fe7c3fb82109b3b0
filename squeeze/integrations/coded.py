"""Layers whose weights are payloads, decoded just before they are used, into memory that all layers share.

They are copied, pickled and cast as the layers that they stand for: copies share no memory, and a cast changes the type
that weights are decoded to. A layer that is given another weight is a plain one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.linear import Kept
from squeeze.packing import df_decode
from squeeze.packing.df_decode.together import Together
from squeeze.packing.load import prepare
from squeeze.packing.record import Record

__all__ = [
    "Buffers",
    "Casting",
    "CodedBlock",
    "CodedEmbedding",
    "CodedLinear",
    "CodedWeight",
    "ResidentLinear",
    "threads_for",
]

_SHARED = 1 << 18  # bytes from which threads share the decoding of a weight
_BLOCK = -1  # the slot of the weights of a block
_FEW_ROWS = 8  # of activations that are multiplied while a weight is decoded, where that is asked for


class Buffers:
    """Memory that the coded modules of a model share, a buffer for each device, and how they multiply."""

    def __init__(self, fused: bool = False) -> None:
        """fused: weights of linear layers are multiplied while they are decoded, by few rows on the CPU."""
        self.fused = fused
        self.block: CodedBlock | None = None  # whose weights are decoded
        self._buffers: dict[tuple[torch.device, int], torch.Tensor] = {}

    def take(self, device: torch.device, slot: int, size: int) -> torch.Tensor:
        """`size` bytes; what was decoded there before is gone. Slots are for weights used at the same time."""
        buffer = self._buffers.get((device, slot))
        if buffer is None or buffer.numel() < size:
            self._buffers.pop((device, slot), None)
            buffer = torch.empty(size, dtype=torch.uint8, device=device)
            self._buffers[device, slot] = buffer
        return buffer[:size]

    def __getstate__(self) -> dict[str, object]:
        return {"fused": self.fused, "block": None, "_buffers": {}}

    @property
    def nbytes(self) -> int:
        return sum(buffer.numel() for buffer in self._buffers.values())


class CodedWeight:
    """How the payload in a module's `_parameters` becomes a weight."""

    def __init__(self, record: Record, dtype: torch.dtype, buffers: Buffers, slot: int, piece: int):
        self.record = record
        self.dtype = dtype  # that the model computes in
        self.buffers = buffers
        self.slot = slot
        self.piece = piece  # bytes decoded at a time, where rows can be taken apart
        self._kept: Kept[df_decode.Prepared] = Kept()

    @property
    def size(self) -> int:
        """Bytes decoded."""
        return self.record.size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record.shape

    def prepare(self, payload: torch.Tensor) -> df_decode.Prepared:
        found = self._kept.find((payload,), payload.device)
        if found is None:
            found = self._kept.keep((payload,), prepare(payload.data, self.record), payload.device)
        return found

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        """The whole weight, in shared memory unless `fresh`."""
        out = None if fresh else self.buffers.take(payload.device, self.slot, self.record.size)
        values = df_decode.decode(self.prepare(payload), out, threads_for(self.record.size))
        return values.view(self.record.shape).to(self.dtype)

    def rows(self, payload: torch.Tensor, first: int, last: int, fresh: bool = False) -> torch.Tensor:
        """First to last along the first dimension, [last - first, *shape[1:]], in shared memory unless `fresh`."""
        prepared, columns = self.prepare(payload), prod(self.record.shape[1:])
        begin, end = first * columns, last * columns
        unit = prepared.together * prepared.per_segment
        first_segment, last_segment = begin // unit * prepared.together, -(-end // unit) * prepared.together
        segments = range(first_segment, min(last_segment, prepared.segments))
        size = len(segments) * prepared.per_segment * prepared.bits // 8
        out = None if fresh else self.buffers.take(payload.device, self.slot, size)
        values = df_decode.decode_segments(prepared, list(segments), out=out, threads=threads_for(size))
        skip = begin - segments.start * prepared.per_segment
        return values.view(-1)[skip : skip + end - begin].view(last - first, *self.record.shape[1:]).to(self.dtype)

    def multiplies(self, payload: torch.Tensor, rows: int) -> bool:
        """Whether `multiply` takes so many rows."""
        if not self.buffers.fused or not 0 < rows <= _FEW_ROWS:
            return False
        stored = df_decode.TORCH_DTYPES[self.record.dtype]
        return self.dtype in (stored, torch.float32) and self.prepare(payload).tiles is not None

    def multiply(self, payload: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """x [..., inputs] times the weight [outputs, inputs]: [..., outputs] in float32, in which sums are made."""
        tiles = self.prepare(payload).tiles
        assert tiles is not None
        return tiles.multiply(x, self.record.shape[0], torch.get_num_threads())

    def gather(self, payload: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Some rows of a matrix, [*indices.shape, columns]; each segment that holds one is decoded once."""
        prepared, columns = self.prepare(payload), self.record.shape[1]
        size, device = prepared.per_segment, payload.device
        unique_rows, place = torch.unique(indices.reshape(-1), return_inverse=True)
        positions = unique_rows[:, None] * columns + torch.arange(columns, device=unique_rows.device)  # [rows, columns]
        segments, segment_of = torch.unique(positions // size, return_inverse=True)
        rows = torch.empty((len(unique_rows), columns), dtype=df_decode.TORCH_DTYPES[self.record.dtype], device=device)
        at_a_time = max(1, self.piece // (size * prepared.bits // 8))
        for start in range(0, len(segments), at_a_time):
            chosen = segments[start : start + at_a_time].tolist()
            decoded = df_decode.decode_segments(prepared, chosen, threads=torch.get_num_threads())
            in_batch = (segment_of >= start) & (segment_of < start + len(chosen))
            rows[in_batch] = decoded.view(-1)[(segment_of[in_batch] - start) * size + positions[in_batch] % size]
        return rows.to(self.dtype)[place].view(*indices.shape, columns)


def threads_for(size: int) -> int:
    """Of decoding so many bytes: few are decoded sooner than other threads wake up."""
    return torch.get_num_threads() if size >= _SHARED else 1


def _weight(module: nn.Module) -> torch.Tensor:
    """The decoded weight of a coded module, for whoever asks for `module.weight`."""
    coded = cast(CodedWeight, module.__dict__["coded_weight"])
    return coded.decode(cast(torch.Tensor, module._parameters["weight"]), fresh=torch.is_grad_enabled())


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What functional.linear computes of a weight that takes gradients, as an original's does, to the bit. Of one that
    takes none it makes copies where x is a slice, as of the last position of a prompt, and sums in another order."""
    if x.dim() < 3 or (bias is not None and x.is_contiguous()):
        return functional.linear(x, weight, bias)
    product = functional.linear(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


class ResidentLinear(nn.Linear):
    """A linear layer whose weight was decoded for good."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _product(input, self.weight, self.bias)


class Casting(nn.Module):
    """A module some of whose parameters are payloads.

    A cast leaves those as they are, and changes the type that they are decoded to.
    """

    def _decoders(self) -> Iterable[CodedWeight]:
        """All that decodes a payload of this module."""
        return (self.__dict__["coded_weight"],)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        def apply(tensor: torch.Tensor) -> torch.Tensor:
            changed = fn(tensor)
            return tensor.to(changed.device) if tensor.dtype == torch.uint8 != changed.dtype else changed

        super()._apply(apply, recurse)  # type: ignore[no-untyped-call]
        for one in self._decoders():
            one.dtype = fn(torch.empty(0, dtype=one.dtype)).dtype
        return self


class _CodedLayer(Casting):
    """A layer whose weight is a payload. plain: its class with a weight that is none."""

    plain: ClassVar[type[nn.Module]]
    weight = property(_weight)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and isinstance(value, torch.Tensor) and value.is_floating_point():
            del self.__dict__["coded_weight"]
            if block := self.__dict__.get("coded_block"):
                block.dissolve()
            self.__class__ = self.plain  # type: ignore[assignment]
        nn.Module.__setattr__(self, name, value)


class CodedLinear(_CodedLayer, nn.Linear):
    """A linear layer whose weight is a payload."""

    plain = ResidentLinear
    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        payload = cast(torch.Tensor, self._parameters["weight"])
        block = cast("CodedBlock | None", self.__dict__.get("coded_block"))
        fresh = torch.is_grad_enabled() and input.requires_grad
        if not fresh and coded.multiplies(payload, input.numel() // self.in_features):
            product = coded.multiply(payload, input)
            return (product if self.bias is None else product.add_(self.bias)).to(input.dtype)
        if block and not fresh and _at_once(payload.device):
            return _product(input, block.weight(self), self.bias)
        if fresh or coded.record.size <= coded.piece:
            return _product(input, coded.decode(payload, fresh), self.bias)
        step = max(coded.piece // (coded.record.size // self.out_features) // 64 * 64, 64)
        out = input.new_empty((*input.shape[:-1], self.out_features))
        for first in range(0, self.out_features, step):
            last = min(first + step, self.out_features)
            bias = None if self.bias is None else self.bias[first:last]
            out[..., first:last] = _product(input, coded.rows(payload, first, last), bias)
        return out


class CodedBlock:
    """Coded linear layers of a block of a model, which a GPU decodes together once the first of them is used."""

    def __init__(self, layers: Sequence[CodedLinear], buffers: Buffers) -> None:
        self.layers, self.buffers = tuple(layers), buffers
        self._together: Together | None = None
        self._decoded: dict[CodedLinear, tuple[df_decode.Prepared, torch.Tensor]] = {}
        for layer in self.layers:
            layer.__dict__["coded_block"] = self

    def __getstate__(self) -> dict[str, object]:
        return {"layers": self.layers, "buffers": self.buffers, "_together": None, "_decoded": {}}

    def dissolve(self) -> None:
        """Let each of the layers be decoded on its own."""
        for layer in self.layers:
            layer.__dict__.pop("coded_block", None)
        if self.buffers.block is self:
            self.buffers.block = None

    def weight(self, layer: CodedLinear) -> torch.Tensor:
        """That of one of the layers, in shared memory."""
        known = self._decoded.get(layer)
        if known is None or known[0] is not _prepared(layer):
            self._decode()
        return self._decoded[layer][1]

    def _decode(self) -> None:
        prepared = [_prepared(layer) for layer in self.layers]
        known = self._together
        if known is None or any(one is not other for one, other in zip(known.prepared, prepared, strict=True)):
            self._together = known = Together(prepared)
        if self.buffers.block is not None:  # whose memory this takes
            self.buffers.block._decoded.clear()
        self.buffers.block = self
        memory = self.buffers.take(prepared[0].payload.device, _BLOCK, known.size)
        values = known.decode(memory, torch.get_num_threads())
        for layer, one, value in zip(self.layers, prepared, values, strict=True):
            weight = cast(CodedWeight, layer.__dict__["coded_weight"])
            self._decoded[layer] = one, value.view(weight.shape).to(weight.dtype)


def _prepared(layer: CodedLinear) -> df_decode.Prepared:
    weight = cast(CodedWeight, layer.__dict__["coded_weight"])
    return weight.prepare(cast(torch.Tensor, layer._parameters["weight"]))


def _at_once(device: torch.device) -> bool:
    """Whether the weights of a block are decoded together there: a processor keeps one in its cache."""
    return device.type != "cpu"


class CodedEmbedding(_CodedLayer, nn.Embedding):
    """An embedding whose weight is a payload."""

    plain = nn.Embedding
    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        if input.numel() == 0:
            return torch.empty((*input.shape, self.embedding_dim), dtype=coded.dtype, device=input.device)
        return coded.gather(cast(torch.Tensor, self._parameters["weight"]), input)
