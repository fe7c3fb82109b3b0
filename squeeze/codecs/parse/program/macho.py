"""Images in Mach-O: those of one machine, with the lowest byte first; fat files have several of them."""

import struct

from squeeze.codecs.parse.program.plan import Segment
from squeeze.codecs.parse.program.sections import Image, Role, Section

__all__ = ["read"]

_MACHINES = {7: 1, 0x01000007: 2, 0x0100000C: 3}
_OBJECT = 1  # type of an object file
_SEGMENT, _SYMBOLS, _WIDE_SEGMENT = 1, 2, 0x19  # load commands
_CODE, _STRINGS = 0x80000400, 2  # flags of sections with instructions; the type of those with strings
_EMPTY = (1, 12, 18)  # types of sections without bytes in the image
_MOST = 1 << 12  # load commands, or sections of a segment


def read(data: bytes, begin: int) -> Image | None:
    """Return the image that begins at a place of data, or None if its headers are not valid."""
    if begin + 32 > len(data):
        return None
    magic, machine, _, kind, count, size, _ = struct.unpack_from("<7I", data, begin)
    if magic not in (0xFEEDFACE, 0xFEEDFACF) or not 1 <= count <= _MOST or begin + size > len(data):
        return None
    at = begin + (32 if magic & 1 else 28)
    stop = at + size
    segments, sections, ends, total = list[Segment](), list[Section](), [stop - begin], 0
    for _ in range(count):
        if at + 8 > stop:
            return None
        command, length = struct.unpack_from("<II", data, at)
        if length < 8 or at + length > min(stop, len(data)):
            return None
        if command in (_SEGMENT, _WIDE_SEGMENT):
            total += _segment(data[at : at + length], command == _WIDE_SEGMENT, segments, sections)
        elif command == _SYMBOLS and length >= 24:
            start, number, strings, used = struct.unpack_from("<4I", data, at + 8)
            row = 16 if magic & 1 else 12
            sections += [
                Section(Role.TABLE, start, number * row, "symbols", row),
                Section(Role.TEXT, strings, used, "strings"),
            ]
            ends += [start + number * row, strings + used]
        at += length
    ends += [segment.start + segment.size for segment in segments]
    known = _MACHINES.get(machine, 0)
    return Image(2, known, min(max(ends), len(data) - begin), sections, total, segments, kind != _OBJECT)


def _segment(command: bytes, is_wide: bool, segments: list[Segment], sections: list[Section]) -> int:
    """Add a segment and its sections with a role; return the number of all of its sections."""
    head = struct.Struct("<QQQQIIII" if is_wide else "<IIIIIIII")
    row = struct.Struct("<16s16sQQIIIII" if is_wide else "<16s16sIIIIIII")
    step = 80 if is_wide else 68
    if len(command) < 24 + head.size:
        return 0
    address, _, start, size, _, _, count, _ = head.unpack_from(command, 24)
    if size:
        segments.append(Segment(address, start, size))
    at = 24 + head.size
    count = min(int(count), (len(command) - at) // step)
    for place in range(at, at + count * step, step):
        name, _, _, used, first, _, _, _, flags = row.unpack_from(command, place)
        named, role = name.partition(b"\0")[0].decode("latin1"), Role.OTHER
        if first and flags & 0xFF not in _EMPTY:
            if flags & _CODE:
                role = Role.CODE
            elif flags & 0xFF == _STRINGS:
                role = Role.TEXT
            elif named == "__eh_frame":
                role = Role.FRAMES
            sections.append(Section(role, first, used, named))
    return count
