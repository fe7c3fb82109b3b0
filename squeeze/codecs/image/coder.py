"""Coding the bytes of an image, in either direction: its prefix, and its rows with their filters."""

import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from squeeze.codecs.image import state
from squeeze.codecs.image.filters import FILTERS, add_filters, guess_filter, remove_filters
from squeeze.codecs.image.flat import code_pixel, is_flat
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.image.model import code_byte
from squeeze.codecs.image.state import FAST, FULL, ImageModel, Preset
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import kernel
from squeeze.system.binary import read_exactly

__all__ = ["decode", "encode", "memory", "size_of_rows"]

_STEP = 1 << 15  # bytes between two reports of progress
_PRESETS = (FAST, FULL)
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
        m.state.column = 0
        size = min(stride, end - i)
        stop = i + size
        while i < stop:
            if arithmetic.is_over(coder, coded, decoding):
                return False
            if i + m.state.pixel <= stop and is_flat(m, i) and code_pixel(m, coder, coded, i, decoding):
                i += m.state.pixel
                continue
            code_byte(m, coder, coded, i, decoding)
            i += 1
        if m.filters.size:
            guess = guess_filter(m.data, i - size, size, stride, m.state.pixel, at == m.state.first)
            before = np.int64(m.filters[at - 1]) if at else FILTERS
            first = (before * FILTERS + guess) * 8
            m.filters[at] = adaptive.code_tree(m.filters[at], 3, m.filter_entries, first, coder, coded, decoding)
            if m.filters[at] >= FILTERS or arithmetic.is_over(coder, coded, decoding):
                return False
    return True


class _Section(NamedTuple):
    """The image, or a pass of an interlaced one, in the data of the model and in that of the file."""

    begin: int
    end: int
    stride: int
    first: int  # number of its first row
    rows: int
    at: int  # where it begins in the file, with its filters

    def code(self, m: ImageModel, coder: np.ndarray, coded: np.ndarray, decoding: bool, progress: Progress) -> bool:
        """Code the rows, and return whether there was room for the coded bytes, or enough of them."""
        m.state.stride, m.state.row, m.state.first = self.stride, self.stride - m.state.padding, self.first
        m.state.up = state.up_of(self.stride, m.state.pixel)
        step = max(_STEP // self.stride, 1)
        for row in range(0, self.rows, step):
            count, begin = min(step, self.rows - row), self.begin + row * self.stride
            if not _code_rows(m, coder, coded, begin, self.end, self.first + row, count, decoding):
                return False
            if progress:
                progress(min(count * self.stride, self.end - begin) + count * (m.filters.size > 0))
        return True


def _sections(form: Layout, length: int) -> list[_Section]:
    """Return the sections of an image of `length` bytes with its prefix."""
    sections, begin, first, at = list[_Section](), state.margin(form), 0, form.prefix
    for size, stride in form.sections(length - form.prefix) or ():
        rows = -(-size // stride) if form.height else -(-(length - at) // (stride + form.filtered))
        sections.append(_Section(begin, begin + size, stride, first, rows, at))
        begin, first, at = begin + size, first + rows, at + size + form.filtered * rows
    return sections


def _model(form: Layout, sections: list[_Section], preset: Preset) -> ImageModel:
    rows = sections[-1].first + sections[-1].rows if sections and form.filtered else 0
    size = sections[-1].end - state.margin(form) if sections else 0
    return state.build_model(size, rows, form, preset)


def encode(data: np.ndarray, form: Layout, full: bool, progress: Progress = None) -> bytes | None:
    """Return the payload of an image, or None if it is no shorter or has a filter that PNG does not know.

    Args:
        data: uint8 [n], the prefix and the rows.
        form: their layout.
        full: use the whole model.
        progress: is called with the number of bytes coded since its last call.
    """
    sections = _sections(form, data.size)
    m = _model(form, sections, _PRESETS[full])
    for section in sections:
        if not _read_rows(data[section.at :], m, section, form):
            return None
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    is_coded = adaptive.code_bytes(data[: form.prefix].copy(), coder, coded, _entries(form), False)
    if progress:
        progress(form.prefix)
    if not is_coded or not all(section.code(m, coder, coded, False, progress) for section in sections):
        return None
    payload = bytes([full]) + form.to_bytes() + coded[: arithmetic.finish_encoder(coder, coded)].tobytes()
    return payload if len(payload) < data.size else None


def size_of_rows(data: np.ndarray, form: Layout, full: bool, first: int, count: int) -> int:
    """Return the bytes in which some rows of an image without a prefix are coded alone, or their own if no fewer.

    Args:
        data: uint8 [n], all rows.
        form: their layout; not interlaced.
        full: use the whole model.
        first: the number of the first row.
        count: the number of rows.
    """
    (section,) = _sections(form, data.size)
    m, size = _model(form, [section], _PRESETS[full]), count * (section.stride + form.filtered)
    if not _read_rows(data, m, section, form):
        return size
    begin = section.begin + first * section.stride
    part = section._replace(begin=begin, end=begin + count * section.stride, first=first, rows=count)
    coder, coded = np.zeros(3, np.uint64), np.zeros(size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    return min(arithmetic.finish_encoder(coder, coded), size) if part.code(m, coder, coded, False, None) else size


def decode(payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
    """Return the uint8 [length] of a payload.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    full = read_exactly(file, 1)[0]
    if full > 1:
        raise _damaged()
    form = Layout.read(file, length)
    sections = _sections(form, length)
    m = _model(form, sections, _PRESETS[full])
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
    arithmetic.start_decoder(coder, coded)
    data = np.zeros(length, np.uint8)
    if not adaptive.code_bytes(data[: form.prefix], coder, coded, _entries(form), True):
        raise _damaged()
    if progress:
        progress(form.prefix)
    for section in sections:
        if not section.code(m, coder, coded, True, progress):
            raise _damaged()
        _write_rows(data[section.at :], m, section, form)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an image of `length` bytes."""
    return state.memory(length, FULL)


def _read_rows(rows: np.ndarray, m: ImageModel, section: _Section, form: Layout) -> bool:
    """Copy the rows of a section to the model, and return whether all filters are known."""
    size = section.end - section.begin
    if form.filtered:
        rows = rows[: size + section.rows]
        return bool(remove_filters(rows, m.data, *section[:3], form.pixel, m.filters, section.first))
    m.data[section.begin : section.end] = _swapped(rows[:size]) if form.little else rows[:size]
    return True


def _write_rows(rows: np.ndarray, m: ImageModel, section: _Section, form: Layout) -> None:
    """Copy the rows of a section from the model."""
    size, part = section.end - section.begin, m.data[section.begin : section.end]
    if form.filtered:
        add_filters(rows[: size + section.rows], m.data, *section[:3], form.pixel, m.filters, section.first)
    else:
        rows[:size] = _swapped(part) if form.little else part


def _swapped(rows: np.ndarray) -> np.ndarray:
    """Return rows with the bytes of each pair exchanged; a last odd byte stays."""
    swapped, even = rows.copy(), rows.size // 2 * 2
    swapped[0:even:2], swapped[1:even:2] = rows[1:even:2], rows[0:even:2]
    return swapped


def _entries(form: Layout) -> np.ndarray:
    return np.full(1 << 16 if form.prefix else 0, adaptive.EVEN, np.uint32)


def _damaged() -> DamagedError:
    return DamagedError("the coded bytes of an image are impossible: the file is damaged")
