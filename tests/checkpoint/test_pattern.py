"""Patterns of zeros: their names, and what they allow."""

import pytest
import torch

from squeeze.checkpoint.pattern import Pattern
from squeeze.checkpoint.sparse import combinations_of, violations
from squeeze.errors import SqueezeError

PATTERNS = ["2:4", "4:8", "6:8", "1:4", "50%", "16x50%", "3:5"]


def test_patterns_are_read_and_written():
    for text in PATTERNS:
        assert str(Pattern.parse(text)) == text
    for text, message in (
        ("2:0", "there are no groups of 0"),
        ("5:4", "N:M keeps N of M"),
        ("0:4", "N:M keeps N of M"),
        ("100%", "less than 100 %"),
        ("half", "name N:M such as 2:4"),
        ("9" * 6000 + ":4", "name N:M such as 2:4"),
    ):
        with pytest.raises(SqueezeError, match=message):
            Pattern.parse(text)
    assert len(combinations_of(2, 4)) == 6
    assert violations(Pattern(), torch.ones(2, 8)) == 4
