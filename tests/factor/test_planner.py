"""The planner spends its budget where it pays."""

import pytest

from squeeze.errors import SqueezeError
from squeeze.factor.planner import Option, Unit, choose


def option(cost, bits):
    return Option("x", cost, bits)


def test_the_planner_spends_its_budget_where_it_pays():
    units = [
        Unit("a", [option(0, 100), option(1, 60), option(9, 20)]),
        Unit("b", [option(0, 100), option(5, 60)]),
        Unit("pair", [option(0.5, 120)], (Unit("c", [option(0, 100)]), Unit("d", [option(0, 100), option(4, 50)]))),
    ]
    assert set(choose(units, 400)) == {"a", "b", "c", "d"}
    chosen = choose(units, 320)
    assert set(chosen) == {"a", "b", "pair"} and sum(one.bits for one in chosen.values()) <= 320
    chosen = choose(units, 281)
    assert chosen["a"].bits == 60 and chosen["b"].bits == 100
    with pytest.raises(SqueezeError, match="the matrices need at least 25 bytes, got a budget of 12"):
        choose(units, 100)
