"""Numbers are coded bit by bit, and come back, in both directions by the same kernel."""

import numpy as np

from squeeze.codecs.jpeg import numbers, state
from squeeze.codecs.jpeg.frame import parse
from squeeze.codecs.jpeg.image import open_image
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import kernel
from tests.makers import jpegs

VALUES = np.array([0, 1, -1, 2, -3, 7, 100, -1000, (1 << 20) - 1, 1 - (1 << 20), (1 << 21) - 1, 0, 0, 5], np.int64)


@kernel
def code_all(m, coder, coded, values, decoding):
    for i in range(values.size):
        for k in range(state.CONTEXTS):
            numbers.set_context(m, k, i & 1, k, -k, 2047)
        numbers.choose(m, 3, 4, 5, 6, 7, 8)
        values[i] = numbers.code_number(m, coder, coded, values[i], decoding)


def test_numbers_of_up_to_21_bits_come_back():
    frame = parse(open_image(jpegs.by_hand(16, 16)).header)
    coder, coded = np.zeros(3, np.uint64), np.zeros(4000, np.uint8)
    arithmetic.start_encoder(coder)
    code_all(state.fresh(frame, np.zeros((4, 64), np.int16)), coder, coded, VALUES.copy(), False)
    size = arithmetic.finish_encoder(coder, coded)
    found = np.zeros_like(VALUES)
    arithmetic.start_decoder(coder, coded[:size])
    code_all(state.fresh(frame, np.zeros((4, 64), np.int16)), coder, coded[:size], found, True)
    assert found.tolist() == VALUES.tolist()
