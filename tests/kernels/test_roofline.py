"""The roofline: what is predicted, and what is known of devices."""

import pytest
import torch

from squeeze.commands.weights import advise
from squeeze.errors import SqueezeError
from squeeze.kernels.roofline import GPUS, Constants, constants_of, fastest, known, predict


def test_a_product_takes_the_longer_of_reading_and_multiplying():
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


def test_constants_are_measured_or_published_and_others_refused():
    assert constants_of("NVIDIA H200") == constants_of("h200") == GPUS["h200"].constants()
    assert constants_of("cpu").bandwidth > 0
    with pytest.raises(SqueezeError, match="unknown device 'abacus': choose from cpu, cuda, a100, h100"):
        constants_of("abacus")
    count = torch.cuda.device_count()
    with pytest.raises(SqueezeError, match=f"this machine has no device 'cuda:{count}': choose from cpu, a100, h100"):
        constants_of(f"cuda:{count}")


@pytest.mark.parametrize("short", GPUS)
def test_a_gpu_is_known_by_its_name_and_by_that_of_the_driver(short):
    assert known(short) is known(short.upper()) is known(GPUS[short].driver) is GPUS[short]


@pytest.mark.parametrize(
    "name", ["NVIDIA L40", "NVIDIA H100 PCIe", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GB10"]
)
def test_a_name_that_only_looks_like_another_is_unknown(name):
    assert known(name) is None


def test_the_command_names_every_gpu():
    (device,) = (option for option in advise.params if option.name == "device")
    assert device.help == f"Device: cpu, cuda, {', '.join(list(GPUS)[:-1])} or {list(GPUS)[-1]}; default: cpu"
