"""The tree of a block's wrappers: what lies between them, what is in them, and how all is put together again."""

import io
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.jpeg.medium import find_images
from squeeze.codecs.parse.base85 import Ascii85, Base85
from squeeze.codecs.parse.bzip2.stream import Bzip2
from squeeze.codecs.parse.deflate.stream import Closings
from squeeze.codecs.parse.early_lzw import EarlyLzw
from squeeze.codecs.parse.encodings import CodePage, Utf32
from squeeze.codecs.parse.escapes import JsonEscapes, Percent, QuotedPrintable
from squeeze.codecs.parse.fax.wrapper import Fax
from squeeze.codecs.parse.gif import Gif, RankedGif
from squeeze.codecs.parse.java.wrapper import JavaClass
from squeeze.codecs.parse.palette import Palette, ranks_of
from squeeze.codecs.parse.pickles import Pickle
from squeeze.codecs.parse.planes import Numbers, Planes
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.pyc.wrapper import Pyc
from squeeze.codecs.parse.quick.lz4_frames import Lz4Frame
from squeeze.codecs.parse.quick.parquet import ParquetPage
from squeeze.codecs.parse.quick.snappy_frames import SnappyFrame
from squeeze.codecs.parse.room import MOST_OPENED, Room
from squeeze.codecs.parse.streams import Deflate, Gzip, Png, RankedPng, ZipMember, Zlib
from squeeze.codecs.parse.strips import Differences, Strip, strips_in
from squeeze.codecs.parse.texts import Base64, Hexadecimal, Lines, Utf16
from squeeze.codecs.parse.zip_fields import ALL, Member, emptied, fill
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = [
    "WRAPPERS",
    "Child",
    "Node",
    "close",
    "parse",
    "read",
    "read_shape",
    "to_bytes",
]

# By the numbers that files have for them.
WRAPPERS: tuple[Wrapper, ...] = (
    *(ZipMember(), Zlib(), Gzip(), Png(), Utf16(), Base64(), Hexadecimal(), Gif(), Lines()),
    *(Program(), Bzip2(), Percent(), QuotedPrintable(), JsonEscapes(), Ascii85(), Base85(), Deflate(), EarlyLzw()),
    *(Utf32(), CodePage(), Differences(), Fax(), RankedGif(), RankedPng(), ParquetPage(), Lz4Frame(), SnappyFrame()),
    *(Planes(), Pyc(), JavaClass(), Pickle()),
)
_DEEPEST = 4  # wrappers in wrappers
_LEAST = 48  # bytes of a wrapper that is opened
_MOST_WRAPPERS = 1 << 20  # of a block
# Kinds whose contents begin with the header that they have themselves.
_WITH_HEADERS = (Program.kind, Pyc.kind, JavaClass.kind, Pickle.kind)
_TRIAL = 8  # times as long as reading content: to find out that it does not pay


@dataclass(frozen=True)
class Node:
    """Bytes with their wrappers.

    Attributes:
        own: The bytes outside of them, uint8.
        children: Its wrappers, in order.
        content: The kind of its own bytes if that is known.
        regions: Regions of its own bytes whose kind is known, in order.
    """

    own: np.ndarray
    children: "tuple[Child, ...]" = ()
    content: Content | None = None
    regions: tuple[Region, ...] = ()

    def nodes(self) -> "Iterator[Node]":
        """Yield this node and those in its wrappers, each before what is in it."""
        yield self
        for child in self.children:
            yield from child.node.nodes()


@dataclass(frozen=True)
class Child:
    """A wrapper of a node.

    Attributes:
        gap: The node's own bytes between the wrapper before and this one.
        kind: Its number in WRAPPERS.
        node: Its content.
        found: The wrapper as it was found, or None if the tree was read.
        extra: What closes it, without what closes its stream.
        closing: What closes its stream.
    """

    gap: int
    kind: int
    node: Node
    found: Found | None = None
    extra: bytes = b""
    closing: bytes = b""


