"""Arrays decode by a decoder written from docs/format.md."""

import numpy as np
import pytest

from squeeze.codecs.array import coder
from squeeze.codecs.array.layout import FLOAT, SIGNED, Layout
from tests.makers import arrays
from tests.references import naive_array

CASES = {
    "sorted keys": (Layout(4, big=1), arrays.keys(60)),
    "times": (Layout(8, 1, SIGNED), arrays.times(50)),
    "doubles": (Layout(8, 1, FLOAT), arrays.waves(40)),
    "decimals": (Layout(8, 1, FLOAT), arrays.walk(40)),
    "decimals, and missing ones": (Layout(8, 2, FLOAT, 0, 3), b"two" + arrays.prices(70)),
    "columns of floats": (Layout(4, 3, FLOAT, 0, 5), b"first" + arrays.points(30)),
    "shorts": (Layout(2), arrays.ramp(90)),
    "a map": (Layout(2, 1, SIGNED, 1, 0, 12), arrays.heights(9, 12)),
    "a field of doubles": (Layout(8, 1, FLOAT, 0, 0, 5), arrays.waves(40)),
    "an image of floats": (Layout(4, 3, FLOAT, 0, 0, 15), arrays.points(30)),
}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_an_array_decodes_by_the_specification(name, full):
    form, data = CASES[name]
    payload = coder.encode(np.frombuffer(data + b"\1", np.uint8), form, full)
    assert payload is not None
    assert naive_array.decode(payload, len(data) + 1) == data + b"\1"
