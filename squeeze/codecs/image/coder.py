"""Coding the bytes of an image, in either direction: its prefix, and its rows with their filters."""

import io

import numpy as np

from squeeze.codecs.image import bilevel, blocks, colours, converting, state
from squeeze.codecs.image.bilevel import Values
from squeeze.codecs.image.converting import Converted
from squeeze.codecs.image.filters import Filtered
from squeeze.codecs.image.layout import LIGHT_MARK, OF_TWO_VALUES, Layout
from squeeze.codecs.image.sections import Model, Progress, Section, empty_rows, read_rows, sections_of, write_rows
from squeeze.codecs.image.state import FAST, FULL, LIGHT, ROW_FILTERS
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["decode", "encode", "memory", "size_of_rows"]

_CERTAIN = 3  # an image that becomes so many times smaller by its blocks is not coded without them, to compare
_LARGE = 1 << 17  # bytes of such an image
_PRESETS = {0: FAST, 1: FULL, LIGHT_MARK: LIGHT}
_BILEVEL_PRESETS = (bilevel.FAST, bilevel.FULL)


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


def _model(form: Layout, rows: Filtered, mark: int, values: Values | None) -> Model:
    """Return the model of an image by the first byte of its payload, of two values if they are given."""
    if values is None:
        return state.build_model(rows, form, _PRESETS[mark])
    groups = -(-form.stride // 8) if values.is_bytes else form.stride
    return bilevel.build_model(rows, groups, values, _BILEVEL_PRESETS[mark % OF_TWO_VALUES])


def _parts(data: np.ndarray, sections: list[Section]) -> list[colours.Part]:
    return [(data[section.begin : section.end], section.stride) for section in sections]


def _code_blocks(
    found: Converted, sections: list[Section], coder: np.ndarray, coded: np.ndarray, decoding: bool
) -> bool:
    """Code the blocks of an image, if it has any; return whether there was room for the coded bytes, or enough."""
    if not found.planes:
        return True
    return blocks.code(found.planes, (sections[0].rows, found.form.width), coder, coded, decoding)


def _code_sections(m, sections, found, coder, coded, decoding, progress) -> bool:
    """Code all rows; return whether there was room for the coded bytes, or enough of them.

    Those of converted images are made again, and then their filters are coded.
    """
    form = found.form
    if not all(section.code(m, coder, coded, decoding, progress) for section in sections):
        return False
    if not form.colours and not form.blocks:
        return True
    converting.restore(_parts(m.data, sections), found)
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
    found, payload = _encode(data, form, full, progress, light, True)
    if found is not None and found.form.blocks and not (payload and _is_certain(data, form, len(payload))):
        _, other = _encode(data, form, full, None, light, False)
        payload = min((one for one in (payload, other) if one is not None), key=len, default=None)
    return payload if payload is not None and len(payload) < data.size else None


def _is_certain(data: np.ndarray, form: Layout, size: int) -> bool:
    """Return whether an image takes certainly less by its blocks, in `size` bytes, than by its pixels.

    It does if it is large, becomes much smaller, and is not mostly flat.
    """
    pixels = data[form.prefix :]
    is_flat = 2 * np.count_nonzero(pixels[form.pixel :] == pixels[: -form.pixel]) > pixels.size
    return data.size >= _LARGE and _CERTAIN * size < data.size and not is_flat


def _encode(data, form, full, progress, light, with_blocks) -> tuple[Converted | None, bytes | None]:
    """Return what an image was made of, and its payload, or None if it has an unknown filter or becomes longer.

    The arguments are those of `encode`, and whether to look for blocks.
    """
    sections = sections_of(form, data.size)
    rows = empty_rows(form, sections)
    if not all(read_rows(data[section.at :], rows, section, form) for section in sections):
        return None, None
    values = _values(form, rows.data[state.margin(form) :])
    mark = full + OF_TWO_VALUES if values else LIGHT_MARK if light else int(full)
    found = converting.convert(_parts(rows.data, sections), form, with_blocks and not values)
    form, planes = found.form, found.planes
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    steps = [plane.steps.astype(np.uint8) for plane in planes]
    before = np.concatenate([np.frombuffer(found.exceptions, np.uint8), *steps, data[: form.prefix]])
    is_coded = adaptive.code_bytes(before, coder, coded, _entries(before.size), False)
    if progress:
        progress(form.prefix)
    if not is_coded or not _code_blocks(found, sections, coder, coded, False):
        return found, None
    m = _model(form, rows, mark, values)
    if not _code_sections(m, sections, found, coder, coded, False, progress):
        return found, None
    head = bytes([mark]) + form.to_bytes() + bytes((values or ())[:2]) + blocks.to_bytes(planes)
    head += varint(len(found.exceptions)) if form.colours else b""
    return found, head + coded[: arithmetic.finish_encoder(coder, coded)].tobytes()


def size_of_rows(data: np.ndarray, form: Layout, full: bool, first: int, count: int) -> int:
    """Return the bytes in which some rows of an image without a prefix are coded alone, or their own if no fewer.

    Args:
        data: uint8 [n], all rows.
        form: their layout; not interlaced.
        full: use the whole model.
        first: the number of the first row.
        count: the number of rows.
    """
    (section,) = sections_of(form, data.size)
    rows, size = empty_rows(form, [section]), count * (section.stride + form.filtered)
    if not read_rows(data, rows, section, form):
        return size
    form, exceptions, _ = converting.convert(_parts(rows.data, [section]), form, False)
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
    if values and form.blocks:
        raise _damaged()
    sections = sections_of(form, length)
    planes = blocks.read(file, min(form.channels, 3), (sections[0].rows, form.width)) if form.blocks else []
    added = read_varint(file)[0] if form.colours else 0
    if added > 2 * length:
        raise _damaged()
    rows = empty_rows(form, sections)
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
    arithmetic.start_decoder(coder, coded)
    data, before = np.zeros(length, np.uint8), np.zeros(added + 64 * len(planes) + form.prefix, np.uint8)
    if not adaptive.code_bytes(before, coder, coded, _entries(before.size), True):
        raise _damaged()
    data[: form.prefix] = before[before.size - form.prefix :]
    for number, plane in enumerate(planes):
        plane.steps[:] = np.maximum(before[added + 64 * number :][:64], 1)
    if progress:
        progress(form.prefix)
    found = Converted(form, before[:added].tobytes(), tuple(planes))
    if not _code_blocks(found, sections, coder, coded, True):
        raise _damaged()
    m = _model(form, rows, mark, values)
    if not _code_sections(m, sections, found, coder, coded, True, progress):
        raise _damaged()
    for section in sections:
        write_rows(data[section.at :], rows, section, form)
    return data


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an image of `length` bytes."""
    return max(state.memory(length, FULL), blocks.memory(length), bilevel.memory(length, bilevel.FULL))


def _read_values(file: io.BytesIO, form: Layout) -> Values:
    """Read the values of an image of two.

    Raises:
        DamagedError: if its layout cannot have them.
    """
    zero, one = read_exactly(file, 2)
    if form.channels > 1 or form.bits not in (1, 8) or zero == one or (form.bits == 1 and {zero, one} != {0, 255}):
        raise _damaged()
    return Values(zero, one, form.bits == 8)


def _entries(size: int) -> np.ndarray:
    return np.full(1 << 16 if size else 0, adaptive.EVEN, np.uint32)


def _damaged() -> DamagedError:
    return DamagedError("the coded bytes of an image are impossible: the file is damaged")
