"""Plans for running a network block by block, found by running the model's own forward.

A walk runs one block after the other, each on all sequences. Values that differ between sequences pass from block to
block as a state. It has the hidden states. Some architectures add values that depend on the tokens (per-layer
embeddings, the first hidden states) or that earlier blocks made (shared keys and values, chosen tokens). All other
arguments are the same for every sequence. An architecture that computes between its blocks is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from squeeze.engine.trees import OUT, Part, Path, Slot, at, filled, leaves, templated

__all__ = ["BlockTrace", "Call", "Plan", "Unwalkable", "plan_of"]

_HIDDEN = 0  # slot of the hidden states


class Unwalkable(Exception):
    """The reason why a network cannot run block by block."""


@dataclass(frozen=True)
class Call:
    """A block's call.

    Attributes:
        args, kwargs: its arguments, with a Slot for each part of the state.
        writes: parts of the state that the block computes, by their paths in its result, or in its arguments after it.
        parts: shapes of the state's parts; empty if the state is the hidden states [L, W] alone.
        returned: the block's result, with a Slot for the hidden states and a Part for every other tensor.
        after: shapes of the state's parts after the block; empty if they are those before it.
    """

    args: tuple[Any, ...] = field(default_factory=lambda: (Slot(_HIDDEN),))
    kwargs: dict[str, Any] = field(default_factory=dict)
    writes: Mapping[Path, int] = field(default_factory=lambda: {(OUT,): _HIDDEN})
    parts: tuple[Part, ...] = ()
    returned: Any = field(default_factory=lambda: Slot(_HIDDEN))
    after: tuple[Part, ...] = ()

    @property
    def changes_arguments(self) -> bool:
        """True if the block writes part of the state into an argument."""
        return any(path[0] != OUT for path in self.writes)

    def run(self, block: nn.Module, state: torch.Tensor) -> torch.Tensor:
        """Return the state [L, W] after the block."""
        values = self._values(state)
        args, kwargs = filled(self.args, values), filled(self.kwargs, values)
        after = {OUT: block(*args, **kwargs), "args": args, "kwargs": kwargs}
        for path, number in self.writes.items():
            values[number] = at(after, path)
        return self.joined(values, state.shape)

    def hidden(self, state: torch.Tensor) -> torch.Tensor:
        """Return the hidden states, such as [1, L, H], in a state after the block."""
        return _split(state, self.after or self.parts)[_HIDDEN]

    def shown(self, hidden: torch.Tensor) -> Any:
        """Return the block's result for given hidden states."""
        return filled(self.returned, [hidden])

    def _values(self, state: torch.Tensor) -> list[torch.Tensor]:
        return _split(state, self.parts)

    def joined(self, values: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Join parts to a state [L, W]."""
        if len(values) == 1 and values[_HIDDEN].numel() == math.prod(shape):
            return values[_HIDDEN].reshape(shape)
        flat = torch.cat([value.float().flatten() for value in values])
        return nn.functional.pad(flat, (0, math.prod(shape) - flat.numel())).view(shape)


def _split(state: torch.Tensor, parts: tuple[Part, ...]) -> list[torch.Tensor]:
    """Return the parts of a state [L, W]."""
    if not parts:
        return [state[None]]
    pieces = state.flatten()[: sum(part.size for part in parts)].split([part.size for part in parts])
    return [piece.view(part.shape).to(part.dtype) for piece, part in zip(pieces, parts, strict=True)]


@dataclass(frozen=True)
class Plan:
    """A plan of a walk.

    Attributes:
        calls: of each block.
        tokens: arguments of blocks that are parts of the state and depend only on the tokens, by block and path.
        constants: arguments that are the same for every sequence of `length` tokens, by block and path.
        length: tokens of a sequence.
        traces: traces of the blocks that the plan was made from.
    """

    calls: list[Call]
    tokens: Mapping[tuple[int, Path], int]
    constants: Mapping[tuple[int, Path], torch.Tensor]
    length: int
    traces: "list[BlockTrace]"

    @property
    def width(self) -> int:
        """The width W of a state [L, W]."""
        states = (parts for call in self.calls for parts in (call.parts, call.after))
        return max(-(-sum(part.size for part in parts) // self.length) for parts in states)

    @property
    def last(self) -> int:
        """The number of the last block with an argument that depends only on the tokens."""
        return max(number for number, _ in self.tokens)

    def state(self, traces: "list[BlockTrace]") -> torch.Tensor:
        """Return the state [L, W] before the first block, from the traces of a run on the sequence's tokens."""
        for (number, path), expected in self.constants.items():
            if number < len(traces) and not _same(traces[number].arguments.get(path), expected):
                raise Unwalkable("arguments of its blocks depend on the tokens in an unexpected way")
        device = next(iter(traces[0].arguments.values())).device
        values = [torch.zeros(part.shape, dtype=part.dtype, device=device) for part in self.calls[0].parts]
        for (number, path), slot in self.tokens.items():
            values[slot] = traces[number].arguments[path]
        state = self.calls[0].joined(values, (self.length, self.width))
        for value, restored in zip(values, self.calls[0]._values(state), strict=True):
            if not value.is_floating_point() and not torch.equal(value, restored):
                raise Unwalkable("arguments of its blocks are integers too large for float32")
        return state


@dataclass
class BlockTrace:
    """The trace of a block in a run of the model.

    Attributes:
        arguments: tensors among its arguments, before it runs, by path.
        template: all its arguments, with a Part for every tensor.
        produced: for arguments that an earlier block made, the number of that block and the path in its result.
        returned: its result, with Parts.
        mutated: what the block put into containers among its arguments, with Parts.
    """

    arguments: dict[Path, torch.Tensor]
    template: Any
    produced: dict[Path, tuple[int, Path]] = field(default_factory=dict)
    returned: Any = None
    mutated: dict[Path, Any] = field(default_factory=dict)


def plan_of(real: list[BlockTrace], empty: list[BlockTrace], varied: list[BlockTrace], length: int | None) -> Plan:
    """Plan a walk from three traces.

    Args:
        real: of a run of the model.
        empty: of a run on the same tokens in which blocks return zeros.
        varied: of such a run on other tokens.
        length: tokens of a sequence; None for the rows of the first block's hidden states.

    Raises:
        Unwalkable: the network cannot run block by block.
    """
    hidden = _hidden_paths(real)
    parts = [Part.of(real[0].arguments[hidden[0]])]
    tokens: dict[tuple[int, Path], int] = {(0, hidden[0]): _HIDDEN}
    constants: dict[tuple[int, Path], torch.Tensor] = {}
    slots: dict[tuple[int, Path], int] = {}
    same_value: dict[int, int] = {}
    places: list[dict[Path, Any]] = []
    for number, trace in enumerate(real):
        where: dict[Path, Any] = {hidden[number]: Slot(_HIDDEN)}
        for path, part in _parts(trace.template):
            if path == hidden[number]:
                continue
            if path in trace.produced:
                slot = slots.setdefault(trace.produced[path], len(parts))
            elif not _same(empty[number].arguments.get(path), trace.arguments[path]):
                raise Unwalkable("it computes between its blocks")
            elif _same(varied[number].arguments.get(path), trace.arguments[path]):
                constants[number, path] = where[path] = trace.arguments[path]
                continue
            else:
                slot = same_value.setdefault(id(empty[number].arguments[path]), len(parts))
                tokens.setdefault((number, path), slot)
            if slot == len(parts):
                parts.append(part)
            where[path] = Slot(slot)
        places.append(where)
    shapes = [(dict(_parts(trace.template))[path],) for trace, path in zip(real, hidden, strict=True)]
    calls = []
    for number, trace in enumerate(real):
        is_last = number + 1 == len(real)
        out = _last(trace, parts[_HIDDEN]) if is_last else real[number + 1].produced[hidden[number + 1]][1]
        behind = (dict(_parts(trace.returned, (OUT,))).get(out, parts[_HIDDEN]),) if is_last else shapes[number + 1]
        writes = {path: slot for (block, path), slot in slots.items() if block == number} | {out: _HIDDEN}
        args, kwargs = (templated(trace.template[kind], places[number], (kind,)) for kind in ("args", "kwargs"))
        before, after = ((*first, *parts[1:]) for first in (shapes[number], behind))
        returned = templated(trace.returned, {out: Slot(_HIDDEN)}, (OUT,))
        calls.append(Call(args, kwargs, writes, before, returned, after))
    return Plan(calls, tokens, constants, length or max(math.prod(parts[_HIDDEN].shape[:-1]), 1), real)


def _hidden_paths(real: list[BlockTrace]) -> list[Path]:
    """Return the path of the hidden states in each block's arguments."""
    names = [("args", 0), ("kwargs", "hidden_states"), *real[0].arguments]
    floating = [name for name in names if name in real[0].arguments and real[0].arguments[name].is_floating_point()]
    if not floating:
        raise Unwalkable("its blocks have no argument with hidden states")
    paths, hidden = [floating[0]], Part.of(real[0].arguments[floating[0]])
    for number, trace in enumerate(real[1:]):
        parts = dict(_parts(trace.template))
        made = [p for p, (block, _) in trace.produced.items() if block == number and parts[p].dtype == hidden.dtype]
        if not made:
            raise Unwalkable("it computes between its blocks")
        paths.append(min(made, key=lambda path: (parts[path] != hidden, path not in names[:2])))
    return paths


def _last(traces: BlockTrace, hidden: Part) -> Path:
    """Return the path of the hidden states in the last block's result."""
    made = [(path, part) for path, part in _parts(traces.returned, (OUT,)) if part.dtype == hidden.dtype]
    if not made:
        raise Unwalkable("its last block returns no hidden states")
    return min(made, key=lambda one: one[1] != hidden)[0]


def _parts(template: Any, path: Path = ()) -> list[tuple[Path, Part]]:
    return [(at_path, leaf) for at_path, leaf in leaves(template, path) if isinstance(leaf, Part)]


def _same(one: Any, other: Any) -> bool:
    """Return whether two tensors have the same values."""
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other) or torch.allclose(one.float(), other.float(), 0, 0, equal_nan=True))
