"""Bits by name."""

import re

import pytest

from squeeze.errors import OptionError
from squeeze.quant.bits import LEFT, Bits

EXPERT, SHARED = "model.layers.3.mlp.experts.11.up_proj", "model.layers.3.mlp.shared_experts.up_proj"
ATTENTION, DENSE = "model.layers.3.self_attn.q_proj", "model.layers.0.mlp.up_proj"


def bits_of(text, name):
    bits = Bits.parse(text)
    if not isinstance(bits, Bits):
        return bits
    return next((rule.bits for rule in bits.rules if rule.fits(name)), int(bits))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("3", (3, 3, 3, 3)),
        ("experts=2", (2, 4, 4, 4)),
        ("experts=2,attention=8", (2, 4, 8, 4)),
        ("attention=8, 3", (3, 3, 8, 3)),
        ("experts=2,16", (2, LEFT, LEFT, LEFT)),
        ("mlp=3,2", (2, 3, 2, 3)),
        ("shared_experts=8,mlp=3,2", (2, 8, 2, 3)),
        ("layers.3.=2,others=8", (2, 2, 2, 8)),
    ],
)
def test_the_first_name_that_fits_counts(text, wanted):
    assert tuple(bits_of(text, name) for name in (EXPERT, SHARED, ATTENTION, DENSE)) == wanted
    bits = Bits.parse(text)
    assert Bits.parse(str(bits)) == bits and repr(Bits.parse(str(bits))) == repr(bits)


def test_a_name_is_matched_literally():
    assert not any(rule.fits("xayb") for rule in Bits.parse("a.b=2").rules)
    assert re.match(Bits.parse("a.b=2").rules[0].pattern, "x.a.b.c")


@pytest.mark.parametrize(
    "text", ["", "x", "=", "experts=", "=3", "experts", "3,4", "experts=-2", "experts=2x", "9" * 99]
)
def test_other_texts_end_in_one_line(text):
    with pytest.raises(OptionError) as caught:
        Bits.parse(text)
    assert str(caught.value).startswith("bits '") and "\n" not in str(caught.value)
