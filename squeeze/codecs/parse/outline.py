"""The outline of a tree of wrappers: their counts, and what is in each, in the order in which the data has it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from squeeze.codecs.parse import zip_header
from squeeze.codecs.parse.program.wrapper import Program
from squeeze.codecs.parse.streams import Gzip, ZipMember
from squeeze.codecs.parse.tree import Child, Node, read_shape
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.errors import printable

__all__ = ["Segment", "counts", "in_place", "in_words", "written_counts"]

_PLURAL = (ZipMember.name, Program.name)  # ends of names that have a plural
_NESTING = " > "  # between the names of a wrapper and of one in it
_LONGEST_HEADER = 1 << 12  # bytes before a stream in which its name is looked for


class Segment(NamedTuple):
    """Bytes that are in the same wrapper, or outside of all.

    Attributes:
        start: The first byte, among the opened bytes as files have them.
        end: The one after the last.
        name: That of the wrapper and of those that it is in, or "" for bytes outside of all.
    """

    start: int
    end: int
    name: str


def counts(root: Node) -> dict[str, int]:
    """Return the number of wrappers of each kind in a tree, the most frequent first."""
    kinds = Counter(WRAPPERS[child.kind].kind_name(_extra(child)) for node in root.nodes() for child in node.children)
    return dict(kinds.most_common())


def _extra(child: Child) -> bytes:
    """Return what closes a wrapper, as it was found or as a file has it."""
    return child.found.extra if child.found else child.extra


def written_counts(written: bytes) -> dict[str, int]:
    """Return the number of wrappers of each kind in a tree that `tree.to_bytes` wrote.

    Raises:
        DamagedError: if it is impossible.
    """
    return counts(read_shape(written))


def in_words(found: Mapping[str, int]) -> str:
    """Return numbers of wrappers in words, such as "14 zip members, 1 UTF-16"."""
    return ", ".join(
        f"{count:,} {name}{'s' if count > 1 and name.endswith(_PLURAL) else ''}" for name, count in found.items()
    )


def in_place(root: Node) -> list[Segment]:
    """Return the segments of a tree as if each content was in the place of its wrapper."""
    starts, end = dict[int, int](), 0
    for node in root.nodes():
        starts[id(node)] = end
        end += node.own.size
    return [segment for segment in _segments(root, starts, "", Counter()) if segment.start < segment.end]


def _segments(node: Node, starts: Mapping[int, int], name: str, numbers: Counter[str]) -> Iterator[Segment]:
    begin, done = starts[id(node)], 0
    for child in node.children:
        yield Segment(begin + done, begin + done + child.gap, name)
        done += child.gap
        inner = _name(child, node.own[max(done - _LONGEST_HEADER, 0) : done].tobytes(), numbers)
        inner = f"{name}{_NESTING}{inner}" if name else inner
        if child.node.children or not (parts := WRAPPERS[child.kind].segments(child.node.own, _extra(child))):
            yield from _segments(child.node, starts, inner, numbers)
        else:
            yield from _parts(starts[id(child.node)], child.node.own.size, inner, parts)
    yield Segment(begin + done, begin + node.own.size, name)


def _parts(begin: int, size: int, name: str, parts: list[tuple[int, int, str]]) -> Iterator[Segment]:
    """Yield the segments of a content of `size` bytes by its named parts."""
    done = 0
    for start, end, part in parts:
        yield Segment(begin + done, begin + start, name)
        yield Segment(begin + start, begin + end, f"{name}{_NESTING}{printable(part)}")
        done = end
    yield Segment(begin + done, begin + size, name)


def _name(child: Child, before: bytes, numbers: Counter[str]) -> str:
    """Return the name in the header `before` a wrapper, or its kind and number."""
    wrapper = WRAPPERS[child.kind]
    numbers[wrapper.name] += 1
    found = b""
    if child.kind == ZipMember.kind:
        header = zip_header.ending_at(before, len(before))
        found = header.name if header else b""
    elif child.kind == Gzip.kind:
        found = _gzip_name(before)
    return printable(found.decode(errors="replace")) if found else wrapper.title(_extra(child), numbers[wrapper.name])


def _gzip_name(before: bytes) -> bytes:
    """Return the name in a gzip header without other fields at the end of `before`, or nothing."""
    start = before.rfind(b"\x1f\x8b\x08\x08")
    name = before[start + 10 :] if start >= 0 else b""
    return name[:-1] if name.find(b"\0") == len(name) - 1 else b""
