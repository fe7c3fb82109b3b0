"""The wrappers that are opened, by the numbers that files have for them."""

from squeeze.codecs.parse.protocol import Wrapper
from squeeze.codecs.parse.streams import Gzip, Png, ZipMember, Zlib
from squeeze.codecs.parse.texts import Base64, Hexadecimal, Utf16

__all__ = ["WRAPPERS", "candidates"]

WRAPPERS: tuple[Wrapper, ...] = (ZipMember(), Zlib(), Gzip(), Png(), Utf16(), Base64(), Hexadecimal())


def candidates(data: bytes) -> list[tuple[int, int]]:
    """Return the places in data where wrappers may start, with their kinds, in the order in which they are tried."""
    found = ((place, -wrapper.kind) for wrapper in WRAPPERS for place in wrapper.find(data))
    return [(place, -kind) for place, kind in sorted(found)]
