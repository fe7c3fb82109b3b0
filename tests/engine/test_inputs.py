"""Samples have one shape; the sample that is compared with the first differs in as much as possible."""

import pytest
import torch
from torch import nn

from squeeze.engine.inputs import Samples, arguments, check_samples, spread, varied
from squeeze.errors import SqueezeError
from squeeze.system.unchanged import digest


class Model(nn.Module):
    def forward(self, input_ids, pixels=None, use_cache=True):
        return input_ids


class Open(nn.Module):
    def forward(self, input_ids, **others):
        return input_ids


def _samples(*values):
    return Samples.of({"input_ids": torch.tensor([[value, 1]]), "pixels": torch.full((1, 2), 0.5)} for value in values)


def test_samples_of_other_shapes_are_refused():
    with pytest.raises(SqueezeError, match=r"of one shape, got x \[1, 2\] and x \[1, 3\]: pad, crop or resize them"):
        Samples.of([{"x": torch.zeros(1, 2)}, {"x": torch.zeros(1, 3)}])
    with pytest.raises(SqueezeError, match="expected calibration samples, got none"):
        Samples.of([])


def test_the_varied_sample_differs_where_any_does():
    other = varied(_samples(5, 5, 7))
    assert other["input_ids"].tolist() == [[7, 1]] and other["pixels"].tolist() == [[0.5, 0.5]]
    assert varied(torch.tensor([[1, 2, 3]]))["input_ids"].tolist() == [[3, 1, 2]]
    assert [sample["input_ids"].tolist() for sample in spread(torch.tensor([[1], [2]]))] == [[[1]], [[2]]]


def test_of_a_single_sample_tokens_and_floats_are_moved():
    ids = {"input_ids": torch.tensor([[5, 6, 7]]), "token_type_ids": torch.tensor([[0, 0, 1]])}
    others = {"grid": torch.tensor([[1, 4]]), "pixels": torch.tensor([[0.5, 0.25]])}
    found = varied(Samples.of([ids | others]))
    assert found["input_ids"].tolist() == [[7, 5, 6]] and found["token_type_ids"].tolist() == [[1, 0, 0]]
    assert found["grid"].tolist() == [[1, 4]] and found["pixels"].tolist() == [[0.25, 0.5]]


def test_a_model_is_called_without_a_cache_if_it_can_be():
    sample = {"input_ids": torch.tensor([[1]]), "pixels": torch.zeros(1, dtype=torch.bfloat16)}
    found = arguments(Model(), sample, "cpu")
    assert found["use_cache"] is False and found["pixels"].dtype == torch.float32
    assert "use_cache" not in arguments(Open(), sample, "cpu")


def test_samples_are_checked_against_the_forward():
    check_samples(Model(), _samples(1))
    with pytest.raises(SqueezeError, match="Model takes no 'sound': choose from input_ids, pixels, use_cache"):
        check_samples(Model(), Samples.of([{"sound": torch.zeros(1)}]))
    with pytest.raises(SqueezeError, match="expected finite numbers in 'pixels', got NaN or infinity"):
        check_samples(Model(), Samples.of([{"pixels": torch.tensor([torch.nan])}]))


def test_a_digest_tells_samples_apart():
    same, other = _samples(1, 2), _samples(1, 3)
    assert digest(same) == digest(_samples(1, 2)) != digest(other)
    assert digest(torch.tensor([[1]])) != digest(torch.tensor([[2]])) and digest(None) is None


def test_parts_of_a_tuple_have_their_order_whatever_that_of_the_file():
    named = {f"x.{number}": torch.full((2,), number) for number in (10, 1, 0, *range(2, 10))}
    assert [int(part[0]) for part in arguments(Open(), Samples.of([named]).samples[0], "cpu")["x"]] == list(range(11))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"x.0": 1.0, "x.2": 2.0}, "expected all parts of 'x', got none named x.1"),
        ({"x.y.1": 1.0}, "expected all parts of 'x.y', got none named x.y.0"),
        ({"x": 1.0, "x.y": 2.0}, "expected one value of 'x', got a tensor and parts of it"),
        ({"x": (torch.ones(1), None)}, "x: expected tensors and numbers, got a tuple with other values"),
        ({"x": [(1, True)]}, "x.0: expected tensors and numbers, got a tuple with other values"),
    ],
)
def test_tuples_with_gaps_are_refused(sample, message):
    with pytest.raises(SqueezeError, match=message):
        Samples.of([sample])
