"""Bits of heads chosen by calibration."""

import pytest

from squeeze.errors import PolicyError
from squeeze.kv import KIVI, Rotated
from squeeze.kv.bit_allocation import bits_by_head
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.measure import nominal_bits
from squeeze.kv.statistics import KVStatistics
from tests.makers.kv_models import calibrated_on_text, llama


@pytest.fixture(scope="module")
def calibrated():
    return calibrated_on_text(llama())


@pytest.mark.parametrize("policy", [KIVI(group=16, window=16), Rotated(window=16)], ids=repr)
def test_costly_heads_get_more_bits_within_the_budget(calibrated, policy):
    model, statistics = calibrated
    for bits in (5.5, 7.0):
        found = bits_by_head(model, statistics, policy, bits)
        assert bits - 1.5 < nominal_bits(found, model) <= bits
    costly = [value.clone() for value in statistics[1].fisher]
    costly[0][1] *= 1e6
    changed = statistics | {1: KVStatistics(statistics[1].mean, statistics[1].moment, costly,
                                                    statistics[1].sample)}  # fmt: skip
    assert bits_by_head(model, changed, policy, 7.0).bits[1][1] == 8


def test_refuses_a_budget_or_a_policy_that_cannot_be_allocated(calibrated):
    model, statistics = calibrated
    with pytest.raises(PolicyError, match=r"expected at least 5\.0"):
        bits_by_head(model, statistics, KIVI(group=16, window=16), 2)
    with pytest.raises(PolicyError, match="BlockFloat does not support bits per head"):
        bits_by_head(model, statistics, BlockFloat(), 4)
    with pytest.raises(PolicyError, match="are shorter than a block of 512 tokens"):
        bits_by_head(model, statistics, KIVI(group=512), 4)
