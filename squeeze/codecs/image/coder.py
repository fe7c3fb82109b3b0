"""Coding the bytes of an image, in either direction: its prefix, and its rows with their filters."""

import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from squeeze.codecs.image import bilevel, colours, nearby, state
from squeeze.codecs.image.bilevel import BilevelModel, Values
from squeeze.codecs.image.bilevel_rows import code_rows as code_bilevel_rows
from squeeze.codecs.image.filters import Filtered, add_filters, code_filter, remove_filters
from squeeze.codecs.image.flat import code_pixel, is_flat
from squeeze.codecs.image.layout import LIGHT_MARK, OF_TWO_VALUES, Layout
from squeeze.codecs.image.model import code_byte
from squeeze.codecs.image.predictions import learn_nearby
from squeeze.codecs.image.state import FAST, FULL, LIGHT, PIXELS, ROW_FILTERS, ImageModel
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.numerics.jit import kernel
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["decode", "encode", "memory", "size_of_rows"]

_STEP = 1 << 15  # bytes between two reports of progress
_PRESETS = {0: FAST, 1: FULL, LIGHT_MARK: LIGHT}
_BILEVEL_PRESETS = (bilevel.FAST, bilevel.FULL)
_Model = ImageModel | BilevelModel
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


class _Section(NamedTuple):
    """The image, or a pass of an interlaced one, in the data of the model and in that of the file."""

    begin: int
    end: int
    stride: int
    first: int  # number of its first row
    rows: int
    at: int  # where it begins in the file, with its filters

    def code(self, m: _Model, coder: np.ndarray, coded: np.ndarray, decoding: bool, progress: Progress) -> bool:
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