class _Parser:
    """Opens the wrappers of a block within limits on their content and on the work of failed attempts."""

    def __init__(self, pays: Callable[[np.ndarray, Found], bool], size: int, without: Container[int]):
        self._pays, self._without = pays, without
        self._room = Room.of(size)
        self._wrappers = _MOST_WRAPPERS

    def node(self, data: np.ndarray, depth: int, of: int | None = None, strip: Strip | None = None) -> Node:
        """Return the node of uint8 `data`, which is what is in a wrapper of kind `of`, if in any, and coded pixels."""
        raw, done, children, room = data.tobytes(), 0, list[Child](), self._room
        refused = [0] * len(WRAPPERS)  # the end of the last of each kind that did not pay
        opens = depth < _DEEPEST and room.content > 0
        photos, strips = (list(find_images(raw)), strips_in(raw)) if opens else ([], {})
        strips |= {0: strip} if strip else {}
        named = {place: Fax(found.fax) for place, found in strips.items() if found.fax}
        places = candidates(raw, self._without, named) if opens else []
        for place, kind in _outside(places, photos):
            is_same = place == 0 and kind == of and kind in _WITH_HEADERS
            is_tried = place >= max(done, refused[kind]) and room.attempts > 0 and self._wrappers and not is_same
            wrapper = named[place] if kind == Fax.kind else WRAPPERS[kind]
            found = wrapper.open(raw, place, room) if is_tried else None
            if found is None:
                continue
            if found.start < done or found.size < _LEAST or _are_wrapped(found.colours, children):
                room.spend(_TRIAL * found.content.size)
                continue
            before = room.content
            room.content -= found.content.size
            found, node = self._content(found, depth, strips.get(place))
            if not (node.children or WRAPPERS[kind].is_certain or self._pays(data, found)):
                room.content, refused[kind] = before, found.start + found.size
                if found.opened:  # a stream that did not pay behind its header does not without it
                    refused[Deflate.kind] = refused[kind]
                room.spend(_TRIAL * found.content.size)
                continue
            self._wrappers -= 1
            children.append(Child(found.start - done, found.kind, node, found))
            done = found.start + found.size
        return node_of(data, children)

    def _content(self, found: Found, depth: int, strip: Strip | None) -> tuple[Found, Node]:
        """Return a wrapper and the node of what is in it; in a medium, no wrapper is looked for."""
        if strip and strip.numbers:
            if strip.numbers.fits(found.content.size):
                return self._numbers(found, depth, strip.numbers)
            strip = None
        form = strip.layout(found.content.size) if strip and not strip.fax else None
        if strip and form:
            if not strip.differs:
                found = replace(found, content_kind=Content("image", 0, tuple(form)))
            elif depth + 1 < _DEEPEST and self._room.content >= found.content.size and self._wrappers > 1:
                return found, self._undone(found.content, form)
        if found.content_kind:
            return found, Node(found.content, (), found.content_kind)
        inner = strip if strip and (strip.fax or found.kind == Ascii85.kind) else None
        node = self.node(found.content, depth + 1, found.kind, inner)
        return found, replace(node, regions=_without(found.regions, node.children)) if found.regions else node

    def _numbers(self, found: Found, depth: int, numbers: Numbers) -> tuple[Found, Node]:
        """Return a wrapper of numbers and its node."""
        if numbers.planes and depth + 1 < _DEEPEST and self._room.content >= found.content.size and self._wrappers > 1:
            return found, self._within(Planes().undone(found.content, numbers))
        if not numbers.planes:
            found = replace(found, content_kind=Content("array", 0, tuple(numbers.layout)))
        return found, Node(found.content, (), found.content_kind)

    def _undone(self, data: np.ndarray, form: Layout) -> Node:
        """Return the node of the differences of pixels."""
        return self._within(Differences().undone(data, form))

    def _within(self, found: Found) -> Node:
        """Return the node of a wrapper that is nothing else."""
        self._room.content -= found.content.size
        self._wrappers -= 1
        return Node(found.content[:0], (Child(0, found.kind, Node(found.content, (), found.content_kind), found),))


