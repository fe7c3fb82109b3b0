"""The bytewise models driven by others: an extra predictor as an input, and decisions that are not coded."""

import numpy as np
import pytest

from squeeze.codecs.bytewise import model as bytewise, presets
from squeeze.codecs.bytewise.state import build_model
from squeeze.numerics.jit import kernel
from tests.makers import inputs

PRESET = presets.MEDIUM["text"]


@kernel
def cost_with_hints(m, hints, confidence):
    """Sum the 32-bit probabilities of the right bits, with a caller's predictor that hints at each byte."""
    total = 0.0
    for position in range(m.data.size):
        byte = np.int64(m.data[position])
        bytewise.begin_byte(m)
        for shift in range(7, -1, -1):
            bytewise.gather(m)
            hint = (np.int64(hints[position]) >> shift) & 1
            m.inputs[m.state.first_extra] = confidence if hint else -confidence
            bytewise.select(m)
            probability = bytewise.mix(m)
            bit = (byte >> shift) & 1
            total += probability if bit else (1 << 32) - probability
            bytewise.learn(m, bit)
            bytewise.advance(m, bit)
        bytewise.end_byte(m, position)
    return total / 2.0**32 / (8 * m.data.size)


@kernel
def cost_of_odd_bytes(m, learn_all):
    """Return the mean probability of the right bits at odd positions; other bytes are known and not coded."""
    total = 0.0
    for position in range(m.data.size):
        byte = np.int64(m.data[position])
        bytewise.begin_byte(m)
        for shift in range(7, -1, -1):
            bytewise.gather(m)
            bit = (byte >> shift) & 1
            if position & 1 or learn_all:
                bytewise.select(m)
                probability = bytewise.mix(m)
                bytewise.learn(m, bit)
                if position & 1:
                    total += probability if bit else (1 << 32) - probability
            bytewise.advance(m, bit)
        bytewise.end_byte(m, position)
    return total / 2.0**32 / (4 * m.data.size)


def test_a_predictor_from_outside_joins_as_an_input():
    data = np.frombuffer(inputs.words(4_000), np.uint8)
    generator = np.random.default_rng(3)
    good = np.where(generator.random(data.size) < 0.9, data, 0).astype(np.uint8)
    bad = generator.integers(0, 256, data.size).astype(np.uint8)

    def cost(hints, confidence):
        return cost_with_hints(build_model(data.copy(), PRESET, extra=1), hints, confidence)

    alone = cost(bad, 0)
    assert cost(good, 8192) > alone + 0.003
    assert cost(bad, 8192) == pytest.approx(alone, abs=0.02)


def test_bits_that_are_not_coded_still_make_history():
    data = np.frombuffer(inputs.words(4_000), np.uint8)
    seen, learned = [cost_of_odd_bytes(build_model(data.copy(), PRESET), all_bits) for all_bits in (0, 1)]
    assert 0.9 < seen < 1
    assert 0.9 < learned < 1
