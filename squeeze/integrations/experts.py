"""Experts whose weights stay coded: only those that tokens reach are decoded, one at a time.

transformers holds a layer's experts as one tensor [experts, rows, columns]. Here that tensor is an `ExpertStack`, which
has shape and dtype but no values. Indexing it decodes one expert. A product with all of them (grouped_mm) decodes those
that have tokens, one after another. Every other operation decodes all. So each implementation of experts in
transformers computes with the original bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Protocol, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from transformers.core_model_loading import ConversionOps

from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.integrations.coded_layers import Buffers, Casting, threads_for
from squeeze.packing import device_decode
from squeeze.packing.record import Record
from squeeze.packing.weights import prepare

__all__ = [
    "CodedExperts",
    "ConvertedExperts",
    "ExpertStack",
    "JoinedExperts",
    "Part",
    "convert",
    "experts_of",
    "let_decode",
]

_aten = torch.ops.aten


class CodedExperts(Protocol):
    """A decoder of all or some experts of a layer. coded.CodedWeight decodes experts that were packed as one tensor."""

    dtype: torch.dtype  # that the model computes in

    @property
    def shape(self) -> tuple[int, ...]:
        """[experts, rows, columns]."""

    @property
    def size(self) -> int:
        """Bytes of the decoded experts."""

    def decode(self, payload: torch.Tensor, own_buffer: bool) -> torch.Tensor:
        """Return all experts, in the shared buffer unless `own_buffer`."""

    def rows(self, payload: torch.Tensor, first: int, last: int, own_buffer: bool) -> torch.Tensor:
        """Return experts `first` to `last`, [last - first, rows, columns], in the shared buffer unless `own_buffer`."""


@dataclass(frozen=True)
class Part:
    """Rows of an expert that are one tensor of the checkpoint, with the range of its payload in the joined payload."""

    record: Record
    begin: int  # a multiple of 8
    end: int


class JoinedExperts:
    """A decoder of experts that were packed one by one, or in several tensors of some rows each, such as gate and
    up."""

    def __init__(self, parts: Sequence[Sequence[Part]], dtype: torch.dtype, buffers: Buffers, slot: int):
        """Take the parts of each expert, in order; all experts have parts of the same shapes."""
        self.parts, self.dtype, self.buffers, self.slot = parts, dtype, buffers, slot
        records = [part.record for part in parts[0]]
        self.stored_dtype = TORCH_DTYPES[records[0].dtype]
        self.shape = (len(parts), sum(record.shape[0] for record in records), records[0].shape[1])
        self.size = sum(part.record.size for expert in parts for part in expert)
        self._prepared: tuple[torch.Tensor | None, dict[Part, device_decode.Prepared]] = None, {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_prepared": (None, {})}

    def decode(self, payload: torch.Tensor, own_buffer: bool) -> torch.Tensor:
        return self.rows(payload, 0, len(self.parts), own_buffer)

    def rows(self, payload: torch.Tensor, first: int, last: int, own_buffer: bool) -> torch.Tensor:
        size = (last - first) * (self.size // len(self.parts))
        if own_buffer:
            out = torch.empty(size, dtype=torch.uint8, device=payload.device)
        else:
            out = self.buffers.take(payload.device, self.slot, size)
        at = 0
        for part in (part for expert in self.parts[first:last] for part in expert):
            self._decode(payload, part, out[at : at + part.record.size])
            at += part.record.size
        return out.view(self.stored_dtype).view(last - first, *self.shape[1:]).to(self.dtype)

    def _decode(self, payload: torch.Tensor, part: Part, out: torch.Tensor) -> None:
        if part.record.coding.is_stored:
            out.copy_(payload.data[part.begin : part.begin + part.record.size])
            return
        if self._prepared[0] is not payload:
            self._prepared = payload, {}
        known = self._prepared[1]
        if part not in known:
            mine = payload.data[part.begin : part.end]
            known[part] = prepare(mine, part.record)
        device_decode.decode(known[part], out, threads_for(part.record.size))


class ConvertedExperts:
    """A decoder of experts that a converter transposes or interleaves, each on its own."""

    def __init__(self, experts: CodedExperts, steps: Sequence[ConversionOps], shape: tuple[int, ...]):
        """Take the decoder, the converter's steps, and the shape of all experts after them."""
        self.experts, self.steps, self.shape, self.size = experts, steps, shape, experts.size

    @property
    def dtype(self) -> torch.dtype:
        return self.experts.dtype

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        self.experts.dtype = dtype

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        return convert(self.experts.decode(payload, fresh), self.steps)

    def rows(self, payload: torch.Tensor, first: int, last: int, fresh: bool) -> torch.Tensor:
        return convert(self.experts.rows(payload, first, last, fresh), self.steps)


def convert(experts: torch.Tensor, steps: Sequence[ConversionOps]) -> torch.Tensor:
    """Apply a converter's steps to experts [experts, rows, columns]."""
    for step in steps:
        experts = step.convert({"": experts}, source_patterns=[""], target_patterns=[""])[""]  # type: ignore[assignment]
    return experts