def _are_wrapped(colours: tuple[int, int] | None, children: list[Child]) -> bool:
    """Return whether bytes of a palette are in a wrapper."""
    if not colours:
        return False
    before = bisect_left(children, colours[1], key=lambda child: child.found.start if child.found else 0)
    last = children[before - 1].found if before else None
    return last is not None and last.start + last.size > colours[0]


def _outside(places: list[tuple[int, int]], photos: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the places that are not in a photo, whose model needs all its bytes: texts are in its header."""
    number = 0
    for place, kind in places:
        while number < len(photos) and photos[number][1] <= place:
            number += 1
        if number == len(photos) or place < photos[number][0]:
            yield place, kind


def _without(regions: tuple[Region, ...], children: tuple[Child, ...]) -> tuple[Region, ...]:
    """Return regions of a content as regions of its bytes outside of wrappers."""
    spans = [(child.found.start, child.found.size) for child in children if child.found]
    starts = np.array([start for start, _ in spans], np.int64)
    before = np.cumsum([0, *(size for _, size in spans)])

    def moved(place: int) -> int:
        number = int(np.searchsorted(starts, place, "right"))
        inside = max(sum(spans[number - 1]) - place, 0) if number else 0
        return place + inside - int(before[number])

    return tuple((moved(start), moved(end), content) for start, end, content in regions)


def node_of(data: np.ndarray, children: list[Child]) -> Node:
    """Return the node of data with wrappers, without the fields that follow from zip members."""
    members = [
        Member(found.start, found.start + found.size, found.content if found.kind == ZipMember.kind else None)
        for found in (child.found for child in children)
        if found
    ]
    filled, flags = emptied(data, members)
    palettes = (child.found.colours for child in children if child.found and child.found.colours)
    if all(np.array_equal(data[begin:end], filled[begin:end]) for begin, end in palettes):
        data = filled
    else:
        flags = [0] * len(members)
    owned, done = list[np.ndarray](), 0
    for number, (member, flag) in enumerate(zip(members, flags, strict=True)):
        owned.append(data[done : member.start])
        done = member.end
        found = children[number].found
        if flag and found:
            children[number] = replace(children[number], found=replace(found, extra=bytes([flag])))
    return Node(np.concatenate([*owned, data[done:]]) if children else data, tuple(children))


def candidates(data: bytes, without: Container[int] = (), named: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Return the places in data where wrappers may start, with their kinds, in the order in which they are tried.

    `named` are the places of those that a file describes.
    """
    kinds = (wrapper for wrapper in WRAPPERS if wrapper.kind not in without)
    found = ((place, -wrapper.kind) for wrapper in kinds for place in wrapper.find(data))
    return [(place, -kind) for place, kind in sorted(chain(found, ((place, -Fax.kind) for place in named)))]


def parse(data: np.ndarray, pays: Callable[[np.ndarray, Found], bool], without: Container[int] = ()) -> Node:
    """Find and open the wrappers of uint8 `data`, and those in them, unless one does not pay and has none that does.

    Args:
        data: uint8.
        pays: returns whether a wrapper in some data pays.
        without: kinds of wrappers that stay closed.
    """
    return _Parser(pays, data.size, without).node(data, 0)


def to_bytes(root: Node) -> bytes:
    """Return what restores the wrappers of a tree, without the nodes' own bytes.

    A node is its number of own bytes and of wrappers. A wrapper is its gap, its kind, its content as a node, and what
    closes it, which may teach what closes later ones.
    """
    return _written(root, Closings())


def _written(node: Node, closings: Closings) -> bytes:
    parts = [varint(node.own.size), varint(len(node.children))]
    for child in node.children:
        assert child.found
        inner, opened = _written(child.node, closings), child.found.opened
        closing = closings.encode(opened) if opened else b""
        parts += [varint(child.gap), bytes([child.kind]), inner]
        parts += [part for text in (child.found.extra, closing) for part in (varint(len(text)), text)]
    return b"".join(parts)


def read(written: bytes, opened: np.ndarray) -> Node:
    """Return the tree that `to_bytes` wrote, with the nodes' own bytes, which uint8 `opened` has one after the other.

    Raises:
        DamagedError: if it is impossible, or the nodes have another number of bytes.
    """
    file, rest = io.BytesIO(written), _Rest(opened)
    root = _read_node(file, rest, 0)
    if file.read(1) or rest.opened is None or rest.opened.size:
        raise _impossible()
    return root


def read_shape(written: bytes) -> Node:
    """Return the tree that `to_bytes` wrote, with nodes that have no bytes of their own.

    Raises:
        DamagedError: if it is impossible.
    """
    return _read_node(io.BytesIO(written), _Rest(None), 0)


@dataclass
class _Rest:
    """The opened bytes, if they are known, and the number of wrappers that a tree may still have."""

    opened: np.ndarray | None
    wrappers: int = _MOST_WRAPPERS


def _read_node(file: io.BytesIO, rest: _Rest, depth: int) -> Node:
    size, count = read_varint(file)[0], read_varint(file)[0]
    rest.wrappers -= count
    if rest.wrappers < 0 or (count and depth >= _DEEPEST):
        raise _impossible()
    own = np.empty(0, np.uint8)
    if rest.opened is not None:
        if size > rest.opened.size:
            raise _impossible()
        own, rest.opened = rest.opened[:size], rest.opened[size:]
    children, gaps = [], 0
    for _ in range(count):
        gap, kind = read_varint(file)[0], read_exactly(file, 1)[0]
        gaps += gap
        if kind >= len(WRAPPERS) or gaps > size:
            raise _impossible()
        node = _read_node(file, rest, depth + 1)
        extra, closing = _read_text(file), _read_text(file)
        children.append(Child(gap, kind, node, None, extra, closing))
    return Node(own, tuple(children))


def _read_text(file: io.BytesIO) -> bytes:
    size, _ = read_varint(file)
    if size > len(file.getbuffer()):
        raise _impossible()
    return read_exactly(file, size)


def close(root: Node, most: int) -> np.ndarray:
    """Return the data of a tree that was read, uint8 of at most `most` bytes.

    Raises:
        DamagedError: if its parts do not belong together.
    """
    return _closed(root, Closings(), most)


def _closed(node: Node, closings: Closings, most: int) -> np.ndarray:
    done, size, pieces, starts, members = 0, 0, list[np.ndarray](), list[int](), list[Member]()
    for child in node.children:
        wrapper, extra = WRAPPERS[child.kind], child.extra
        content = _closed(child.node, closings, 2 * MOST_OPENED)
        starts.append(size)
        pieces.append(node.own[done : done + child.gap])
        size += child.gap
        if wrapper.has_palette:
            palette, extra = Palette.read(extra)
            colours = _part_of(pieces, starts, size - palette.distance - palette.size, palette.size)
            content = palette.exchanged(content, np.argsort(ranks_of(colours)).astype(np.uint8))
        stream = closings.close(content, child.closing) if child.closing else content[:0]
        starts.append(size)
        pieces.append(wrapper.close(content, stream, extra))
        size += pieces[-1].size
        if size > most:
            raise _impossible()
        done += child.gap
        is_zip = child.kind == ZipMember.kind
        members.append(Member(size - pieces[-1].size, size, content if is_zip else None, _flags(child)))
    if not pieces:
        return node.own
    data = np.concatenate([*pieces, node.own[done:]])
    if any(member.flags for member in members):
        fill(data, members)
    return data


def _part_of(pieces: list[np.ndarray], starts: list[int], begin: int, size: int) -> np.ndarray:
    """Return bytes that are in one of the pieces of data, whose starts are known.

    Raises:
        DamagedError: if they are not.
    """
    number = bisect_right(starts, begin) - 1
    part = pieces[number][begin - starts[number] :][:size] if number >= 0 else pieces[0][:0]
    if part.size != size:
        raise _impossible()
    return part


def _flags(child: Child) -> int:
    """Return the flags of a zip member, 0 for others."""
    if child.kind != ZipMember.kind or not child.extra:
        return 0
    if len(child.extra) > 1 or not 1 <= child.extra[0] <= ALL:
        raise _impossible()
    return child.extra[0]


def _impossible() -> DamagedError:
    return DamagedError("the wrappers of a block are impossible: the file is damaged")
