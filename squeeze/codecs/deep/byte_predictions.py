"""The byte network (codecs/recurrent) as a predictor of bits: three mixer inputs, and its most probable byte as a
context.

Frequencies of bytes are summed to the probability of the next bit. coder.py feeds the network and fills `counts`; its
inputs stay 0 if a preset has none.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.deep.contexts import FRESH_COUNT
from squeeze.codecs.deep.predictor import WEIGHT, Extent, Predictor
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics.bitmodels import context_state, frequencies, histories, layout, slots
from squeeze.numerics.jit import inline

TOP_PREDICTIONS = 8 * 3  # confidence classes of the most probable byte, times its next bit (none, 0, 1)
_NETWORK_WEIGHT = 0.5  # first mixer weight of the network's logit
_LIMIT = 255  # largest count of the adaptive map
_STATE = layout.fields("entry")


class BitPredictions(NamedTuple):
    """The network's frequencies, and an adaptive map of its probabilities."""

    state: Any  # a record of _STATE: entry of the map for this bit
    counts: np.ndarray  # int64 [512]: frequencies of the network
    map: np.ndarray  # uint32 [32 * TOP_PREDICTIONS * 8]: by probability, top prediction and bit place


def _build(preset: DeepPreset, extent: Extent) -> BitPredictions:
    probabilities = ((np.arange(32, dtype=np.uint32) * 2 + 1) << 26) | FRESH_COUNT
    return BitPredictions(
        state=layout.record(_STATE),
        counts=np.ones(2 * frequencies.BYTES, np.int64),
        map=np.repeat(probabilities, TOP_PREDICTIONS * 8).astype(np.uint32),
    )


def _weights(preset: DeepPreset) -> np.ndarray:
    return np.array([_NETWORK_WEIGHT if preset.network else WEIGHT, WEIGHT, WEIGHT], np.float32)


@inline
def _top_prediction(m):
    """Return the context of the most probable byte: its confidence, and the next bit of it."""
    register = np.int64(m.registers[context_state.TOP_BYTE])
    top, confidence, shift = (register & 255) | 256, (register >> 8) & 7, m.state.shift
    predicted_bit = 1 + ((top >> shift) & 1) if top >> (shift + 1) == m.state.partial else 0
    return confidence * 3 + predicted_bit


@inline
def _gather(m, own, inputs):
    if m.state.has_network:
        m.state.top_prediction = _top_prediction(m)
        p = frequencies.probability(own.counts, m.state.partial)
        m.state.network_logit = slots.STRETCH_FLOAT[p >> 4]
        inputs[0] = slots.STRETCH_FLOAT[p >> 4]
        inputs[1] = np.float32(p - 32768) * np.float32(1 / 16384)
        entry = np.int64(p >> 11) * (TOP_PREDICTIONS * 8) + m.state.top_prediction * 8 + m.state.shift
        own.state.entry = entry
        inputs[2] = slots.STRETCH_FLOAT[own.map[entry] >> np.uint32(20)]


@inline
def _update(m, own, bit):
    if m.state.has_network:
        histories.learn(own.map, own.state.entry, bit, _LIMIT)


PREDICTOR = Predictor(_build, _weights, _gather, lambda preset: ["network"] * 3, update=_update, maps=("map",))
