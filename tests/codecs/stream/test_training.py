"""Training of dictionaries: how samples are divided."""

import numpy as np

from squeeze.codecs.stream import training


def test_text_and_learning_share_the_samples():
    pieces = [np.zeros(100, np.uint8)] * 100
    text, rest = training._divide(pieces, 2_000)
    assert (len(text), len(rest)) == (20, 80)
    text, rest = training._divide(pieces, 1 << 20)
    assert (len(text), len(rest)) == (50, 50)
