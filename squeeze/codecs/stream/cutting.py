"""Cutting a stream into the parts that become blocks: each has one kind of content, or wrappers, and perhaps copies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.parse.finding import node_of
from squeeze.codecs.parse.streams import ZipMember
from squeeze.codecs.parse.tree import Child, Node
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.codecs.parse.zip_fields import DIGESTS, RECORD
from squeeze.codecs.stream import blocks, levels, matcher, media, opened, runs, sampling
from squeeze.codecs.stream.copies import Copies
from squeeze.codecs.stream.matcher import Chunk
from squeeze.codecs.stream.repeats import LEAST
from squeeze.codecs.stream.settings import Settings

__all__ = ["Part", "after_noise", "closed_parts", "find_wrappers", "parts"]


@dataclass(frozen=True)
class Part:
    """The bytes of a block to be.

    Attributes:
        data: Its raw bytes, uint8.
        content: The kind of content, or the wrappers, of its bytes without copies.
        copies: Its copies, or None without any.
        rest: Its bytes without copies, uint8.
    """

    data: np.ndarray
    content: Content | Node
    copies: Copies | None
    rest: np.ndarray

    @classmethod
    def plain(cls, data: np.ndarray, content: Content | Node) -> "Part":
        """Return a part without copies."""
        return cls(data, content, None, data)


def parts(
    first: bytes, read: Callable[[int], bytes], size: int, settings: Settings, known: int | None
) -> Iterator[Part]:
    """Yield the parts of a stream.

    Args:
        first: its first bytes, at most `size`.
        read: returns the next N bytes, or fewer at the end.
        size: most raw bytes of a block, copies apart.
        settings: how to code.
        known: bytes of the stream, if known.
    """
    if settings.window:
        for chunk in matcher.chunks(first, read, size, settings.window, known):
            has_copies = chunk.copies and not runs.period_of(chunk.data)
            yield from _parts_of_chunk(chunk, settings) if has_copies else _whole(chunk.data, settings)
        return
    while first:
        yield from _whole(np.frombuffer(first, np.uint8), settings)
        first = read(size)


def _whole(data: np.ndarray, settings: Settings) -> Iterator[Part]:
    """Yield uint8 `data` without copies in parts."""
    if not runs.period_of(data) and (root := find_wrappers(data, settings)):
        yield Part.plain(data, root)
    else:
        yield from closed_parts(data, settings)


def closed_parts(data: np.ndarray, settings: Settings) -> Iterator[Part]:
    """Yield the parts of uint8 `data`, each of one kind of content."""
    for start, end, content in _regions(data, settings):
        yield Part.plain(data[start:end], content)


def after_noise(data: np.ndarray, settings: Settings) -> list[Part]:
    """Return the noise that a short input begins with and the parts after it, or no parts if it does not."""
    if settings.language or settings.dictionary or settings.content:
        return []
    if not (noise := sampling.noise_before(data)):
        return []
    return [Part.plain(data[:noise], blocks.PACKED), *closed_parts(data[noise:], settings)]


def _regions(data: np.ndarray, settings: Settings) -> Iterator[tuple[int, int, Content]]:
    if settings.content:
        yield 0, data.size, settings.content
    elif runs.period_of(data) or not data.size:
        yield 0, data.size, sampling.OTHER
    else:
        yield from media.regions(data) if settings.parse else blocks.regions(data)


def find_wrappers(data: np.ndarray, settings: Settings) -> Node | None:
    """Return the wrappers in the bytes of a block, or None if none pays."""
    if not settings.parse or settings.content is not None:
        return None
    return opened.find(data, levels.has_network(settings.level, "text"))


def _parts_of_chunk(chunk: Chunk, settings: Settings) -> Iterator[Part]:
    """Yield a chunk in parts: as one if its bytes without copies have wrappers."""
    assert chunk.copies
    root, copies = find_wrappers(chunk.data, settings), chunk.copies
    if root:
        copies, kept = _around(copies, root)
        rest = copies.rest(chunk.data)
        if kept:
            root = _without(copies, rest, kept)
            yield Part(chunk.data, root, copies, rest) if copies.places.size else Part.plain(chunk.data, root)
            return
    else:
        rest = copies.rest(chunk.data)
    yield from _cut(chunk.data, copies, rest, settings)


def _cut(data: np.ndarray, copies: Copies, rest: np.ndarray, settings: Settings) -> Iterator[Part]:
    """Yield the parts of `data`, whose bytes without copies have one kind of content each."""
    begin, places = 0, copies.places_in_rest
    for start, end, content in _regions(rest, settings):
        last = data.size if end == rest.size else end + int(copies.before[np.searchsorted(places, end, "left")])
        found = copies.cut(begin, last)
        if found.places.size:
            yield Part(data[begin:last], content, found, rest[start:end])
        else:
            yield Part.plain(data[begin:last], content)
        begin = last


def _around(copies: Copies, root: Node) -> tuple[Copies, list[Child]]:
    """Return the copies without those in wrappers that are mostly new, and these wrappers."""
    kept = [child for child in root.children if _is_new(copies, child)]
    rows = list(zip(copies.places.tolist(), copies.lengths.tolist(), copies.sources.tolist(), strict=True))
    found, spans = list[tuple[int, int, int]](), [_span(child) for child in kept]
    number = 0
    for place, length, source in rows:
        end = place + length
        while number < len(spans) and sum(spans[number]) <= place:
            number += 1
        at, other = place, number
        while at < end:
            start, size = spans[other] if other < len(spans) else (end, 0)
            stop = min(end, max(start, at))
            if stop - at >= LEAST:
                found.append((at, stop - at, source + at - place))
            at, other = max(stop, min(end, start + size)) if stop < end else end, other + 1
    places, lengths, sources = np.array(found, np.int64).reshape(-1, 3).T
    return Copies(copies.size, places.copy(), lengths.copy(), sources.copy()), kept


def _is_new(copies: Copies, child: Child) -> bool:
    """Return whether a wrapper is opened although it has copies."""
    start, size = _span(child)
    return _copied(copies, start, size) < WRAPPERS[child.kind].least_copied * size


def _span(child: Child) -> tuple[int, int]:
    """Return where a wrapper starts, and its bytes."""
    assert child.found
    return child.found.start, child.found.size


def _copied(copies: Copies, start: int, size: int) -> int:
    """Return how many of `size` bytes from `start` on are copies."""
    return _copied_before(copies, start + size) - _copied_before(copies, start)


def _copied_before(copies: Copies, place: int) -> int:
    number = int(np.searchsorted(copies.places, place))
    before = int(copies.before[number])
    if number:
        beyond = int(copies.places[number - 1] + copies.lengths[number - 1]) - place
        before -= max(beyond, 0)
    return before


def _without(copies: Copies, rest: np.ndarray, kept: list[Child]) -> Node:
    """Return the wrappers of a chunk's bytes without copies, none of which is in a wrapper."""
    children, done = list[Child](), 0
    for child in kept:
        start, size = _span(child)
        start -= _copied_before(copies, start)
        assert child.found
        found, node = replace(child.found, start=start), child.node
        if child.kind == ZipMember.kind:  # its flags are those of the chunk, and so is what remains of digests
            node = Node(found.content) if any(flags & (RECORD | DIGESTS) for flags in found.extra) else node
            found = replace(found, extra=b"")
        children.append(replace(child, gap=start - done, node=node, found=found))
        done = start + size
    return node_of(rest, children)
