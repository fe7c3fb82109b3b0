"""Sounds decode by a decoder written from docs/format.md."""

import numpy as np
import pytest

from squeeze.codecs.sound import coder
from squeeze.codecs.sound.layout import Layout
from tests.makers import sounds
from tests.references import naive_sound

CASES = {
    "mono": Layout(2, 1),
    "stereo": Layout(2, 2),
    "bytes": Layout(1, 1, unsigned=1),
    "24 bits, high byte first": Layout(3, 2, big=1),
    "32 bits and a prefix": Layout(4, 1, prefix=21),
    "three channels": Layout(2, 3),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_sound_decodes_by_the_specification(name, full):
    form = CASES[name]
    made = sounds.samples(90 // form.channels, form.channels, form.bits)
    data = bytes(range(form.prefix)) + sounds.to_bytes(made, form.width, bool(form.big), bool(form.unsigned))[:-1]
    payload = coder.encode(np.frombuffer(data, np.uint8), form, full)
    assert payload is not None
    assert naive_sound.decode(payload, len(data)) == data


def test_least_squares_and_repeats_decode_by_the_specification():
    made = np.tile(sounds.samples(130, 2, 16), (2, 1))
    data = sounds.to_bytes(made, 2)
    payload = coder.encode(np.frombuffer(data, np.uint8), Layout(2, 2), True)
    assert payload is not None and len(payload) < len(data) / 3
    assert naive_sound.decode(payload, len(data)) == data
