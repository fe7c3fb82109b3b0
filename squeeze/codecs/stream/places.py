"""Where the blocks of a .sqz file lie, by its indexes alone: what reading a part of a file needs before it decodes."""

import io
from typing import BinaryIO, NamedTuple

from squeeze.codecs.stream.container import BlockHeader, Header, read_block_header, read_short_block_header
from squeeze.codecs.stream.index import Index, before_padding, header_of, read_index, read_index_before
from squeeze.codecs.stream.memory import Entries
from squeeze.errors import DamagedError, FormatError
from squeeze.system.limits import Limits

__all__ = ["Place", "read_block", "read_places"]


class Place(NamedTuple):
    """Where a block lies, as the index says: its header is not read yet."""

    stream: Header
    raw_offset: int
    raw_length: int
    coded_offset: int  # of the block's header
    coded_length: int  # with the header
    checksum: int  # of its stream, as Stream has it


def read_places(file: BinaryIO, limits: Limits | None = None) -> list[Place]:
    """Where every block lies, from the headers and indexes of streams alone; as `read_index` where one is short."""
    limits = limits or Limits()
    try:
        return _places_from_end(file, file.seek(0, io.SEEK_END), Entries(limits))
    except FormatError:
        streams = read_index(file, limits)
    return [
        Place(
            Header(stream.header, 0, stream.short),
            *(block.raw_offset, block.raw_length, block.coded_offset, block.coded_length, stream.checksum),
        )
        for stream in streams
        for block in stream.blocks
    ]


def _places_from_end(file: BinaryIO, end: int, entries: Entries) -> list[Place]:
    found: list[tuple[Header, Index, int]] = []
    if not end:
        raise FormatError("not a .sqz file: it is empty")
    while end := before_padding(file, end):
        index, start = read_index_before(file, end, entries)
        found.append((header_of(file, index, start), index, start))
        entries.add()
        end = start
    places, raw_offset = [], 0
    for header, index, start in reversed(found):
        offset = start + index.header_size
        for raw, coded in index.entries:
            places.append(Place(header, raw_offset, raw, offset, coded, index.checksum))
            raw_offset += raw
            offset += coded
    return places


def read_block(file: BinaryIO, place: Place) -> BlockHeader:
    """A block's header; leaves the file at its payload. Raises DamagedError where the index says another thing."""
    file.seek(place.coded_offset)
    header = read_short_block_header(file, place.stream.kind) if place.stream.short else read_block_header(file)
    if header is None or (header.raw_length, header.size + header.payload_length) != (
        place.raw_length,
        place.coded_length,
    ):
        raise DamagedError("the index does not agree with the blocks: the file is damaged")
    return header
