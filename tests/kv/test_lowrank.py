"""Keys and values of low rank."""

import pytest

from squeeze.kv.lowrank import low_rank_policy
from tests.makers.kv_models import calibrated_on_text, error_of, gpt2, llama


@pytest.fixture(scope="module", params=[llama, gpt2])
def calibrated(request):
    return calibrated_on_text(request.param())


def test_leading_components_hold_nearly_all(calibrated):
    model, statistics = calibrated
    assert error_of(model, low_rank_policy(model, statistics, rank=8, bits=6, window=16)) < 0.06
