"""Sections with a role, and the image that they are of, which the readers of all formats return."""

from dataclasses import dataclass
from enum import Enum

from squeeze.codecs.parse.program.plan import Segment

__all__ = ["Image", "Role", "Section"]


class Role(Enum):
    """The content of a section that is treated apart."""

    CODE = "code"
    TEXT = "text"
    TABLE = "table"  # rows of fixed length
    RELOCATIONS = "relocations"  # rows of 24 bytes, as 64-bit ELF has them
    RANGES = "ranges"  # rows that begin with an address, which ascends
    PLACES = "places"  # rows of relocations of code in an object file
    BEGINS = "begins"  # the same of call frame information
    SYMBOLS = "symbols"  # rows of a symbol table
    HEADERS = "headers"  # rows of section headers
    FRAMES = "frames"
    FRAME_INDEX = "frame index"
    HASH = "hash"
    OTHER = "other"  # is coded as found


@dataclass(frozen=True)
class Section:
    """A section of an image.

    Attributes:
        role: What it holds.
        start: Its first byte in the image.
        size: Its bytes.
        name: Its name in the image.
        row: Bytes of a row of a table, or 0.
        of: Starts and sizes of other sections that it is derived from.
    """

    role: Role
    start: int
    size: int
    name: str = ""
    row: int = 0
    of: tuple[int, ...] = ()


@dataclass(frozen=True)
class Image:
    """An image as its headers describe it.

    Attributes:
        format: Number in FORMATS.
        machine: Number in MACHINES.
        size: Its bytes.
        sections: Its sections, in any order; they may overlap or reach beyond the end.
        count: Sections of all kinds.
        segments: Those with addresses, in any order.
        is_placed: Whether its addresses are final, unlike those of object files.
        is_big: Whether the highest byte of its numbers comes first.
    """

    format: int
    machine: int
    size: int
    sections: list[Section]
    count: int
    segments: list[Segment]
    is_placed: bool = True
    is_big: bool = False
