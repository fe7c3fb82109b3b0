"""Images in ELF: of 32 and 64 bits, with the lowest byte first or last."""

import struct
from dataclasses import replace
from typing import NamedTuple

from squeeze.codecs.parse.program.plan import Segment
from squeeze.codecs.parse.program.sections import Image, Role, Section

__all__ = ["read"]

_X86_64 = 62
_LITTLE = {
    3: 1,
    _X86_64: 2,
    183: 3,
    243: 4,
    21: 6,
    8: 7,
    40: 8,
}  # whose code is transformed, with their places in MACHINES
_BIG = {2: 5, 18: 5, 43: 5, 20: 6, 21: 6, 8: 7, 40: 8, 22: 9}  # and with the highest byte first
_RELOCATABLE, _LOADED, _RUNS = 1, 1, 1  # type of an object file; type and flag of program headers
_SYMBOLS, _STRINGS, _ADDENDS, _EMPTY, _PLAIN, _DYNAMIC_SYMBOLS, _HASH = 2, 3, 4, 8, 9, 11, 0x6FFFFFF6  # section types
_OLD_HASH, _DYNAMIC, _VERSIONS = 5, 6, 0x6FFFFFFF
_FRAMES = 0x70000001  # type of call frame information on x86-64, where it is not just data
_ROWS = (_OLD_HASH, _DYNAMIC, _VERSIONS)  # types of other tables
_STABS = ".stab", 12  # name and bytes of a row of the sections of an older form of debugging information
_BY_NAME = {".eh_frame": Role.FRAMES, ".eh_frame_hdr": Role.FRAME_INDEX}
_HAS_CODE, _HAS_STRINGS, _COMPRESSED = 4, 0x20, 0x800  # section flags
_ADDEND_ROW = 24  # bytes of a relocation with an addend, of 64 bits
_MOST = 1 << 14  # sections, or program headers
_LONGEST = 64  # characters of a name that are read


class _Header(NamedTuple):
    """A section header."""

    name: int
    type: int
    flags: int
    address: int
    start: int
    size: int
    link: int
    info: int
    align: int
    row: int


def read(data: bytes, begin: int) -> Image | None:
    """Return the image that begins at a place of data, or None if its headers are not valid."""
    head = data[begin : begin + 64]
    if len(head) < 64 or head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
        return None
    order, is_wide = "<>"[head[5] - 1], head[4] == 2
    kind, machine = struct.unpack_from(order + "HH", head, 16)
    first, start = struct.unpack_from(order + ("QQ" if is_wide else "II"), head, 32 if is_wide else 28)
    header, row, count, width, sections, names = struct.unpack_from(order + "6H", head, 52 if is_wide else 40)
    if header != (64 if is_wide else 52) or (sections and width != (64 if is_wide else 40)):
        return None
    segments, runs = _segments(data, begin + first, min(count, _MOST), row, order, is_wide)
    headers = _headers(data, begin + start, min(sections, _MOST), order, is_wide)
    ends = [header, first + count * row, *(segment.start + segment.size for segment in segments)]
    ends += [item.start + item.size for item in headers if item.type != _EMPTY]
    if headers:
        ends.append(start + sections * width)
    if min(len(headers) + len(segments), max(ends)) <= 0 or max(ends) > 1 << 40:
        return None
    titles, is_usual = _names(data, begin, headers, names), is_wide and order == "<"
    found = _sections(headers, titles, is_usual and kind != _RELOCATABLE) if headers else runs
    if is_usual and kind == _RELOCATABLE and machine == _X86_64:
        with_bytes = [item for item in headers if _has_bytes(item)]
        found = [_with_target(*both, headers, titles) for both in zip(found, with_bytes, strict=True)]
    if headers:
        found.append(Section(Role.HEADERS, start, sections * width, "section headers", width))
    known = (_LITTLE if order == "<" else _BIG).get(machine, 0)
    size = min(max(ends), len(data) - begin)
    return Image(0, known, size, found, max(len(headers), len(segments)), segments, kind != _RELOCATABLE, order == ">")


