"""The committed plot of the training is that of its log."""

import pytest

from training.curve import PICTURE, drawn


def test_the_committed_picture_is_what_is_drawn():
    pytest.importorskip("matplotlib")
    assert PICTURE.read_bytes() == drawn()
