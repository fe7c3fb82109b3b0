"""The policy of archives: fewer bits cost more, files hold it, and what does not fit is refused."""

import math
from dataclasses import replace

import pytest
import torch

from squeeze.errors import FormatError, PolicyError, SqueezeError
from squeeze.kv.archive import calibrate
from squeeze.kv.archive.calibrate import archive_policy
from squeeze.kv.archive.policy import Archive, Basis
from squeeze.kv.policies import load_policy, save_policy
from squeeze.kv.statistics import Observed, observe
from tests.makers.kv_models import gpt2, llama, tokens


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def statistics(model):
    return observe(model, tokens(length=900)[0], context=150, windows=2, window=16, joint=6)


def states(basis: Basis, count: int = 300) -> torch.Tensor:
    """Draw states with the covariance that a basis stands for."""
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(count, basis.kept, generator=generator) * basis.magnitudes / (0.7 * 256)
    return basis.backward(values, 1.0)


def test_layers_share_a_basis(statistics, model):
    policy = archive_policy(model, statistics, 2)
    (basis,) = policy.bases
    assert basis.layers == (0, 1) and basis.heads == 2 and basis.mean.shape == (8, 8)
    wide = basis.vectors.float()
    torch.testing.assert_close(wide.T @ wide, torch.eye(basis.kept), rtol=0, atol=2e-3)


def test_bits_are_the_entropy_of_rounded_coefficients():
    deviations = torch.tensor([0.05, 0.3, 1.0, 4.0, 40.0], dtype=torch.float64)
    draws = (torch.randn(5, 400_000, generator=torch.Generator().manual_seed(0)) * deviations[:, None]).round()
    for expected, row in zip(calibrate._entropy(deviations), draws, strict=True):
        share = row.unique(return_counts=True)[1] / len(row)
        assert float(expected) == pytest.approx(-float((share * share.log2()).sum()), abs=0.01)


def test_fewer_bits_keep_less(statistics, model):
    policies = [archive_policy(model, statistics, bits) for bits in (4, 2, 0.5)]
    steps, kept = zip(*((policy.step, policy.bases[0].kept) for policy in policies), strict=True)
    assert steps[0] < steps[1] < steps[2] and kept[0] >= kept[1] > kept[2]


def test_the_error_is_a_part_of_a_step(statistics, model):
    """Check that each coefficient is off by at most half of a step, and recent ones by a quarter."""
    policy = archive_policy(model, statistics, 3, window=10)
    (basis,) = policy.bases
    x = states(basis) * policy.step
    found = policy.quantised(basis, x)
    errors = (basis.forward(x, policy.step) - torch.from_numpy(found) / policy._gains(len(x))).abs()
    assert errors.max() <= 0.501 and errors[-10:].max() <= 0.251
    again = basis.forward(policy.restored(basis, found), policy.step)
    torch.testing.assert_close(again, torch.from_numpy(found) / policy._gains(len(x)), rtol=0.02, atol=0.05)


def test_states_far_from_all_calibration_are_refused(statistics, model):
    policy = archive_policy(model, statistics, 3)
    (basis,) = policy.bases
    for bad in (1e30, math.nan):
        with pytest.raises(SqueezeError, match="far from all that the policy was calibrated on"):
            policy.quantised(basis, torch.full((4, *basis.mean.shape), bad))


def test_bits_and_statistics_are_checked(statistics, model):
    for bits in (0, 9, math.nan):
        with pytest.raises(PolicyError, match=r"bits must be from 0\.05 to 8, got"):
            archive_policy(model, statistics, bits)
    with pytest.raises(PolicyError, match="needs joint moments"):
        archive_policy(model, Observed(statistics), 1)


def test_a_policy_file_holds_it(statistics, model, tmp_path):
    policy = archive_policy(model, statistics, 1.5, sinks=2)
    save_policy(policy, tmp_path / "a.safetensors")
    again = load_policy(tmp_path / "a.safetensors")
    assert isinstance(again, Archive) and repr(again) == repr(policy) == "Archive(bits=1.500, sinks=2, window=64)"
    mine, other = policy.to_tensors()[1], again.to_tensors()[1]
    assert mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


WRONG = {
    "a step of 0": {"step": 0.0},
    "a step that is an integer": {"step": 1},
    "negative sinks": {"sinks": -1},
    "a layer twice": {"layers": [[0, 0]]},
    "layers out of order": {"layers": [[1, 0]]},
    "a negative layer": {"layers": [[-1, 0]]},
    "no layers": {"layers": [[]]},
    "layers that are texts": {"layers": [["0", "1"]]},
    "three layers": {"layers": [[0, 1, 2]]},
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_description_is_refused(fault, statistics, model):
    plain, tensors = archive_policy(model, statistics, 1.5).to_tensors()
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Archive.from_tensors(plain | WRONG[fault], tensors)


@pytest.mark.parametrize("name", ["0.lower", "0.mean", "0.vectors", "0.magnitudes", "frequencies"])
def test_wrong_tensors_are_refused(name, statistics, model):
    plain, tensors = archive_policy(model, statistics, 1.5).to_tensors()
    longer = torch.cat([tensors[name], tensors[name]])
    for wrong in (longer, tensors[name].double(), tensors[name].float() * math.nan):
        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            Archive.from_tensors(plain, tensors | {name: wrong})
    with pytest.raises(KeyError):
        Archive.from_tensors(plain, {key: tensor for key, tensor in tensors.items() if key != "0.mean"})


def test_a_file_with_another_model_is_refused(statistics, model, tmp_path):
    policy = archive_policy(model, statistics, 1.5)
    with pytest.raises(PolicyError, match="calibrated for another model"):
        policy.check_layers({0: (2, 8)})
    (tmp_path / "a.safetensors").write_bytes(b"not a policy")
    with pytest.raises(FormatError):
        load_policy(tmp_path / "a.safetensors")


def test_models_without_a_rotary_embedding():
    model = gpt2()
    found = observe(model, tokens(length=400)[0], context=200, windows=2, window=16, joint=2)
    policy = archive_policy(model, found, 2)
    assert policy.frequencies is None and "frequencies" not in policy.to_tensors()[1]
    assert replace(policy, sinks=0).sinks == 0
