"""Choice of the family and rank of each matrix: the smallest rise of the model's loss for a given size.

Every option of a matrix, or of a pair, has stored bits and a predicted rise of the loss (curvature.py). Options are
taken at one price of a bit for the whole model (Lagrange's), found by bisection; the rest of the budget goes to the
best single exchanges. A matrix for which no option pays stays whole. Making options is left to the callers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from squeeze.engine.method import Method
from squeeze.errors import SqueezeError

__all__ = ["Option", "Unit", "choose"]

_BISECTIONS = 100


@dataclass(frozen=True)
class Option:
    """One way to store a matrix.

    Attributes:
        family: its name in reports.
        cost: rise of the loss, nats a token.
        bits: stored.
        method: that makes it; None if the option is one of several matrices and `edit` says what becomes of them:
            (what, how much).
    """

    family: str
    cost: float
    bits: float
    method: Method | None = None
    edit: tuple[str, int] | None = None


@dataclass(frozen=True)
class Unit:
    """Options of one matrix; or of several at once (`pair`), instead of those of `parts`, a unit each."""

    name: str
    options: Sequence[Option] = ()
    parts: tuple["Unit", ...] = ()

    def best(self, price: float) -> dict[str, Option]:
        """Return the options with the least cost + price * bits, by name of a unit."""
        whole = min(self.options, key=lambda one: one.cost + price * one.bits, default=None)
        apart: dict[str, Option] = {}
        for part in self.parts:
            apart |= part.best(price)
        if whole is None or (apart and _total(apart, price) <= whole.cost + price * whole.bits):
            return apart
        return {self.name: whole}

    def by_name(self) -> dict[str, "Unit"]:
        units = {self.name: self} if self.options else {}
        for part in self.parts:
            units |= part.by_name()
        return units


def _total(chosen: Mapping[str, Option], price: float) -> float:
    return sum(one.cost + price * one.bits for one in chosen.values())


def choose(units: Sequence[Unit], budget: int) -> dict[str, Option]:
    """Return options of at most `budget` bits in total, by unit. Raises SqueezeError if the smallest are larger."""

    def best_at(price: float) -> dict[str, Option]:
        options: dict[str, Option] = {}
        for unit in units:
            options |= unit.best(price)
        return options

    def size(chosen: Mapping[str, Option]) -> float:
        return sum(one.bits for one in chosen.values())

    low, high = 0.0, 1e-12
    if size(best_at(0.0)) <= budget:
        return best_at(0.0)
    while size(best_at(high)) > budget:
        high *= 4
        if high > 1e12:
            raise SqueezeError(
                f"the matrices need at least {int(size(best_at(high))) // 8} bytes, got a budget of {budget // 8}"
            )
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if size(best_at(middle)) > budget else (low, middle)
    return _spend(units, best_at(high), budget - size(best_at(high)))


def _spend(units: Sequence[Unit], chosen: dict[str, Option], remaining: float) -> dict[str, Option]:
    """Exchange options, one by one, for those that lower the cost most for each bit of the remaining budget."""
    by_name: dict[str, Unit] = {}
    for unit in units:
        by_name |= unit.by_name()
    chosen = dict(chosen)
    while True:
        exchanges = [
            ((before.cost - after.cost) / max(after.bits - before.bits, 1), name, after)
            for name, before in chosen.items()
            for after in by_name[name].options
            if after.cost < before.cost and after.bits - before.bits <= remaining
        ]
        if not exchanges:
            return chosen
        _, name, after = max(exchanges, key=lambda one: one[0])
        remaining -= after.bits - chosen[name].bits
        chosen[name] = after
