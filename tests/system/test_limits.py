"""Limits: what a file may cost, and what is said where it asks for more."""

import pytest

from squeeze.errors import LimitError, SqueezeError, printable
from squeeze.system import limits
from squeeze.system.limits import Limits


def test_memory_and_output_up_to_the_limit_are_taken():
    allowed = Limits(memory=100, output=10)
    allowed.need_memory(100, "the block")
    allowed.need_output(10)
    Limits().need_output(1 << 60)


def test_more_is_refused_by_a_line_that_names_the_limit():
    allowed = Limits(memory=1000, output=10)
    with pytest.raises(LimitError, match=r"^the block needs 1,001 bytes of memory, and the limit is 1,000: "):
        allowed.need_memory(1001, "the block")
    with pytest.raises(LimitError, match=r"^11 bytes or more .* limit is 10: raise it with `limits.output`"):
        allowed.need_output(11)
    assert issubclass(LimitError, SqueezeError)


@pytest.mark.parametrize(("free", "most"), [(1 << 30, 2 << 30), (20 << 30, 10 << 30)])
def test_by_default_half_of_the_free_memory_is_allowed_and_at_least_2_gib(monkeypatch, free, most):
    monkeypatch.setattr(limits, "free_memory", lambda: free)
    Limits().need_memory(most, "it")
    with pytest.raises(LimitError):
        Limits().need_memory(most + 1, "it")


def test_what_is_allowed_by_default_is_found_without_a_look_at_the_machine(monkeypatch):
    monkeypatch.delattr(limits, "free_memory")
    assert Limits().allows_memory(2 << 30)
    assert not Limits(memory=10).allows_memory(11)


def test_what_a_file_says_is_printed_escaped_and_short():
    assert printable("a name") == "a name"
    assert printable("a\x1b[2J\nb\ud800") == "a\\x1b[2J\\nb\\ud800"
    assert len(printable("x" * 10_000)) == 200
