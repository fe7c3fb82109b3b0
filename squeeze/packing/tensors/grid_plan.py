"""The choice of a grid for a tensor: the levels, and the tiles that share a scale.

Tiles are tried from large to small: tensor, rows, columns, square blocks, and groups of 256 to 16 values in a row.
Most tensors are on no grid, which a few values tell. Nothing here affects a decoder.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from squeeze.packing.tensors.content import PART, Content, InMemory, bytes_of, in_parts
from squeeze.packing.tensors.distinct import distinct
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.grid_fit import MOST_DISTINCT, Space, fit_bands, fit_kinds
from squeeze.packing.tensors.grid_levels import AFFINE, E4M3, E5M2, FORMS, FP4, INT, NF4, PALETTE, SIGNED
from squeeze.packing.tensors.grid_tiles import Grid, Tiles
from squeeze.system.arena import allocate, thread_buffer

__all__ = ["IN_MEMORY", "LEAST", "find"]

LEAST = 512  # values: smaller tensors are not looked at, which would take longer than coding them
_KINDS = (FP4, NF4, INT, SIGNED, AFFINE, E4M3, E5M2)  # in the order in which they are tried
_TRIED = np.array(_KINDS)
_PIECES, _PIECE = 12, 32  # the first look at a tensor: so many pieces of so many values
_BLOCKS, _GROUPS = (128, 64), (256, 128, 64, 32, 16)
_MOST_BAND = 1 << 26  # bytes of a row of tiles, unless the tensor is in memory
_PALETTE = 256  # distinct values
IN_MEMORY = 1 << 26  # values whose codes are computed once
_FIRST = 1 << 12  # values among which distinct ones are counted first
_own = threading.local()


def find(content: Content, dtype: str, shape: tuple[int, ...], threads: int = 1) -> Grid | None:
    """Return the grid that all values of a tensor are on, or None."""
    width = DTYPES[dtype][0] // 8
    count = content.size // width
    if dtype not in FORMS or count < LEAST:
        return None
    search = _Search(content, dtype, count, threads)
    columns = shape[-1] if len(shape) > 1 and shape[-1] > 1 else count
    if kinds := search.possible(search.likely(columns)):
        if found := search.whole(kinds):
            return found
        widest = search.widest(kinds, columns)
        for tiles in _tilings(count, columns, shape):
            for kind in kinds:
                if tiles.width > 1 and min(tiles.width, _GROUPS[0]) > widest[kind]:
                    continue
                if found := search.tiled(tiles, kind):
                    return found
    return search.palette()


def _tilings(count: int, columns: int, shape: tuple[int, ...]) -> Iterator[Tiles]:
    whole_rows = prod(shape[1:])
    if whole_rows not in (columns, count) and len(shape) > 2:
        yield Tiles(count, whole_rows, 1, whole_rows)
    if columns < count:
        yield Tiles(count, columns, 1, columns)
        yield Tiles(count, columns, count // columns, 1)
        for side in _BLOCKS:
            if side < count // columns or side < columns:
                yield Tiles(count, columns, side, side)
    for group in _GROUPS:
        if group < columns or columns == count:
            yield Tiles(count, group, 1, group)


@dataclass(frozen=True)
class _Search:
    """The search for the grid of a tensor of `count` values."""

    content: Content
    dtype: str
    count: int
    threads: int

    @property
    def form(self) -> int:
        return FORMS[self.dtype]

    @property
    def kind_of_words(self) -> type:
        return WORDS[DTYPES[self.dtype][0]]

    def words(self, first: int, last: int) -> Array:
        """Return some values, until this thread's next call."""
        width = DTYPES[self.dtype][0] // 8
        values: Array = bytes_of(self.content, first * width, last * width).view(self.kind_of_words)
        return values

    def likely(self, columns: int) -> list[int]:
        """Return the kinds of levels that a few pieces of rows, or of columns, are on."""
        rows = self.count // columns
        return self._fitting(columns, rows, 1) or self._fitting(rows, columns, columns)

    def _fitting(self, length: int, lines: int, step: int) -> list[int]:
        """Return the kinds of levels that pieces of lines are on, whose values are `step` apart; step 1 is a row."""
        size = min(_PIECE, length)
        if step > 1 and size < _PIECE:
            return []
        between, numbers = length if step == 1 else 1, np.arange(_PIECES)
        inside = (numbers * 5 % _PIECES) * (length // size) // _PIECES * size
        begins = numbers * lines // _PIECES * between + inside * step
        pieces = self._pieces(begins, size, step)
        half = size if size % 2 else size // 2
        widths = np.where(_TRIED == AFFINE, size, half)  # an offset is that of a whole group
        fits, tiles = np.empty(len(_KINDS), np.uint8), pieces.size // half
        found = *np.empty((2, tiles), np.float32), *np.empty((2, tiles), np.int16), np.empty(pieces.size, np.uint8)
        fit_kinds(pieces, self.form, _TRIED, widths, fits, *found, *_space().arrays)
        return [kind for kind, is_fit in zip(_KINDS, fits, strict=True) if is_fit]

    def widest(self, kinds: list[int], columns: int) -> dict[int, int]:
        """Return the width of the widest group that the first values of a row fit as, 0 for none, by kind of levels."""
        found = dict.fromkeys(kinds, 0)
        for width in (min(group, columns) for group in _GROUPS):
            rest = [kind for kind in kinds if not found[kind]]
            if not rest:
                break
            fits, tried = np.empty(len(rest), np.uint8), np.array(rest)
            room = *np.empty((2, 1), np.float32), *np.empty((2, 1), np.int16), np.empty(width, np.uint8)
            widths = np.full(len(rest), width)
            fit_kinds(self.words(0, width), self.form, tried, widths, fits, *room, *_space().arrays)
            known = _GROUPS[0] if width == columns else width
            found |= {kind: known for kind, is_fit in zip(rest, fits, strict=True) if is_fit}
        return found

    def _pieces(self, begins: Array, size: int, step: int) -> Array:
        """Return pieces of `size` values that are `step` apart, end to end. begins: their first values."""
        places = begins[:, None] + step * np.arange(size)
        if isinstance(self.content, InMemory):
            found: Array = self.content.data.view(self.kind_of_words)[places.reshape(-1)]
            return found
        pieces: Array = np.empty(places.shape, self.kind_of_words)
        for row, piece in zip(places.tolist(), pieces, strict=True):
            if step == 1:
                piece[:] = self.words(row[0], row[-1] + 1)
            else:
                for k, place in enumerate(row):
                    piece[k : k + 1] = self.words(place, place + 1)
        return pieces.reshape(-1)

    def possible(self, kinds: list[int]) -> list[int]:
        """Return the kinds without those that have no -0, if there is one."""
        if not {INT, AFFINE} & set(kinds):
            return kinds
        minus_zero = 1 << (DTYPES[self.dtype][0] - 1)
        for begin, end in pairwise([*range(0, self.count, PART), self.count]):
            words = self.words(begin, end)
            if np.equal(words, minus_zero, out=thread_buffer("minus zeros", words.size).view(bool)).any():
                return [kind for kind in kinds if kind not in (INT, AFFINE)]
        return kinds

    def whole(self, kinds: list[int]) -> Grid | None:
        """Return a grid with one scale."""
        words = self._distinct(MOST_DISTINCT)
        if words is None:
            return None
        one = Tiles(words.size, words.size, 1, words.size)
        for kind in kinds:
            if (found := _fitted(words, self.form, kind, one)) is not None:
                return _grid(kind, self.form, Tiles(self.count, self.count, 1, self.count), *found)
        return None

    def palette(self) -> Grid | None:
        """Return a grid of the values themselves, if there are few."""
        words = self._distinct(_PALETTE)
        if words is None:
            return None
        none, tiles = np.zeros(1, np.float32), Tiles(self.count, self.count, 1, self.count)
        ascending: Array = np.sort(words.astype(self.kind_of_words))
        return Grid(PALETTE, self.form, tiles, none, none, np.zeros(1, np.int16), ascending)

    def _distinct(self, most: int) -> Array | None:
        """Return the distinct words, or None if there are more than `most`."""
        space, count = _space(), 0
        slots = space.slots
        try:
            edges = [0, *range(_FIRST, self.count, PART), self.count]  # the first values are mostly enough
            for begin, end in pairwise(edges):
                values = self.words(begin, end)
                count = distinct(values, count, most, slots, space.words)
                if count < 0:
                    return None
            return space.words[:count].copy()
        finally:
            slots[:] = 0

    def _fits_first(self, tiles: Tiles, kind: int) -> bool:
        """Return whether the first tile fits."""
        rows, width = min(tiles.rows, self.count // tiles.columns), tiles.width
        if tiles.rows == 1 or not isinstance(self.content, InMemory):
            values, one = self.words(0, min(rows * tiles.columns, self.count)), tiles
        else:
            matrix: Array = self.content.data.view(self.kind_of_words)[: rows * tiles.columns].reshape(
                rows, tiles.columns
            )
            values, one = np.ascontiguousarray(matrix[:, :width]).reshape(-1), Tiles(0, width, rows, width)
        return _fitted(values, self.form, kind, one._replace(values=values.size)) is not None

    def tiled(self, tiles: Tiles, kind: int) -> Grid | None:
        """Return a grid with a scale for each tile."""
        band, width = tiles.rows * tiles.columns, DTYPES[self.dtype][0] // 8
        if band * width > _MOST_BAND and not isinstance(self.content, InMemory):
            return None
        parts: list[tuple[Array, ...]] = []
        step = max(PART // (band * width), 1) * band

        def work(first: int, last: int) -> tuple[Array, ...] | None:
            here = codes[first:last] if codes.size else None
            return _fitted(self.words(first, last), self.form, kind, tiles._replace(values=last - first), here)

        if not self._fits_first(tiles, kind):
            return None
        codes = allocate(self.count if self.count <= IN_MEMORY else 0)
        for found in in_parts(work, self.count, step, self.threads):
            if found is None:
                return None
            parts.append(found)
        grid = _grid(kind, self.form, tiles, *(np.concatenate(column) for column in zip(*parts, strict=True)))
        return replace(grid, codes=codes) if grid and codes.size else grid


def _fitted(words: Array, form: int, kind: int, tiles: Tiles, codes: Array | None = None) -> tuple[Array, ...] | None:
    """Return scales, offsets, least and greatest codes of the tiles of some words, or None if any does not fit.

    codes: filled with the code of each word, or None.
    """
    number, codes = tiles.number, thread_buffer("codes of a grid", words.size) if codes is None else codes
    found = np.empty(number, np.float32), np.empty(number, np.float32), *np.empty((2, number), np.int16)
    fits = fit_bands(words, form, kind, tiles.columns, tiles.rows, tiles.width, *found, codes, *_space().arrays)
    return found if fits else None


def _grid(kind: int, form: int, tiles: Tiles, scales: Array, offsets: Array, lows: Array, highs: Array) -> Grid | None:
    least = np.array([lows.min()], np.int16) if kind == INT else np.zeros(1, np.int16)
    if kind == INT and int(highs.max()) - int(lows.min()) > 255:
        if (highs.astype(np.int64) - lows).max() > 255:
            return None
        least = lows
    differ = kind == INT and lows.size > 1 and (lows != lows[0]).any()
    offsets = offsets if kind == AFFINE else np.zeros(1, np.float32)
    return Grid(kind, form, tiles, scales, offsets, least, None, lows if differ else None)


def _space() -> Space:
    if not hasattr(_own, "space"):
        _own.space = Space()
    own: Space = _own.space
    return own
