"""Entropy coding of coefficients: every array comes back, near its entropy, and damaged codes end in an error."""

import numpy as np
import pytest

from squeeze.errors import DamagedError
from squeeze.kv.archive import coefficients


def laplacian(tokens: int, deviations: np.ndarray, seed: int = 0) -> np.ndarray:
    draws = np.random.default_rng(seed).laplace(size=(tokens, deviations.size)) * deviations
    return np.round(draws).astype(np.int32)


def magnitudes(values: np.ndarray) -> np.ndarray:
    return np.clip(np.abs(values.astype(np.int64)).mean(0) * 256, 1, 1 << 30).astype(np.int32)


CASES = {
    "nothing": np.zeros((0, 3), np.int32),
    "no channels": np.zeros((5, 0), np.int32),
    "zeros": np.zeros((40, 7), np.int32),
    "large": np.array([[coefficients.MOST, -coefficients.MOST, 15, -16, 30, 31]] * 3, np.int32),
    "one token": laplacian(1, np.linspace(9, 0.1, 50)),
    "noise that takes several bytes each": np.random.default_rng(3).integers(-(1 << 24), 1 << 24, (300, 20), np.int32),
    "many": laplacian(200, np.geomspace(300, 0.05, 60)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_decoded_is_what_was_encoded(name):
    values = CASES[name]
    expected = magnitudes(values) if len(values) else np.ones(values.shape[1], np.int32)
    coded = coefficients.encode(values, expected)
    assert np.array_equal(coefficients.decode(coded, len(values), expected), values)


def test_a_code_is_near_the_entropy_of_its_channels():
    values = laplacian(2000, np.geomspace(20, 0.2, 24))
    entropy = 0.0
    for channel in values.T:
        share = np.unique(channel, return_counts=True)[1] / len(channel)
        entropy -= len(channel) * float((share * np.log2(share)).sum())
    assert 8 * coefficients.encode(values, magnitudes(values)).size < 1.04 * entropy


def test_tokens_of_one_size_cost_less():
    """Compare tokens that are loud in all channels, so that the first ones tell of the others, with shuffled ones."""
    values = laplacian(400, np.full(64, 1.0))
    scales = np.random.default_rng(1).choice([0.3, 6.0], 400)[:, None]
    loud = np.round(values * scales).astype(np.int32)
    shuffled = np.random.default_rng(2).permuted(loud, axis=0)
    sizes = [coefficients.encode(one, magnitudes(one)).size for one in (loud, shuffled)]
    assert sizes[0] < 0.9 * sizes[1]


@pytest.mark.parametrize("kept", [0, 1, 100])
def test_a_code_that_ends_too_early_is_damaged(kept):
    values = laplacian(400, np.full(16, 5.0))
    coded = coefficients.encode(values, magnitudes(values))
    with pytest.raises(DamagedError, match="end too early"):
        coefficients.decode(coded[:kept].copy(), len(values), magnitudes(values))