class ExpertStack(torch.Tensor):
    """A tensor of experts [experts, rows, columns] that is decoded on use; `swapped` exchanges the last two
    dimensions."""

    coded: CodedExperts
    payload: torch.Tensor
    swapped: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, coded: CodedExperts, payload: torch.Tensor, swapped: bool = False) -> ExpertStack:
        experts, rows, columns = coded.shape
        shape, strides = (experts, rows, columns), (rows * columns, columns, 1)
        if swapped:
            shape, strides = (experts, columns, rows), (rows * columns, 1, columns)
        stack: ExpertStack = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, strides=strides, dtype=coded.dtype, device=payload.device
        )
        stack.coded, stack.payload, stack.swapped = coded, payload, swapped
        return stack

    def experts_in(self, first: int, last: int) -> torch.Tensor:
        """Return experts `first` to `last`, in the shared buffer unless gradients may need them later."""
        return self._swapped(self.coded.rows(self.payload, first, last, torch.is_grad_enabled()))

    def dense(self) -> torch.Tensor:
        return self._swapped(self.coded.decode(self.payload, torch.is_grad_enabled()))

    def _swapped(self, values: torch.Tensor) -> torch.Tensor:
        return values.transpose(1, 2) if self.swapped else values

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        done = _WAYS[func](*args, **(kwargs or {})) if func in _WAYS else None
        if done is not None:
            return done
        given = tree_map_only(ExpertStack, ExpertStack.dense, (args, kwargs or {}))
        return func(*given[0], **given[1])

    def __repr__(self) -> str:  # type: ignore[override]
        return f"ExpertStack(shape={tuple(self.shape)}, dtype={self.dtype})"


def _same(stack: ExpertStack) -> ExpertStack:
    return ExpertStack(stack.coded, stack.payload, stack.swapped)


def _select(stack: ExpertStack, dim: int, index: int) -> torch.Tensor | None:
    if dim % 3:
        return None
    expert = index % stack.shape[0]
    return stack.experts_in(expert, expert + 1)[0]


def _transpose(stack: ExpertStack, first: int, second: int) -> torch.Tensor | None:
    return None if {first % 3, second % 3} != {1, 2} else ExpertStack(stack.coded, stack.payload, not stack.swapped)


def _index(stack: ExpertStack, indices: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return a decoded copy of an expert for each index, which batched_mm asks for."""
    named = indices[0]
    if len(indices) != 1 or named is None or named.dtype == torch.bool:
        return None
    out = torch.empty((*named.shape, *stack.shape[1:]), dtype=stack.dtype, device=stack.device)
    for expert in named.unique().tolist():
        out[named == expert] = stack.experts_in(expert % stack.shape[0], expert % stack.shape[0] + 1)[0]
    return out


def _grouped_mm(rows: Any, stack: Any, offs: torch.Tensor | None = None, *rest: Any, **more: Any) -> Any:
    """Multiply rows [n, columns], sorted by expert and ending at offs[i] for expert i, by one expert after another."""
    if not isinstance(stack, ExpertStack) or rows.ndim != 2 or offs is None or any(rest) or any(more.values()):
        return None
    out = rows.new_empty((rows.shape[0], stack.shape[2]))
    start = 0
    for expert, end in enumerate(offs.tolist()):
        if end > start:
            whole = torch.tensor([end - start], dtype=offs.dtype, device=offs.device)
            out[start:end] = _aten._grouped_mm(rows[start:end], stack.experts_in(expert, expert + 1), whole)
            start = end
    return out


_WAYS: dict[Any, Callable[..., Any]] = {
    _aten.detach.default: _same,
    _aten.alias.default: _same,
    _aten.select.int: _select,
    _aten.transpose.int: _transpose,
    _aten.index.Tensor: _index,
    _aten._grouped_mm.default: _grouped_mm,
}


def let_decode(module: nn.Module, leaf: str, experts: CodedExperts) -> None:
    """Make a parameter of a module, which is a payload, appear as an ExpertStack."""
    known = {**experts_of(module), leaf: experts}
    module.__dict__["coded_experts"] = known
    kind: Any = type(module)
    module.__class__ = _coded(getattr(kind, "plain", kind), tuple(known))


@cache
def _coded(kind: Any, leaves: tuple[str, ...]) -> type[nn.Module]:
    """Return a subclass of a module class whose parameters `leaves` appear as stacks."""
    stacks = {leaf: property(partial(_stack, leaf=leaf)) for leaf in leaves}
    return type(kind.__name__, (_CodedModule, kind), {**stacks, "plain": kind, "leaves": leaves})


def _stack(module: nn.Module, leaf: str) -> ExpertStack:
    return ExpertStack(experts_of(module)[leaf], cast(torch.Tensor, module._parameters[leaf]))


def _new(kind: Any, leaves: tuple[str, ...]) -> nn.Module:
    """Create a module without state, for pickle."""
    made = _coded(kind, leaves)
    return made.__new__(made)


class _CodedModule(Casting):
    """A module of experts with payloads among its parameters."""

    plain: ClassVar[type[nn.Module]]
    leaves: ClassVar[tuple[str, ...]]

    def _decoders(self) -> Iterable[Any]:
        return experts_of(self).values()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (self.plain, self.leaves), self.__dict__


def experts_of(module: nn.Module) -> dict[str, CodedExperts]:
    """Return the decoders of a module's experts by parameter name."""
    return cast("dict[str, CodedExperts]", module.__dict__.get("coded_experts", {}))
