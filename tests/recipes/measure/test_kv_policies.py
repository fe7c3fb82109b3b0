"""Policies and caches from the words of a user."""

from types import SimpleNamespace

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from squeeze.errors import PolicyError
from squeeze.recipes.measure.generate import Generation
from squeeze.recipes.measure.kv_policies import cache_for, memory_line


def test_refuses_a_policy_and_a_budget_together():
    with pytest.raises(PolicyError, match="`kv` and `kv_budget` exclude each other"):
        cache_for(SimpleNamespace(), None, "kivi:4", 0.5, None)


def test_without_a_cache_the_line_has_the_speed_alone():
    generated = Generation(prompt=7, tokens=10, seconds=2.0, cache=None, text="")
    assert memory_line(generated) == "10 tokens after 7, 5.0 a second"
