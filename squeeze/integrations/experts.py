"""Experts whose weights are payloads: those that tokens reach are decoded, one at a time.

transformers holds a layer's experts as one tensor [experts, rows, columns] of a module. Here such a tensor is an
`ExpertStack`: it has that shape and type, and no values. Taking an expert of it decodes this one, a product with all of
them (grouped_mm) decodes one after another those that have tokens, and whatever else is done with it decodes all. So
every way that a model has to compute its experts computes with the bits that it had before.
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

from squeeze.integrations.coded import Buffers, Casting, threads_for
from squeeze.packing import df_decode
from squeeze.packing.load import prepare
from squeeze.packing.record import Record

__all__ = [
    "CodedExperts",
    "ExpertStack",
    "JoinedExperts",
    "Part",
    "TurnedExperts",
    "experts_of",
    "let_decode",
    "turned",
]

_aten = torch.ops.aten


class CodedExperts(Protocol):
    """How a payload becomes a tensor of all experts, or one of them. coded.CodedWeight is one, of experts that were one
    tensor when they were coded."""

    dtype: torch.dtype  # that the model computes in

    @property
    def shape(self) -> tuple[int, ...]:
        """[experts, rows, columns]."""

    @property
    def size(self) -> int:
        """Bytes decoded."""

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        """All of them, in shared memory unless `fresh`."""

    def rows(self, payload: torch.Tensor, first: int, last: int, fresh: bool) -> torch.Tensor:
        """Experts first to last, [last - first, rows, columns], in shared memory unless `fresh`."""


@dataclass(frozen=True)
class Part:
    """Some rows of an expert that are a tensor in the checkpoint, and where its payload lies among those of others."""

    record: Record
    begin: int  # a multiple of 8
    end: int


class JoinedExperts:
    """Experts of which each was a tensor when they were coded, or several of some rows each, as gate and up."""

    def __init__(self, parts: Sequence[Sequence[Part]], dtype: torch.dtype, buffers: Buffers, slot: int):
        """parts: of each expert, in order; all of them alike."""
        self.parts, self.dtype, self.buffers, self.slot = parts, dtype, buffers, slot
        records = [part.record for part in parts[0]]
        self.stored = df_decode.TORCH_DTYPES[records[0].dtype]
        self.shape = (len(parts), sum(record.shape[0] for record in records), records[0].shape[1])
        self.size = sum(part.record.size for expert in parts for part in expert)
        self._prepared: tuple[torch.Tensor | None, dict[Part, df_decode.Prepared]] = None, {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_prepared": (None, {})}

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        return self.rows(payload, 0, len(self.parts), fresh)

    def rows(self, payload: torch.Tensor, first: int, last: int, fresh: bool) -> torch.Tensor:
        size = (last - first) * (self.size // len(self.parts))
        if fresh:
            out = torch.empty(size, dtype=torch.uint8, device=payload.device)
        else:
            out = self.buffers.take(payload.device, self.slot, size)
        at = 0
        for part in (part for expert in self.parts[first:last] for part in expert):
            self._decode(payload, part, out[at : at + part.record.size])
            at += part.record.size
        return out.view(self.stored).view(last - first, *self.shape[1:]).to(self.dtype)

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
        df_decode.decode(known[part], out, threads_for(part.record.size))


class TurnedExperts:
    """Experts that a converter turns or interleaves, each on its own."""

    def __init__(self, experts: CodedExperts, steps: Sequence[ConversionOps], shape: tuple[int, ...]):
        """shape: of all of them when that is done."""
        self.experts, self.steps, self.shape, self.size = experts, steps, shape, experts.size

    @property
    def dtype(self) -> torch.dtype:
        return self.experts.dtype

    @dtype.setter
    def dtype(self, dtype: torch.dtype) -> None:
        self.experts.dtype = dtype

    def decode(self, payload: torch.Tensor, fresh: bool) -> torch.Tensor:
        return turned(self.experts.decode(payload, fresh), self.steps)

    def rows(self, payload: torch.Tensor, first: int, last: int, fresh: bool) -> torch.Tensor:
        return turned(self.experts.rows(payload, first, last, fresh), self.steps)


def turned(experts: torch.Tensor, steps: Sequence[ConversionOps]) -> torch.Tensor:
    """What a converter's steps make of experts [experts, rows, columns]."""
    for step in steps:
        experts = step.convert({"": experts}, source_patterns=[""], target_patterns=[""])[""]  # type: ignore[assignment]
    return experts


