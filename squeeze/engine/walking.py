"""What each block of a network is called with, found by running the model's own forward.

A walk runs one block after the other, each on all sequences. What differs between sequences goes from block to block as
a state: the hidden states and, if an architecture has them, values that depend on the tokens (per-layer embeddings, the
first hidden states) or that earlier blocks made (shared keys and values, chosen tokens). All other arguments are the
same for every sequence. An architecture that computes between its blocks is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from squeeze.engine.trees import OUT, Part, Path, Slot, at, filled, leaves, templated

__all__ = ["Call", "Plan", "Seen", "Unwalkable", "plan_of"]

_HIDDEN = 0  # the slot of the hidden states


class Unwalkable(Exception):
    """Why a network cannot run block by block."""


@dataclass(frozen=True)
class Call:
    """How a block is called. args, kwargs: with a Slot for each part of the state. writes: the parts of the state that
    the block computes, by where they are in what it returns or in its arguments after it. parts: of the state; none if
    that is the hidden states [L, W] alone. returned: what the block returns, with a Slot for the hidden states and a
    Part for every other tensor."""

    args: tuple[Any, ...] = field(default_factory=lambda: (Slot(_HIDDEN),))
    kwargs: dict[str, Any] = field(default_factory=dict)
    writes: Mapping[Path, int] = field(default_factory=lambda: {(OUT,): _HIDDEN})
    parts: tuple[Part, ...] = ()
    returned: Any = field(default_factory=lambda: Slot(_HIDDEN))

    @property
    def changes_arguments(self) -> bool:
        """Whether the block writes part of the state into an argument."""
        return any(path[0] != OUT for path in self.writes)

    def run(self, block: nn.Module, state: torch.Tensor) -> torch.Tensor:
        """The state [L, W] after the block."""
        values = self._values(state)
        args, kwargs = filled(self.args, values), filled(self.kwargs, values)
        after = {OUT: block(*args, **kwargs), "args": args, "kwargs": kwargs}
        for path, number in self.writes.items():
            values[number] = at(after, path)
        return self.joined(values, state.shape)

    def hidden(self, state: torch.Tensor) -> torch.Tensor:
        """The hidden states [1, L, H] in a state."""
        return self._values(state)[_HIDDEN]

    def shown(self, hidden: torch.Tensor) -> Any:
        """What the block returns if its hidden states are these."""
        return filled(self.returned, [hidden])

    def _values(self, state: torch.Tensor) -> list[torch.Tensor]:
        if not self.parts:
            return [state[None]]
        pieces = state.flatten()[: sum(part.size for part in self.parts)].split([part.size for part in self.parts])
        return [piece.view(part.shape).to(part.dtype) for piece, part in zip(pieces, self.parts, strict=True)]

    def joined(self, values: list[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """A state [L, W] of its parts."""
        if len(values) == 1 and values[_HIDDEN].numel() == math.prod(shape):
            return values[_HIDDEN].reshape(shape)
        flat = torch.cat([value.float().flatten() for value in values])
        return nn.functional.pad(flat, (0, math.prod(shape) - flat.numel())).view(shape)


@dataclass(frozen=True)
class Plan:
    """calls: of each block. tokens: the arguments, each of a block, that are parts of the state and depend on the
    tokens alone. constants: those that are the same for every sequence of `length` tokens. seen: the
    blocks in the run that the plan was made from."""

    calls: list[Call]
    tokens: Mapping[tuple[int, Path], int]
    constants: Mapping[tuple[int, Path], torch.Tensor]
    length: int
    seen: "list[Seen]"

    @property
    def width(self) -> int:
        """W of a state [L, W]."""
        return -(-sum(part.size for part in self.calls[0].parts) // self.length)

    @property
    def last(self) -> int:
        """The number of the last block that the tokens alone tell something of."""
        return max(number for number, _ in self.tokens)

    def state(self, seen: "list[Seen]") -> torch.Tensor:
        """The state [L, W] before the first block. seen: the blocks' arguments in a run on the sequence's tokens."""
        for (number, path), wanted in self.constants.items():
            if number < len(seen) and not _same(seen[number].arguments.get(path), wanted):
                raise Unwalkable("arguments of its blocks depend on the tokens in a way that was not foreseen")
        device = next(iter(seen[0].arguments.values())).device
        values = [torch.zeros(part.shape, dtype=part.dtype, device=device) for part in self.calls[0].parts]
        for (number, path), slot in self.tokens.items():
            values[slot] = seen[number].arguments[path]
        state = self.calls[0].joined(values, (self.length, self.width))
        for value, kept in zip(values, self.calls[0]._values(state), strict=True):
            if not value.is_floating_point() and not torch.equal(value, kept):
                raise Unwalkable("arguments of its blocks are integers that float32 does not hold")
        return state


@dataclass
class Seen:
    """A block in a run of the model. arguments: the tensors in its arguments, before it; template: all its arguments,
    with a Part for every tensor. made: of arguments that an earlier block made, which one, and where they were in what
    it returned. returned: likewise with Parts; put: what the block put into containers among its arguments."""

    arguments: dict[Path, torch.Tensor]
    template: Any
    made: dict[Path, tuple[int, Path]] = field(default_factory=dict)
    returned: Any = None
    put: dict[Path, Any] = field(default_factory=dict)


def plan_of(real: list[Seen], empty: list[Seen], varied: list[Seen], length: int) -> Plan:
    """real: the blocks in a run of the model; empty: in one on the same tokens in which blocks return zeros; varied: in
    such a one on other tokens. Raises Unwalkable."""
    hidden = _hidden_paths(real)
    parts = [Part.of(real[0].arguments[hidden[0]])]
    tokens: dict[tuple[int, Path], int] = {(0, hidden[0]): _HIDDEN}
    constants: dict[tuple[int, Path], torch.Tensor] = {}
    made: dict[tuple[int, Path], int] = {}
    same_value: dict[int, int] = {}
    places: list[dict[Path, Any]] = []
    for number, seen in enumerate(real):
        where: dict[Path, Any] = {hidden[number]: Slot(_HIDDEN)}
        for path, part in _parts(seen.template):
            if path == hidden[number]:
                continue
            if path in seen.made:
                slot = made.setdefault(seen.made[path], len(parts))
            elif not _same(empty[number].arguments.get(path), seen.arguments[path]):
                raise Unwalkable("it computes between its blocks")
            elif _same(varied[number].arguments.get(path), seen.arguments[path]):
                constants[number, path] = where[path] = seen.arguments[path]
                continue
            else:
                slot = same_value.setdefault(id(empty[number].arguments[path]), len(parts))
                tokens.setdefault((number, path), slot)
            if slot == len(parts):
                parts.append(part)
            where[path] = Slot(slot)
        places.append(where)
    calls = []
    for number, seen in enumerate(real):
        out = real[number + 1].made[hidden[number + 1]][1] if number + 1 < len(real) else _last(seen, parts[_HIDDEN])
        writes = {path: slot for (block, path), slot in made.items() if block == number} | {out: _HIDDEN}
        args, kwargs = (templated(seen.template[kind], places[number], (kind,)) for kind in ("args", "kwargs"))
        calls.append(Call(args, kwargs, writes, tuple(parts), templated(seen.returned, {out: Slot(_HIDDEN)}, (OUT,))))
    return Plan(calls, tokens, constants, length, real)


def _hidden_paths(real: list[Seen]) -> list[Path]:
    """Where each block is given the hidden states."""
    names = [("args", 0), ("kwargs", "hidden_states"), *real[0].arguments]
    floating = [name for name in names if name in real[0].arguments and real[0].arguments[name].is_floating_point()]
    if not floating:
        raise Unwalkable("its blocks are given no hidden states")
    paths, wanted = [floating[0]], Part.of(real[0].arguments[floating[0]])
    for number, seen in enumerate(real[1:]):
        parts = dict(_parts(seen.template))
        fitting = [path for path, (block, _) in seen.made.items() if block == number and parts[path] == wanted]
        if not fitting:
            raise Unwalkable("it computes between its blocks")
        paths.append(fitting[0])
    return paths


def _last(seen: Seen, hidden: Part) -> Path:
    """Where the last block returns the hidden states."""
    fitting = [path for path, part in _parts(seen.returned, (OUT,)) if part == hidden]
    if not fitting:
        raise Unwalkable("its last block returns no hidden states")
    return fitting[0]


def _parts(template: Any, path: Path = ()) -> list[tuple[Path, Part]]:
    return [(at_path, leaf) for at_path, leaf in leaves(template, path) if isinstance(leaf, Part)]


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors have the same values."""
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one, other) or torch.allclose(one.float(), other.float(), 0, 0, equal_nan=True))
