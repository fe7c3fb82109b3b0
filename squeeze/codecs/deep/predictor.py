"""The interface of a predictor of levels 4 to 6, and how the compiled steps of several predictors become one.

A predictor has arrays of its own (`own` below: a NamedTuple of arrays and records) and a share of the mixers' inputs;
predictors.py decides which. Its compiled steps get `m`, a small part of the model, since numba takes longer to compile
a call with more arrays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics.jit import inline

WEIGHT = 0.03  # first mixer weight of most inputs
Arrays = Any  # a NamedTuple: the arrays of one predictor
Step = Callable[..., None]  # compiled


class Shared(NamedTuple):
    """The part of the model (arrays.py) that predictors see."""

    data: np.ndarray  # uint8: the block, as far as it is decoded
    state: Any  # a record: place of the bit, and contexts that select weight sets
    registers: np.ndarray  # uint64: history registers of bitmodels/context_state.py
    inputs: np.ndarray  # float32


class Extent(NamedTuple):
    """Sizes from which predictors allocate their arrays."""

    size: int  # bytes of the block and of a dictionary's text before it
    text_size: int  # bytes of a dictionary's text


@dataclass(frozen=True)
class Predictor:
    """Arrays, inputs and compiled steps: `gather` writes the inputs before a bit, other steps update the arrays."""

    arrays: Callable[[DeepPreset, Extent], Arrays]  # allocates them
    weights: Callable[[DeepPreset], np.ndarray]  # float32 [inputs]: first mixer weights of its inputs
    gather: Step  # (m, own, inputs): writes its inputs, float32
    names: Callable[[DeepPreset], list[str]]  # of its inputs, for `explain`
    begin_byte: Step | None = None  # (m, own): before the first bit of a byte; prefetches
    fetch_nibble: Step | None = None  # (m, own, partial): prefetches for the second nibble if the first is likely this
    begin_nibble: Step | None = None  # (m, own): before the first and the fifth bit of a byte
    update: Step | None = None  # (m, own, bit): after each bit
    prefetch: Step | None = None  # (m, own, position): prefetches what `end_byte` reads
    end_byte: Step | None = None  # (m, own, position): after data[position] and the registers are set
    maps: tuple[str, ...] = ()  # names of adaptive maps that a dictionary keeps; sizes are multiples of 256
    remember: Callable[[Arrays, Arrays], Arrays] | None = None  # (own, those of a memory): start from the memory
    remembers: tuple[str, ...] = ()  # names of arrays that `remember` takes from a memory


def in_turn(steps: Sequence[Step | None]) -> Step:
    """Combine the steps of all predictors into one compiled step (m, arrays of all predictors, ...), in their order."""
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
    """Return a step that runs predictor `k`'s step, then `others`."""

    def both(m: Shared, arrays: tuple[Arrays, ...], *arguments: int) -> None:
        step(m, arrays[k], *arguments)
        others(m, arrays, *arguments)

    return inline(both)  # type: ignore[no-any-return]


def gather_in_turn(steps: Sequence[Step]) -> Step:
    """Combine `gather` steps as `in_turn` does; each gets its own part of the inputs, which starts at `first`."""

    def placed(step: Step, k: int) -> Step:
        def gather(m: Shared, own: Arrays, first: np.ndarray) -> None:
            step(m, own, m.inputs[first[k] :])

        return inline(gather)  # type: ignore[no-any-return]

    return in_turn([placed(step, k) for k, step in enumerate(steps)])