class ExpertStack(torch.Tensor):
    """Weights of experts [experts, rows, columns] that are decoded when they are used; `swapped`, with the last two
    dimensions the other way round."""

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

    def chosen(self, first: int, last: int) -> torch.Tensor:
        """Experts first to last, decoded: in shared memory unless gradients may need them later."""
        return self._turned(self.coded.rows(self.payload, first, last, torch.is_grad_enabled()))

    def dense(self) -> torch.Tensor:
        return self._turned(self.coded.decode(self.payload, torch.is_grad_enabled()))

    def _turned(self, values: torch.Tensor) -> torch.Tensor:
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
    return stack.chosen(expert, expert + 1)[0]


def _transpose(stack: ExpertStack, first: int, second: int) -> torch.Tensor | None:
    return None if {first % 3, second % 3} != {1, 2} else ExpertStack(stack.coded, stack.payload, not stack.swapped)


def _index(stack: ExpertStack, indices: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """One copy of an expert for each time that it is named, as of any tensor: batched_mm asks for that."""
    named = indices[0]
    if len(indices) != 1 or named is None or named.dtype == torch.bool:
        return None
    out = torch.empty((*named.shape, *stack.shape[1:]), dtype=stack.dtype, device=stack.device)
    for expert in named.unique().tolist():
        out[named == expert] = stack.chosen(expert % stack.shape[0], expert % stack.shape[0] + 1)[0]
    return out


def _grouped_mm(rows: Any, stack: Any, offs: torch.Tensor | None = None, *rest: Any, **more: Any) -> Any:
    """Rows [n, columns] sorted by expert, up to offs[i] for the first i + 1 of them: as many products of one group."""
    if not isinstance(stack, ExpertStack) or rows.ndim != 2 or offs is None or any(rest) or any(more.values()):
        return None
    out = rows.new_empty((rows.shape[0], stack.shape[2]))
    start = 0
    for expert, end in enumerate(offs.tolist()):
        if end > start:
            whole = torch.tensor([end - start], dtype=offs.dtype, device=offs.device)
            out[start:end] = _aten._grouped_mm(rows[start:end], stack.chosen(expert, expert + 1), whole)
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
    """Let a parameter of a module, which is a payload, be a stack for whoever asks the module for it."""
    known = {**experts_of(module), leaf: experts}
    module.__dict__["coded_experts"] = known
    kind: Any = type(module)
    module.__class__ = _coded(getattr(kind, "plain", kind), tuple(known))


@cache
def _coded(kind: Any, leaves: tuple[str, ...]) -> type[nn.Module]:
    """The class of modules of a kind whose parameters `leaves` are stacks."""
    stacks = {leaf: property(partial(_stack, leaf=leaf)) for leaf in leaves}
    return type(kind.__name__, (_CodedModule, kind), {**stacks, "plain": kind, "leaves": leaves})


def _stack(module: nn.Module, leaf: str) -> ExpertStack:
    return ExpertStack(experts_of(module)[leaf], cast(torch.Tensor, module._parameters[leaf]))


def _new(kind: Any, leaves: tuple[str, ...]) -> nn.Module:
    """A module without its state, for pickle."""
    made = _coded(kind, leaves)
    return made.__new__(made)


class _CodedModule(Casting):
    """A module of experts some of whose parameters are payloads."""

    plain: ClassVar[type[nn.Module]]
    leaves: ClassVar[tuple[str, ...]]

    def _decoders(self) -> Iterable[Any]:
        return experts_of(self).values()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new, (self.plain, self.leaves), self.__dict__


def experts_of(module: nn.Module) -> dict[str, CodedExperts]:
    """The coded ones of a module, by the names of its parameters."""
    return cast("dict[str, CodedExperts]", module.__dict__.get("coded_experts", {}))
