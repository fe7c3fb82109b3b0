"""Layers whose weights stay coded in memory and are decoded just before use, into buffers that all layers share.

They are copied, pickled and cast like the layers that they replace. Copies share no buffer, and a cast changes the
dtype that weights are decoded to. A layer whose weight is assigned becomes a plain layer again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn
from torch.nn import functional

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.checkpoint.linear import PreparedCache
from squeeze.packing import device_decode
from squeeze.packing.device_decode.together import Together
from squeeze.packing.record import Record
from squeeze.packing.weights import prepare

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
    """Decode buffers that the coded modules of a model share, by device and slot, with the chosen way to multiply."""

    def __init__(self, fused: bool = False) -> None:
        """Create empty buffers; `fused` multiplies few rows on the CPU while a weight is decoded."""
        self.fused = fused
        self.block: CodedBlock | None = None  # whose weights are decoded
        self._buffers: dict[tuple[torch.device, int], torch.Tensor] = {}

    def take(self, device: torch.device, slot: int, size: int) -> torch.Tensor:
        """Return a buffer of `size` bytes, which replaces what was decoded into the slot before.

        Weights that are used at the same time need different slots.
        """
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
    """A decoder of the payload that a module holds in place of a weight."""

    def __init__(self, record: Record, dtype: torch.dtype, buffers: Buffers, slot: int, piece: int):
        self.record = record
        self.dtype = dtype  # that the model computes in
        self.buffers = buffers
        self.slot = slot
        self.piece = piece  # bytes decoded at a time, where rows can be taken apart
        self._kept: PreparedCache[device_decode.Prepared] = PreparedCache()

    @property
    def size(self) -> int:
        """Bytes of the decoded weight."""
        return self.record.size

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record.shape

    def prepare(self, payload: torch.Tensor) -> device_decode.Prepared:
        found = self._kept.find((payload,), payload.device)
        if found is None:
            found = self._kept.store((payload,), prepare(payload.data, self.record), payload.device)
        return found

    def decode(self, payload: torch.Tensor, own_buffer: bool) -> torch.Tensor:
        """Return the whole weight, in the shared buffer unless `own_buffer`."""
        out = None if own_buffer else self.buffers.take(payload.device, self.slot, self.record.size)
        values = device_decode.decode(self.prepare(payload), out, threads_for(self.record.size))
        return values.view(self.record.shape).to(self.dtype)

    def rows(self, payload: torch.Tensor, first: int, last: int, own_buffer: bool = False) -> torch.Tensor:
        """Return rows `first` to `last` of the first dimension, [last - first, *shape[1:]].

        Args:
            payload: uint8, the coded weight.
            first: The first row.
            last: The row after the last.
            own_buffer: Whether to use memory of its own in place of the shared buffer.
        """
        prepared, columns = self.prepare(payload), prod(self.record.shape[1:])
        begin, end = first * columns, last * columns
        unit = prepared.together * prepared.per_segment
        first_segment, last_segment = begin // unit * prepared.together, -(-end // unit) * prepared.together
        segments = range(first_segment, min(last_segment, prepared.segments))
        size = len(segments) * prepared.per_segment * prepared.bits // 8
        out = None if own_buffer else self.buffers.take(payload.device, self.slot, size)
        values = device_decode.decode_segments(prepared, list(segments), out=out, threads=threads_for(size))
        skip = begin - segments.start * prepared.per_segment
        return values.view(-1)[skip : skip + end - begin].view(last - first, *self.record.shape[1:]).to(self.dtype)

    def multiplies(self, payload: torch.Tensor, rows: int) -> bool:
        """Return whether `multiply` takes this number of rows of activations."""
        if not self.buffers.fused or not 0 < rows <= _FEW_ROWS:
            return False
        stored = TORCH_DTYPES[self.record.dtype]
        return self.dtype in (stored, torch.float32) and self.prepare(payload).tiles is not None

    def multiply(self, payload: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return x [..., inputs] times the weight [outputs, inputs]: float32 [..., outputs], summed in float32."""
        tiles = self.prepare(payload).tiles
        assert tiles is not None
        return tiles.multiply(x, self.record.shape[0], torch.get_num_threads())

    def gather(self, payload: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        """Return rows of a matrix, [*indices.shape, columns], decoding each segment that holds one of them once."""
        prepared, columns = self.prepare(payload), self.record.shape[1]
        size, device = prepared.per_segment, payload.device
        unique_rows, place = torch.unique(indices.reshape(-1), return_inverse=True)
        positions = unique_rows[:, None] * columns + torch.arange(columns, device=unique_rows.device)  # [rows, columns]
        segments, segment_of = torch.unique(positions // size, return_inverse=True)
        rows = torch.empty((len(unique_rows), columns), dtype=TORCH_DTYPES[self.record.dtype], device=device)
        at_a_time = max(1, self.piece // (size * prepared.bits // 8))
        for start in range(0, len(segments), at_a_time):
            numbers = segments[start : start + at_a_time].tolist()
            decoded = device_decode.decode_segments(prepared, numbers, threads=torch.get_num_threads())
            in_batch = (segment_of >= start) & (segment_of < start + len(numbers))
            rows[in_batch] = decoded.view(-1)[(segment_of[in_batch] - start) * size + positions[in_batch] % size]
        return rows.to(self.dtype)[place].view(*indices.shape, columns)


def threads_for(size: int) -> int:
    """Return the number of threads that decode `size` bytes: one below _SHARED, since waking others takes longer."""
    return torch.get_num_threads() if size >= _SHARED else 1


def _weight(module: nn.Module) -> torch.Tensor:
    """Return the decoded weight of a coded module, for code that reads `module.weight`."""
    coded = cast(CodedWeight, module.__dict__["coded_weight"])
    return coded.decode(cast(torch.Tensor, module._parameters["weight"]), own_buffer=torch.is_grad_enabled())


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return the bits that functional.linear computes for a weight that requires gradients, as the original's does.

    For a weight without gradients functional.linear copies a sliced x, such as the last position of a prompt, and sums
    in another order.
    """
    if x.dim() < 3 or (bias is not None and x.is_contiguous()):
        return functional.linear(x, weight, bias)
    product = functional.linear(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


class ResidentLinear(nn.Linear):
    """A linear layer whose weight was decoded once and is kept."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _product(input, self.weight, self.bias)


class Casting(nn.Module):
    """A module with payloads among its parameters; a cast leaves them alone and changes the dtype that they are decoded
    to.
    """

    def _decoders(self) -> Iterable[CodedWeight]:
        """Return all decoders of this module's payloads."""
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
    """A layer with a coded weight; `plain` is its class once a plain weight is assigned."""

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
    """A linear layer with a coded weight."""

    plain = ResidentLinear
    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        payload = cast(torch.Tensor, self._parameters["weight"])
        block = cast("CodedBlock | None", self.__dict__.get("coded_block"))
        own_buffer = torch.is_grad_enabled() and input.requires_grad
        if not own_buffer and coded.multiplies(payload, input.numel() // self.in_features):
            product = coded.multiply(payload, input)
            return (product if self.bias is None else product.add_(self.bias)).to(input.dtype)
        if block and not own_buffer and _at_once(payload.device):
            return _product(input, block.weight(self), self.bias)
        if own_buffer or coded.record.size <= coded.piece:
            return _product(input, coded.decode(payload, own_buffer), self.bias)
        step = max(coded.piece // (coded.record.size // self.out_features) // 64 * 64, 64)
        out = input.new_empty((*input.shape[:-1], self.out_features))
        for first in range(0, self.out_features, step):
            last = min(first + step, self.out_features)
            bias = None if self.bias is None else self.bias[first:last]
            out[..., first:last] = _product(input, coded.rows(payload, first, last), bias)
        return out


class CodedBlock:
    """The coded linear layers of a model's block, which a GPU decodes together when the first of them is used."""

    def __init__(self, layers: Sequence[CodedLinear], buffers: Buffers) -> None:
        self.layers, self.buffers = tuple(layers), buffers
        self._together: Together | None = None
        self._decoded: dict[CodedLinear, tuple[device_decode.Prepared, torch.Tensor]] = {}
        for layer in self.layers:
            layer.__dict__["coded_block"] = self

    def __getstate__(self) -> dict[str, object]:
        return {"layers": self.layers, "buffers": self.buffers, "_together": None, "_decoded": {}}

    def dissolve(self) -> None:
        """Make each layer decode on its own again."""
        for layer in self.layers:
            layer.__dict__.pop("coded_block", None)
        if self.buffers.block is self:
            self.buffers.block = None

    def weight(self, layer: CodedLinear) -> torch.Tensor:
        """Return the decoded weight of one layer, in the shared buffer."""
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


def _prepared(layer: CodedLinear) -> device_decode.Prepared:
    weight = cast(CodedWeight, layer.__dict__["coded_weight"])
    return weight.prepare(cast(torch.Tensor, layer._parameters["weight"]))


def _at_once(device: torch.device) -> bool:
    """Return whether a block is decoded at once: not on a CPU, whose cache holds one weight at a time."""
    return device.type != "cpu"


class CodedEmbedding(_CodedLayer, nn.Embedding):
    """An embedding with a coded weight."""

    plain = nn.Embedding
    weight = property(_weight)  # type: ignore[assignment]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        coded = cast(CodedWeight, self.__dict__["coded_weight"])
        if input.numel() == 0:
            return torch.empty((*input.shape, self.embedding_dim), dtype=coded.dtype, device=input.device)
        return coded.gather(cast(torch.Tensor, self._parameters["weight"]), input)
