"""The match models of levels 4 to 6 as a predictor: two mixer inputs each, and a register that contexts use.

A match model finds the last occurrence of the latest N bytes, and predicts the byte that followed it (lpaq's
MatchModel). An adaptive map by match length gives the probability that the prediction is right.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep.predictor import WEIGHT, Extent, Predictor
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics.bitmodels import context_state, layout, match
from squeeze.numerics.jit import inline

_LIMIT = 255  # largest count of an adaptive map


class Matches(NamedTuple):
    """The arrays of all match models."""

    state: np.ndarray  # match.STATE [matches]
    least_lengths: np.ndarray  # int64 [matches]
    table: np.ndarray  # int32 [matches, 2^bits]
    maps: np.ndarray  # uint32 [matches * ENTRIES]
    logits: np.ndarray  # int32 [2 * matches], Q12


def _build(preset: DeepPreset, extent: Extent) -> Matches:
    matches = len(preset.matches)
    return Matches(
        state=np.zeros(matches, match.STATE),
        least_lengths=np.array(preset.matches, np.int64),
        table=match.fresh_table(matches, extent.size),
        maps=match.fresh_maps(matches),
        logits=np.zeros(2 * matches, np.int32),
    )


def _weights(preset: DeepPreset) -> np.ndarray:
    return np.full(2 * len(preset.matches), WEIGHT, np.float32)


def _names(preset: DeepPreset) -> list[str]:
    return [f"match of {least} bytes or more" for least in preset.matches for _ in range(2)]


def _remember(own: Matches, before: Matches) -> Matches:
    own.state[...] = before.state
    return own._replace(table=layout.widen_table(before.table, own.table.shape[1]))


@inline
def _gather(m, own, inputs):
    m.state.matched = match.gather(own.state, own.maps, m.state.partial, m.state.shift, own.logits, 0)
    for k in range(own.logits.size):
        inputs[k] = np.float32(own.logits[k]) * np.float32(1 / 4096)


@inline
def _update(m, own, bit):
    match.update_bit(own.state, own.maps, bit, m.state.shift, _LIMIT)


@inline
def _prefetch(m, own, position):
    match.fetch(own.least_lengths, own.table, m.data, position)


@inline
def _end_byte(m, own, position):
    """Extend or find matches, and write their predicted bytes and length class to a register for the contexts."""
    match.update_byte(own.state, own.least_lengths, own.table, m.data, position)
    match.expect(own.state, m.data)
    first, second, length = np.int64(0), np.int64(0), np.int64(0)
    for k in range(own.state.size - 1, -1, -1):
        if own.state[k].expected and own.state[k].length >= length:
            second = first
            first = own.state[k].expected
            length = own.state[k].length
    cls = min(length, 15) if length < 16 else min(12 + (length >> 4), 15)
    m.registers[context_state.MATCH] = np.uint64(first | (cls << 9) | (second << 16))


PREDICTOR = Predictor(
    _build,
    _weights,
    _gather,
    _names,
    update=_update,
    prefetch=_prefetch,
    end_byte=_end_byte,
    maps=("maps",),
    remember=_remember,
    remembers=("state", "table"),
)
