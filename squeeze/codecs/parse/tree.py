"""The tree of a block's wrappers: what lies between them and what is in them, how it is written, read and closed."""

import io
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.parse.deflate.stream import Closings
from squeeze.codecs.parse.jar_digests import MANIFEST, Digests, kind_of, name_before
from squeeze.codecs.parse.palette import Palette, ranks_of
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.room import MOST_OPENED
from squeeze.codecs.parse.streams import ZipMember
from squeeze.codecs.parse.wheel_record import record_of
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.codecs.parse.zip_fields import ALL, DIGESTS, RECORD, Member, fill
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["DEEPEST", "MOST_WRAPPERS", "Child", "Node", "close", "read", "read_shape", "to_bytes"]

DEEPEST = 4  # wrappers in wrappers
MOST_WRAPPERS = 1 << 20  # of a block


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


def to_bytes(root: Node) -> bytes:
    """Return what restores the wrappers of a tree, without the nodes' own bytes.

    A node is its number of own bytes and of wrappers. A wrapper is its gap, its kind, its content as a node, and what
    closes it, which may teach what closes later ones.
    """
    return _written(root, Closings())


def _written(node: Node, closings: Closings) -> bytes:
    inner, closed, later = list[bytes](), dict[int, bytes](), _deferred(node)
    for number, child in enumerate(node.children):
        inner.append(_written(child.node, closings))
        if number not in later:
            closed[number] = _closing(child, closings)
    closed |= {number: _closing(node.children[number], closings) for number in later}
    parts = [varint(node.own.size), varint(len(node.children))]
    for number, child in enumerate(node.children):
        parts += [varint(child.gap), bytes([child.kind]), inner[number]]
        parts += [part for text in (_extra(child), closed[number]) for part in (varint(len(text)), text)]
    return b"".join(parts)


def _closing(child: Child, closings: Closings) -> bytes:
    """Return what closes the stream of a wrapper that was found."""
    assert child.found
    return closings.encode(child.found.opened) if child.found.opened else b""


def _extra(child: Child) -> bytes:
    """Return what closes a wrapper, without what closes its stream."""
    return child.found.extra if child.found else child.extra


def _names(node: Node) -> list[bytes]:
    """Return the names of the zip members that are wrappers of a node, empty for others."""
    found, done = list[bytes](), 0
    for child in node.children:
        gap = node.own[done : done + child.gap]
        found.append(name_before(gap) if child.kind == ZipMember.kind else b"")
        done += child.gap
    return found


def _deferred(node: Node) -> dict[int, int]:
    """Return the kinds of the wrappers whose digests follow from others, by number, in the order of closing them.

    Raises:
        DamagedError: if their names are not those of such.
    """
    flagged = [number for number, child in enumerate(node.children) if _flags(child) & DIGESTS]
    named = _names(node) if flagged else []
    kinds = {number: kind_of(named[number]) for number in flagged}
    if not all(kinds.values()):
        raise _impossible()
    return dict(sorted(kinds.items(), key=lambda item: (item[1] != MANIFEST, item[0])))


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
    wrappers: int = MOST_WRAPPERS


def _read_node(file: io.BytesIO, rest: _Rest, depth: int) -> Node:
    size, count = read_varint(file)[0], read_varint(file)[0]
    rest.wrappers -= count
    if rest.wrappers < 0 or (count and depth >= DEEPEST):
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
    done, size, pieces, starts, members, has_record = 0, 0, list[np.ndarray](), list[int](), list[Member](), False
    later = _deferred(node)
    for number, child in enumerate(node.children):
        wrapper, extra = WRAPPERS[child.kind], child.extra
        if later and (wrapper.has_palette or _flags(child) & RECORD):
            raise _impossible()
        content = _closed(child.node, closings, 2 * MOST_OPENED)
        starts.append(size)
        pieces.append(node.own[done : done + child.gap])
        size += child.gap
        if wrapper.has_palette:
            palette, extra = Palette.read(extra)
            colours = _part_of(pieces, starts, size - palette.distance - palette.size, palette.size)
            content = palette.exchanged(content, np.argsort(ranks_of(colours)).astype(np.uint8))
        if (flags := _flags(child)) & RECORD:
            if has_record:
                raise _impossible()
            content, has_record = record_of(content, np.concatenate([*pieces, node.own[:0]]).tobytes(), members), True
        starts.append(size)
        pieces.append(node.own[:0] if number in later else _piece(child, content, extra, closings))
        size += pieces[-1].size
        if size > most:
            raise _impossible()
        done += child.gap
        is_zip = child.kind == ZipMember.kind
        members.append(Member(size - pieces[-1].size, size, content if is_zip else None, flags & ALL))
    if not pieces:
        return node.own
    if later:
        members = _with_digests(node, later, pieces, members, closings)
        if members[-1].end > most:
            raise _impossible()
    data = np.concatenate([*pieces, node.own[done:]])
    return fill(data, members) if any(member.flags for member in members) else data


def _piece(child: Child, content: np.ndarray, extra: bytes, closings: Closings) -> np.ndarray:
    """Return the bytes of a wrapper."""
    stream = closings.close(content, child.closing) if child.closing else content[:0]
    return WRAPPERS[child.kind].close(content, stream, extra)


def _with_digests(
    node: Node, later: dict[int, int], pieces: list[np.ndarray], members: list[Member], closings: Closings
) -> list[Member]:
    """Close the wrappers whose digests follow from others, and return all members with their places.

    Args:
        node: the node.
        later: the kinds of these wrappers, by number.
        pieces: for each wrapper the bytes before it and its own, which are still missing for these.
        members: all wrappers.
        closings: what closes streams.
    """
    named = _names(node)
    digests = Digests(
        (name, member.content)
        for number, (name, member) in enumerate(zip(named, members, strict=True))
        if number not in later and member.content is not None
    )
    for number, kind in later.items():
        child, content = node.children[number], members[number].content
        assert content is not None
        content = digests.filled(kind, content)
        pieces[2 * number + 1] = _piece(child, content, child.extra, closings)
        members[number] = members[number]._replace(content=content)
    ends = np.cumsum([piece.size for piece in pieces])[1::2].tolist()
    sizes = [piece.size for piece in pieces[1::2]]
    return [member._replace(start=end - size, end=end) for member, end, size in zip(members, ends, sizes, strict=True)]


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
    extra = _extra(child)
    if child.kind != ZipMember.kind or not extra:
        return 0
    if len(extra) > 1 or not 1 <= extra[0] <= ALL | RECORD | DIGESTS:
        raise _impossible()
    return extra[0]


def _impossible() -> DamagedError:
    return DamagedError("the wrappers of a block are impossible: the file is damaged")
