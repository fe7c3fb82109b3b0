"""Images in PE: programs and libraries of Windows, and of firmware."""

import struct

from squeeze.codecs.parse.program.plan import Segment
from squeeze.codecs.parse.program.sections import Image, Role, Section

__all__ = ["FARTHEST", "read"]

FARTHEST = 1 << 12  # bytes between the start of an image and its header
_MACHINES = {0x14C: 1, 0x8664: 2, 0xAA64: 3, 0x5032: 4, 0x5064: 4}
_CODE = 0x20000020  # flags of sections that hold code, or may be run


def read(data: bytes, begin: int) -> Image | None:
    """Return the image that begins at a place of data, or None if its headers are not valid."""
    if begin + 64 > len(data) or data[begin : begin + 2] != b"MZ":
        return None
    (offset,) = struct.unpack_from("<I", data, begin + 60)
    at = begin + offset
    if not 64 <= offset <= FARTHEST or data[at : at + 4] != b"PE\0\0" or at + 24 > len(data):
        return None
    machine, count, _, _, _, optional, _ = struct.unpack_from("<HHIIIHH", data, at + 4)
    first = at + 24 + optional
    if not 1 <= count <= 96 or first + 40 * count > len(data):
        return None
    segments, sections, end = list[Segment](), list[Section](), first + 40 * count - begin
    for place in range(first, first + 40 * count, 40):
        name, whole, address, size, start = struct.unpack_from("<8sIIII", data, place)
        (flags,) = struct.unpack_from("<I", data, place + 36)
        if not size or not start:
            continue
        end = max(end, start + size)
        segments.append(Segment(address, start, size))
        used = min(size, whole) if whole else size
        is_ranges = name.startswith(b".pdata") and machine == 0x8664
        role = Role.CODE if flags & _CODE else Role.RANGES if is_ranges else Role.OTHER
        named = name.partition(b"\0")[0].decode("latin1")
        sections.append(Section(role, start, used, named, 12 if role is Role.RANGES else 0))
    return Image(1, _MACHINES.get(machine, 0), min(end, len(data) - begin), sections, count, segments)
