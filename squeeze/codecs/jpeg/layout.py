"""The layout of a JPEG image: its components and scans, and the order of coefficients (ITU-T T.81)."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

__all__ = ["ZIGZAG", "Component", "Frame", "Range", "Scan"]


def _zigzag(place: int) -> tuple[int, int]:
    row, column = divmod(place, 8)
    return row + column, row if (row + column) % 2 else -row


ZIGZAG = np.array(sorted(range(64), key=_zigzag), np.int64)  # the place of each coefficient in the order of scans


class Range(NamedTuple):
    """The bytes from `begin` up to `end`."""

    begin: int
    end: int


@dataclass(frozen=True)
class Component:
    """A component of an image, such as luma.

    Attributes:
        number: Its identifier.
        across, down: Its blocks in an MCU.
        columns, rows: Its blocks.
        wide, high: Its blocks up to the end of the last MCU of each row and column.
        first: The index of its first block among those of all components.
        steps: int64 [64], the quantisation steps, in the order of rows of a block.
    """

    number: int
    across: int
    down: int
    columns: int
    rows: int
    wide: int
    high: int
    first: int
    steps: np.ndarray


@dataclass(frozen=True)
class Scan:
    """A scan: its components with the numbers of their codes, and the coefficients and bits that it has.

    Attributes:
        components: Indices of its components.
        dc, ac: The code tables of each.
        first, last: The first and the last coefficient, in the order of scans.
        above, low: The bit positions of the scan before and of this one.
        restart: MCUs between restart markers, or 0.
        codes: uint8 [8, 272]: for DC and AC tables, the number of codes of each length and their symbols.
    """

    components: tuple[int, ...]
    dc: tuple[int, ...]
    ac: tuple[int, ...]
    first: int
    last: int
    above: int
    low: int
    restart: int
    codes: np.ndarray


@dataclass(frozen=True)
class Frame:
    """An image: its components and scans."""

    progressive: bool
    components: tuple[Component, ...]
    scans: tuple[Scan, ...]

    @property
    def blocks(self) -> int:
        """The number of blocks of all components."""
        return sum(component.wide * component.high for component in self.components)
