"""The rows of an image, or of each pass of an interlaced one: in the file, without filters, and coded."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from squeeze.codecs.image import nearby, state
from squeeze.codecs.image.bilevel import BilevelModel
from squeeze.codecs.image.bilevel_rows import code_rows as code_bilevel_rows
from squeeze.codecs.image.filters import Filtered, add_filters, code_filter, remove_filters
from squeeze.codecs.image.flat import code_pixel, is_flat
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.model import code_byte
from squeeze.codecs.image.predictions import learn_nearby
from squeeze.codecs.image.state import PIXELS, ROW_FILTERS, ImageModel
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import kernel

__all__ = ["Model", "Progress", "Section", "empty_rows", "read_rows", "sections_of", "write_rows"]

_STEP = 1 << 15  # bytes between two reports of progress
Model = ImageModel | BilevelModel
Progress = Callable[[int], None] | None


@kernel
def _code_rows(m: ImageModel, coder, coded, begin, end, row, count, decoding):
    """Code rows, each with its filter after it.

    Args:
        m: The model of the image.
        coder: The arithmetic coder.
        coded: Its bytes.
        begin: Where the first row begins in the data of the model.
        end: Where the image or pass ends.
        row: The number of the first row.
        count: The number of rows.
        decoding: The direction.

    Returns:
        Whether there was room for the coded bytes, or enough of them.
    """
    i, stride = begin, m.state.stride
    for at in range(row, row + count):
        m.state.column, m.state.line = 0, at
        size = min(stride, end - i)
        stop = i + size
        if m.state.phase == ROW_FILTERS:
            i = stop
        while i < stop:
            if arithmetic.is_over(coder, coded, decoding):
                return False
            if i + m.state.pixel <= stop and is_flat(m, i) and code_pixel(m, coder, coded, i, decoding):
                i += m.state.pixel
                continue
            if m.sums.shape[1]:
                nearby.solve(m)
            code_byte(m, coder, coded, i, decoding)
            if m.sums.shape[1]:
                learn_nearby(m, i)
            i += 1
        if m.sums.shape[1] and m.state.phase != ROW_FILTERS:
            nearby.end_row(m, min(size, m.state.row))
        if m.filters.size and m.state.phase != PIXELS and not code_filter(m, coder, coded, at, i, size, decoding):
            return False
    return True


class Section(NamedTuple):
    """The image, or a pass of an interlaced one, in the data of the model and in that of the file."""

    begin: int
    end: int
    stride: int
    first: int  # number of its first row
    rows: int
    at: int  # where it begins in the file, with its filters

    def code(self, m: Model, coder: np.ndarray, coded: np.ndarray, decoding: bool, progress: Progress) -> bool:
        """Code the rows, and return whether there was room for the coded bytes, or enough of them."""
        m.state.stride, m.state.row, m.state.first = self.stride, self.stride - m.state.padding, self.first
        m.state.up = state.up_of(self.stride, m.state.pixel)
        if isinstance(m, BilevelModel):
            m.lines.fill(0)  # of the section before
        else:
            m.sums.fill(0)
            m.left.fill(0)
        code_rows = code_bilevel_rows if isinstance(m, BilevelModel) else _code_rows
        step = max(_STEP // self.stride, 1)
        for row in range(0, self.rows, step):
            count, begin = min(step, self.rows - row), self.begin + row * self.stride
            if not code_rows(m, coder, coded, begin, self.end, self.first + row, count, decoding):
                return False
            if progress:
                progress(min(count * self.stride, self.end - begin) + count * (m.filters.size > 0))
        return True


def sections_of(form: Layout, length: int) -> list[Section]:
    """Return the sections of an image of `length` bytes with its prefix."""
    sections, begin, first, at = list[Section](), state.margin(form), 0, form.prefix
    for size, stride in form.sections(length - form.prefix) or ():
        rows = -(-size // stride) if form.height else -(-(length - at) // (stride + form.filtered))
        sections.append(Section(begin, begin + size, stride, first, rows, at))
        begin, first, at = begin + size, first + rows, at + size + form.filtered * rows
    return sections


def empty_rows(form: Layout, sections: list[Section]) -> Filtered:
    rows = sections[-1].first + sections[-1].rows if sections and form.filtered else 0
    return Filtered.empty(sections[-1].end if sections else state.margin(form), rows)


def read_rows(raw: np.ndarray, rows: Filtered, section: Section, form: Layout) -> bool:
    """Copy the rows of a section from those of the file, and return whether all filters are known."""
    size = section.end - section.begin
    if form.filtered:
        raw = raw[: size + section.rows]
        return bool(remove_filters(raw, rows.data, *section[:3], form.pixel, rows.filters, section.first))
    rows.data[section.begin : section.end] = _swapped(raw[:size]) if form.little else raw[:size]
    return True


def write_rows(raw: np.ndarray, rows: Filtered, section: Section, form: Layout) -> None:
    """Copy the rows of a section to those of the file."""
    size, part = section.end - section.begin, rows.data[section.begin : section.end]
    if form.filtered:
        add_filters(raw[: size + section.rows], rows.data, *section[:3], form.pixel, rows.filters, section.first)
    else:
        raw[:size] = _swapped(part) if form.little else part


def _swapped(rows: np.ndarray) -> np.ndarray:
    """Return rows with the bytes of each pair exchanged; a last odd byte stays."""
    swapped, even = rows.copy(), rows.size // 2 * 2
    swapped[0:even:2], swapped[1:even:2] = rows[1:even:2], rows[0:even:2]
    return swapped
