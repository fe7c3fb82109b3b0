"""The roofline: what is predicted, and what is known of devices."""

import pytest

from squeeze.errors import SqueezeError
from squeeze.kernels.roofline import KNOWN, Constants, constants_of, fastest, predict


def test_the_roofline():
    constants = Constants(1e12, 1e14, 1.5, 0.8, 0.0, "given")
    one = predict(constants, 4096, 4096, 1, 16)
    assert one["dense"] == pytest.approx(2 * 4096**2 / 1e12, rel=1e-2)
    assert one["kernel"] == pytest.approx(one["dense"] * 1.125 / 2 / 0.8, rel=1e-2)
    assert fastest(constants, 4096, 4096, 1, 16) == "structured"  # which reads as little, and at the full bandwidth
    many = predict(constants, 4096, 4096, 4096, 16)
    assert many["dense"] == pytest.approx(1.5 * many["structured"])
    four = predict(constants, 4096, 4096, 1, 4)
    assert "structured" not in four and four["kernel"] < four["dense"]
    no_kernels = Constants(1e12, 1e14, 0.0, 0.0, 0.0, "given")
    assert fastest(no_kernels, 4096, 4096, 1, 16) == "dense"


def test_what_is_known_of_devices():
    assert constants_of("NVIDIA H200") is KNOWN["h200"]
    assert constants_of("cpu").bandwidth > 0
    with pytest.raises(SqueezeError, match="nothing is known of the device 'abacus'"):
        constants_of("abacus")