def _segments(
    data: bytes, at: int, count: int, row: int, order: str, is_wide: bool
) -> tuple[list[Segment], list[Section]]:
    """Return the loaded segments, and those that hold code as sections."""
    form = struct.Struct(order + ("IIQQQQQQ" if is_wide else "IIIIIIII"))
    segments, runs = list[Segment](), list[Section]()
    for number in range(count if row == form.size else 0):
        if at + (number + 1) * row > len(data):
            break
        fields = form.unpack_from(data, at + number * row)
        kind, flags = fields[0], fields[1] if is_wide else fields[6]
        start, address, size = (fields[2], fields[3], fields[5]) if is_wide else (fields[1], fields[2], fields[4])
        if kind == _LOADED and size:
            segments.append(Segment(address, start, size))
            if flags & _RUNS:
                runs.append(Section(Role.CODE, start, size, "code"))
    return segments, runs


def _headers(data: bytes, at: int, count: int, order: str, is_wide: bool) -> list[_Header]:
    form = struct.Struct(order + ("IIQQQQIIQQ" if is_wide else "IIIIIIIIII"))
    if at + count * form.size > len(data):
        return []
    return [_Header(*form.unpack_from(data, at + number * form.size)) for number in range(count)]


def _names(data: bytes, begin: int, headers: list[_Header], number: int) -> list[str]:
    """Return the first characters of the sections' names."""
    if number >= len(headers):
        return [""] * len(headers)
    places = [begin + headers[number].start + item.name for item in headers]
    return [data[place : place + _LONGEST].partition(b"\0")[0].decode("latin1") for place in places]


def _sections(headers: list[_Header], names: list[str], is_usual: bool) -> list[Section]:
    """Return the sections that have bytes; relocations of usual 64-bit programs have a role of their own."""
    found, frames = list[Section](), headers[names.index(".eh_frame")] if ".eh_frame" in names else None
    for item, name in zip(headers, names, strict=True):
        if _has_bytes(item):
            role = _role(item, name, is_usual)
            row = item.row if role in (Role.TABLE, Role.RELOCATIONS, Role.RANGES, Role.SYMBOLS) else 0
            found.append(Section(role, item.start, item.size, name, row, _sources(item, role, headers, frames)))
    return found


def _has_bytes(item: _Header) -> bool:
    return item.type not in (0, _EMPTY)


def _with_target(section: Section, item: _Header, headers: list[_Header], names: list[str]) -> Section:
    """Return relocations of an object file of x86-64 with what they relocate, and other sections as they are.

    Args:
        section: one of the file.
        item: its header.
        headers: those of all sections.
        names: of all sections.
    """
    is_usual = section.role is Role.RANGES and item.type == _ADDENDS and item.row == _ADDEND_ROW
    if not is_usual or item.info >= len(headers):
        return section
    target, name = headers[item.info], names[item.info]
    role = Role.PLACES if target.flags & _HAS_CODE else Role.BEGINS if name == ".eh_frame" else Role.RANGES
    return replace(section, role=role, of=() if role is Role.RANGES else (target.start, target.size))


def _role(item: _Header, name: str, is_usual: bool) -> Role:
    """Return what a section holds."""
    if item.flags & _COMPRESSED:
        return Role.OTHER
    if item.flags & _HAS_CODE:
        return Role.CODE
    if item.type == _STRINGS or item.flags & _HAS_STRINGS:
        return Role.TEXT
    if item.type == _ADDENDS and item.row == _ADDEND_ROW and is_usual:
        return Role.RELOCATIONS
    if item.type in (_ADDENDS, _PLAIN) and 4 <= item.row <= 64:
        return Role.RANGES
    if item.type in (_SYMBOLS, _DYNAMIC_SYMBOLS) and item.row in (16, 24):
        return Role.SYMBOLS
    if (item.type in _ROWS and 2 <= item.row <= 64) or (name, item.row) == _STABS:
        return Role.TABLE
    if item.type == _HASH:
        return Role.HASH
    return _BY_NAME.get(name, Role.FRAMES if item.type == _FRAMES else Role.OTHER)


def _sources(item: _Header, role: Role, headers: list[_Header], frames: _Header | None) -> tuple[int, ...]:
    """Return what a section is derived from, as the plan has it; nothing if it is not derived.

    Args:
        item: its header.
        role: what it holds.
        headers: those of all sections.
        frames: that of `.eh_frame`, if there is one.
    """
    if role is Role.FRAME_INDEX:
        return (frames.start, frames.size) if frames else ()
    if role is Role.SYMBOLS and item.link < len(headers):
        return headers[item.link].start, headers[item.link].size
    if role is Role.HASH and item.link < len(headers) and headers[item.link].link < len(headers):
        symbols = headers[item.link]
        strings = headers[symbols.link]
        return int(symbols.row == 24), symbols.start, symbols.size, strings.start, strings.size
    return ()
