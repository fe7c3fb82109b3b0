"""Summaries of what was opened in a block, as it was coded or as a file has it."""

import io
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from squeeze.codecs.parse import outline
from squeeze.codecs.stream import container, opened, repeats
from squeeze.codecs.stream.container import Coded, Header
from squeeze.codecs.stream.contents import Contents, Group, joined
from squeeze.codecs.stream.decoding import decode_block
from squeeze.codecs.stream.index import Stream, content_name
from squeeze.codecs.stream.resources import Resources
from squeeze.codecs.stream.settings import Settings, from_header
from squeeze.system.binary import read_exactly

__all__ = ["contents_in", "contents_of", "read_contents"]


def contents_of(block: Coded, length: int, wrappers: Mapping[str, int]) -> Contents:
    """Return what was opened in a block, or in the rest of one that repeats other bytes, without decoding anything.

    Args:
        block: the block.
        length: its raw bytes.
        wrappers: the number of its wrappers of each kind.
    """
    inner, size = _without_repeats(block, length)
    parts = opened.read(inner.payload, size)
    groups = [
        Group(content_name(io.BytesIO(part.payload), part), container.CODECS[part.kind], size, len(part.payload))
        for group in parts.groups
        for part, size in group
    ]
    coded = sum(group.coded for group in groups)
    return Contents(wrappers, size, sum(parts.sizes), len(inner.payload) - coded, joined(groups))


def read_contents(block: Coded, length: int, settings: Settings) -> Contents | None:
    """Return what was opened in a block of a file as `contents_of`, or None for other blocks; only its plan is decoded.

    Args:
        block: the block.
        length: its raw bytes.
        settings: those of its stream.

    Raises:
        DamagedError: if the block is damaged.
    """
    inner, size = _without_repeats(block, length)
    if inner.kind != container.OPENED:
        return None
    parts = opened.read(inner.payload, size)
    plan = opened.read_plan(decode_block(*parts.plan, settings), parts)
    return contents_of(inner, size, outline.written_counts(plan.tree))


def contents_in(file: BinaryIO, streams: Iterable[Stream]) -> dict[int, Contents]:
    """Return what was opened in the blocks of a file, by their raw offsets; only plans are decoded.

    Args:
        file: seekable.
        streams: those of its index.

    Raises:
        DamagedError: if a block is damaged.
    """
    found = {}
    for stream in streams:
        blocks = [block for block in stream.blocks if block.kind in (container.OPENED, container.REPEATS)]
        if not blocks:  # a stream with a dictionary has none
            continue
        settings = from_header(Header(stream.header, 0, stream.short), Resources())
        for block in blocks:
            file.seek(block.coded_offset + block.coded_length - block.payload_length)
            coded = Coded(block.kind, read_exactly(file, block.payload_length))
            if contents := read_contents(coded, block.raw_length, settings):
                found[block.raw_offset] = contents
    return found


def _without_repeats(block: Coded, length: int) -> tuple[Coded, int]:
    """Return the block for the bytes that a block does not repeat, and their number."""
    if block.kind != container.REPEATS:
        return block, length
    found = repeats.read(block.payload, length)
    return found.rest, found.rest_size
