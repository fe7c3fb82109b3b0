"""What a predictor of levels 4 to 6 is, and how the compiled steps of several become one.

A predictor has arrays of its own (`own` below: a NamedTuple of arrays and records) and a share of the inputs of the
mixers, whose place it does not choose: predictors.py names all predictors in a tuple, and widths and offsets follow
from that. Its compiled steps take what all share, `m`: little, since a call takes the longer to compile the
more arrays it is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics.jit import inline

WEIGHT = 0.03  # at first, of an input that knows no better
Arrays = Any  # of one predictor: a NamedTuple
Step = Callable[..., None]  # compiled


class Shared(NamedTuple):
    """What predictors see of the model (arrays.py)."""

    data: np.ndarray  # uint8: the block, as far as it is known
    state: Any  # a record: what the present bit is, and what weight sets are chosen by
    registers: np.ndarray  # uint64, of bitmodels/context_state.py
    inputs: np.ndarray  # float32


class Extent(NamedTuple):
    """What arrays follow from, besides the preset."""

    size: int  # bytes of the block, and of what is read before it
    known: int  # of them read before
    counts: np.ndarray  # int64 [512]: of the network (codecs/recurrent)


@dataclass(frozen=True)
class Predictor:
    """Arrays, inputs, and steps: `gather` writes the inputs before a bit, the others bring the arrays up to date."""

    arrays: Callable[[DeepPreset, Extent], Arrays]  # fresh ones
    weights: Callable[[DeepPreset], np.ndarray]  # float32: what its inputs count for at first, so how many there are
    gather: Step  # (m, own, inputs): its share of the mixers' inputs, float32
    names: Callable[[DeepPreset], list[str]]  # in words, what each of its inputs belongs to
    begin_byte: Step | None = None  # (m, own): some time before the first bit of a byte; ask for what it needs
    begin_nibble: Step | None = None  # (m, own): before the first and the fifth bit of a byte
    update: Step | None = None  # (m, own, bit): after each bit
    prefetch: Step | None = None  # (m, own, position): ask for what `end_byte` will read
    end_byte: Step | None = None  # (m, own, position): data[position] is complete, and registers know it
    maps: tuple[str, ...] = ()  # adaptive maps, which a dictionary keeps; their sizes are multiples of 256
    remember: Callable[[Arrays, Arrays], Arrays] | None = None  # (fresh, those of a memory): go on from the memory
    remembers: tuple[str, ...] = ()  # arrays that it takes of those of a memory; other ones are as fresh ones


def in_turn(steps: Sequence[Step | None]) -> Step:
    """One compiled step (m, arrays of all predictors, ...) that lets those take theirs that have one, in order."""
    combined: Step = _nothing
    for k in reversed(range(len(steps))):
        step = steps[k]
        if step is not None:
            combined = _first_of(step, k, combined)
    return combined


@inline
def _nothing(m: Shared, arrays: tuple[Arrays, ...], *arguments: int) -> None:
    pass


def _first_of(step: Step, k: int, others: Step) -> Step:
    """Predictor `k` takes its step, then the others take theirs."""

    def both(m: Shared, arrays: tuple[Arrays, ...], *arguments: int) -> None:
        step(m, arrays[k], *arguments)
        others(m, arrays, *arguments)

    return inline(both)  # type: ignore[no-any-return]


def gather_in_turn(steps: Sequence[Step]) -> Step:
    """As `in_turn`, and each is given its inputs: those from where `first` says."""

    def placed(step: Step, k: int) -> Step:
        def gather(m: Shared, own: Arrays, first: np.ndarray) -> None:
            step(m, own, m.inputs[first[k] :])

        return inline(gather)  # type: ignore[no-any-return]

    return in_turn([placed(step, k) for k, step in enumerate(steps)])