def _sections(form: Layout, length: int) -> list[_Section]:
    """Return the sections of an image of `length` bytes with its prefix."""
    sections, begin, first, at = list[_Section](), state.margin(form), 0, form.prefix
    for size, stride in form.sections(length - form.prefix) or ():
        rows = -(-size // stride) if form.height else -(-(length - at) // (stride + form.filtered))
        sections.append(_Section(begin, begin + size, stride, first, rows, at))
        begin, first, at = begin + size, first + rows, at + size + form.filtered * rows
    return sections


def _empty(form: Layout, sections: list[_Section]) -> Filtered:
    rows = sections[-1].first + sections[-1].rows if sections and form.filtered else 0
    return Filtered.empty(sections[-1].end if sections else state.margin(form), rows)


def _read_rows(raw: np.ndarray, rows: Filtered, section: _Section, form: Layout) -> bool:
    """Copy the rows of a section from those of the file, and return whether all filters are known."""
    size = section.end - section.begin
    if form.filtered:
        raw = raw[: size + section.rows]
        return bool(remove_filters(raw, rows.data, *section[:3], form.pixel, rows.filters, section.first))
    rows.data[section.begin : section.end] = _swapped(raw[:size]) if form.little else raw[:size]
    return True


def _write_rows(raw: np.ndarray, rows: Filtered, section: _Section, form: Layout) -> None:
    """Copy the rows of a section to those of the file."""
    size, part = section.end - section.begin, rows.data[section.begin : section.end]
    if form.filtered:
        add_filters(raw[: size + section.rows], rows.data, *section[:3], form.pixel, rows.filters, section.first)
    else:
        raw[:size] = _swapped(part) if form.little else part


def _values(form: Layout, rows: np.ndarray) -> Values | None:
    """Return the values of an image of two, or None for another one. Most of its pixels, or bits, are zeros."""
    if form.channels > 1 or form.bits not in (1, 8) or not rows.size:
        return None
    if form.bits == 1:
        ones = int(np.bitwise_count(rows).sum())
        return Values(0, 255, False) if 2 * ones <= 8 * rows.size else Values(255, 0, False)
    others = rows[rows != rows[0]]
    first, second = int(rows[0]), int(others[0] if others.size else rows[0] ^ 1)
    if others.size and (others != second).any():
        return None
    return Values(first, second, True) if 2 * others.size <= rows.size else Values(second, first, True)


def _model(form: Layout, rows: Filtered, mark: int, values: Values | None) -> _Model:
    """Return the model of an image by the first byte of its payload, of two values if they are given."""
    if values is None:
        return state.build_model(rows, form, _PRESETS[mark])
    groups = -(-form.stride // 8) if values.is_bytes else form.stride
    return bilevel.build_model(rows, groups, values, _BILEVEL_PRESETS[mark % OF_TWO_VALUES])


def _parts(data: np.ndarray, sections: list[_Section]) -> list[colours.Part]:
    return [(data[section.begin : section.end], section.stride) for section in sections]


def _convert(form: Layout, data: np.ndarray, sections: list[_Section]) -> tuple[Layout, bytes]:
    """Convert pixels if a JPEG decoder made them. Return the layout, which says so, and the exceptions."""
    parts = _parts(data, sections)
    form = form._replace(colours=colours.find_order(parts[-1], form) if parts else 0)
    if form.colours:
        before = data.copy()
        exceptions = colours.convert(parts, form)
        if exceptions is not None:
            return form, exceptions
        data[:] = before
    return form._replace(colours=0), b""


def _code_sections(m, sections, form, exceptions, coder, coded, decoding, progress) -> bool:
    """Code all rows; return whether there was room for the coded bytes, or enough of them.

    Those of converted images are made again, and then their filters are coded.
    """
    if not all(section.code(m, coder, coded, decoding, progress) for section in sections):
        return False
    if not form.colours:
        return True
    colours.restore(_parts(m.data, sections), form, exceptions)
    m.state.phase = ROW_FILTERS
    return not form.filtered or all(section.code(m, coder, coded, decoding, None) for section in sections)


def encode(data: np.ndarray, form: Layout, full: bool, progress: Progress = None, light: bool = False) -> bytes | None:
    """Return the payload of an image, or None if it is no shorter or has a filter that PNG does not know.

    Args:
        data: uint8 [n], the prefix and the rows.
        form: their layout.
        full: use the whole model.
        progress: is called with the number of bytes coded since its last call.
        light: use a smaller model, unless the image has two values.
    """
    sections = _sections(form, data.size)
    rows = _empty(form, sections)
    if not all(_read_rows(data[section.at :], rows, section, form) for section in sections):
        return None
    values = _values(form, rows.data[state.margin(form) :])
    mark = full + OF_TWO_VALUES if values else LIGHT_MARK if light else int(full)
    form, exceptions = _convert(form, rows.data, sections)
    m = _model(form, rows, mark, values)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    before = np.concatenate([np.frombuffer(exceptions, np.uint8), data[: form.prefix]])
    is_coded = adaptive.code_bytes(before, coder, coded, _entries(before.size), False)
    if progress:
        progress(form.prefix)
    if not is_coded or not _code_sections(m, sections, form, exceptions, coder, coded, False, progress):
        return None
    head = bytes([mark]) + form.to_bytes() + bytes((values or ())[:2])
    head += varint(len(exceptions)) if form.colours else b""
    payload = head + coded[: arithmetic.finish_encoder(coder, coded)].tobytes()
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
    rows, size = _empty(form, [section]), count * (section.stride + form.filtered)
    if not _read_rows(data, rows, section, form):
        return size
    form, exceptions = _convert(form, rows.data, [section])
    m = _model(form, rows, int(full), _values(form, rows.data[section.begin :]))
    begin = section.begin + first * section.stride
    part = section._replace(begin=begin, end=begin + count * section.stride, first=first, rows=count)
    coder, coded = np.zeros(3, np.uint64), np.zeros(size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    if not part.code(m, coder, coded, False, None):
        return size
    return min(arithmetic.finish_encoder(coder, coded) + len(exceptions) * count // section.rows, size)


def decode(payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
    """Return the uint8 [length] of a payload.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    mark = read_exactly(file, 1)[0]
    if mark > LIGHT_MARK:
        raise _damaged()
    form = Layout.read(file, length)
    values = None if mark in _PRESETS else _read_values(file, form)
    added = read_varint(file)[0] if form.colours else 0
    if added > 2 * length:
        raise _damaged()
    sections = _sections(form, length)
    rows = _empty(form, sections)
    m = _model(form, rows, mark, values)
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
    arithmetic.start_decoder(coder, coded)
    data, before = np.zeros(length, np.uint8), np.zeros(added + form.prefix, np.uint8)
    if not adaptive.code_bytes(before, coder, coded, _entries(before.size), True):
        raise _damaged()
    data[: form.prefix] = before[added:]
    if progress:
        progress(form.prefix)
    if not _code_sections(m, sections, form, before[:added].tobytes(), coder, coded, True, progress):
        raise _damaged()
    for section in sections:
        _write_rows(data[section.at :], rows, section, form)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an image of `length` bytes."""
    return max(state.memory(length, FULL), bilevel.memory(length, bilevel.FULL))


def _read_values(file: io.BytesIO, form: Layout) -> Values:
    """Read the values of an image of two.

    Raises:
        DamagedError: if its layout cannot have them.
    """
    zero, one = read_exactly(file, 2)
    if form.channels > 1 or form.bits not in (1, 8) or zero == one or (form.bits == 1 and {zero, one} != {0, 255}):
        raise _damaged()
    return Values(zero, one, form.bits == 8)


def _swapped(rows: np.ndarray) -> np.ndarray:
    """Return rows with the bytes of each pair exchanged; a last odd byte stays."""
    swapped, even = rows.copy(), rows.size // 2 * 2
    swapped[0:even:2], swapped[1:even:2] = rows[1:even:2], rows[0:even:2]
    return swapped


def _entries(size: int) -> np.ndarray:
    return np.full(1 << 16 if size else 0, adaptive.EVEN, np.uint32)


def _damaged() -> DamagedError:
    return DamagedError("the coded bytes of an image are impossible: the file is damaged")
