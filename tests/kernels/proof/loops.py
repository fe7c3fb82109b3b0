"""The loops of a kernel, as its SASS has them, and what a turn of the main one does besides products."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["Turn", "listing", "main_turn"]

_SASS = re.compile(r"^\s*(?:(\.L_x_\d+):|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?\s*([A-Z][\w.]*)([^;\n]*);)", re.MULTILINE)
_LABEL = re.compile(r"\.L_x_\d+")
_PRODUCTS = ("HMMA", "HGMMA", "UTCHMMA")


@dataclass(frozen=True)
class Turn:
    """Instructions of a thread in a turn of a loop.

    converted: between integers and floats. moved: bytes of registers that are put elsewhere, in the same thread or
    another. stored, loaded: to and from shared memory. waited: loads from memory into registers. copied: from memory to
    shared memory, for a later turn. products: on tensor cores.
    """

    instructions: int
    converted: int
    moved: int
    stored: int
    loaded: int
    barriers: int
    waited: int
    copied: int
    products: int


def listing(sass: str) -> tuple[list[str], dict[int, int]]:
    """The names of instructions, and for the number of each that begins a loop, that of its last."""
    names: list[str] = []
    places: dict[str, int] = {}
    ends: dict[int, int] = {}
    for label, name, operands in _SASS.findall(sass):
        if label:
            places[label] = len(names)
            continue
        target = _LABEL.search(operands)
        if target and places.get(target[0], len(names)) < len(names):
            ends[places[target[0]]] = len(names)
        names.append(name)
    return names, ends


def main_turn(sass: str) -> Turn | None:
    """Of the loop with the most products, and of several the shortest. None where no loop has any."""
    names, ends = listing(sass)
    kinds = [Counter(name.split(".")[0] for name in names[first : last + 1]) for first, last in ends.items()]
    found = max(kinds, key=lambda kind: (_count(kind, *_PRODUCTS), -kind.total()), default=Counter[str]())
    if not _count(found, *_PRODUCTS):
        return None
    return Turn(
        *(found.total(), _count(found, "I2F", "F2F", "F2FP", "I2FP", "F2I"), _count(found, "PRMT", "SHFL")),
        *(_count(found, "STS", "STSM"), _count(found, "LDS", "LDSM"), found["BAR"]),
        *(found["LDG"], found["LDGSTS"], _count(found, *_PRODUCTS)),
    )


def _count(kinds: Counter[str], *names: str) -> int:
    return sum(kinds[name] for name in names)
