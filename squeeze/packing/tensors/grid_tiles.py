"""A grid for the values of a tensor: the levels, and a scale for each tile. The code of each value on it."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from squeeze.packing.tensors.content import PART, Content, InMemory, bytes_of, in_parts
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.grid_codes import codes_of_bands, from_firsts

__all__ = ["Codes", "Grid", "Tiles"]


class Tiles(NamedTuple):
    """The tiles of a tensor as a matrix of `columns`: each has `rows` and `width` columns of it, fewer at the edges."""

    values: int
    columns: int
    rows: int
    width: int

    @property
    def across(self) -> int:
        """The tiles from the left to the right edge."""
        return -(-self.columns // self.width)

    @property
    def number(self) -> int:
        bands, rest = divmod(self.values, self.rows * self.columns)
        last = -(-rest // self.width) if 0 < rest < self.columns else self.across * (rest > 0)
        return bands * self.across + last


@dataclass(frozen=True)
class Grid:
    """The scale of each tile.

    Attributes:
        kind: the levels.
        form: the type of the values, see FORMS.
        tiles: the tiles.
        scales: float32 [tiles].
        offsets: float32 [tiles] for AFFINE, else [1].
        firsts: the whole number with code 0 (INT), int16 [1] or [tiles].
        words: the values of a PALETTE, ascending.
        lows: the least whole number of each tile, int16 [tiles], if `firsts` may be these.
        codes: the code of each value, uint8, if they are kept; of a whole number, it modulo 256.
    """

    kind: int
    form: int
    tiles: Tiles
    scales: Array
    offsets: Array
    firsts: Array
    words: Array | None = None
    lows: Array | None = None
    codes: Array | None = None

    def with_lows(self) -> "Grid":
        """Return the grid with codes that count from the least whole number of each tile."""
        assert self.lows is not None
        return replace(self, firsts=self.lows)

    @property
    def arguments(self) -> tuple[object, ...]:
        """The arguments that kernels share."""
        _, columns, rows, width = self.tiles
        return self.form, self.kind, columns, rows, width, self.scales, self.offsets, self.firsts


class Codes:
    """A content with the code of each value of another one."""

    def __init__(self, content: Content, dtype: str, grid: Grid):
        self._content, self._kind, self._grid = content, WORDS[DTYPES[dtype][0]], grid
        self._width = DTYPES[dtype][0] // 8
        self.size = content.size // self._width

    def fill(self, begin: int, out: Array) -> None:
        for start in range(0, out.size, PART):
            part = out[start : start + PART]
            if self._grid.codes is not None:
                self._from_first(begin + start, part)
                continue
            first = (begin + start) * self._width
            values = bytes_of(self._content, first, first + part.size * self._width).view(self._kind)
            if self._grid.words is None:
                codes_of_bands(values, begin + start, *self._grid.arguments, part)
            else:
                part[:] = np.searchsorted(self._grid.words, values)

    def _from_first(self, begin: int, out: Array) -> None:
        """Fill `out` with codes that are kept, as differences from the first whole number."""
        assert self._grid.codes is not None
        kept, firsts, tiles = self._grid.codes[begin : begin + out.size], self._grid.firsts, self._grid.tiles
        if firsts.size == 1:
            np.subtract(kept, firsts.astype(np.uint8), out=out)
        else:
            from_firsts(kept, begin, tiles.columns, tiles.rows, tiles.width, firsts, out)

    def in_memory(self, threads: int) -> InMemory:
        """Return all codes."""
        if self._grid.codes is not None and self._grid.firsts.size == 1 and not self._grid.firsts[0]:
            return InMemory(self._grid.codes)
        out = np.empty(self.size, np.uint8)
        for _ in in_parts(lambda begin, end: self.fill(begin, out[begin:end]), self.size, PART, threads):
            pass
        return InMemory(out)
