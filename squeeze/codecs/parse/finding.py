"""Finding and opening the wrappers of a block, and those in them, as a tree."""

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.image.layout import Layout
from squeeze.codecs.jpeg.medium import find_images
from squeeze.codecs.parse.base85 import Ascii85
from squeeze.codecs.parse.fax.wrapper import Fax
from squeeze.codecs.parse.jar_digests import MANIFEST, SIGNATURE, Digests, kind_of, name_before
from squeeze.codecs.parse.planes import Numbers, Planes
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.room import Room
from squeeze.codecs.parse.streams import Deflate, ZipMember
from squeeze.codecs.parse.strips import Differences, Strip, strips_in
from squeeze.codecs.parse.tree import DEEPEST, MOST_WRAPPERS, Child, Node
from squeeze.codecs.parse.wheel_record import is_record, lines_of
from squeeze.codecs.parse.wrappers import WRAPPERS
from squeeze.codecs.parse.zip_fields import DIGESTS, RECORD, Member, emptied

__all__ = ["candidates", "node_of", "parse"]

_LEAST = 48  # bytes of a wrapper that is opened
_TRIAL = 8  # times as long as reading content: to find out that it does not pay


class _Parser:
    """Opens the wrappers of a block within limits on their content and on the work of failed attempts."""

    def __init__(self, pays: Callable[[np.ndarray, Found], bool], size: int, without: Container[int]):
        self._pays, self._without = pays, without
        self._room = Room.of(size)
        self._wrappers = MOST_WRAPPERS

    def node(self, data: np.ndarray, depth: int, of: int | None = None, strip: Strip | None = None) -> Node:
        """Return the node of uint8 `data`, which is what is in a wrapper of kind `of`, if in any, and coded pixels."""
        raw, done, children, room = data.tobytes(), 0, list[Child](), self._room
        refused = [0] * len(WRAPPERS)  # the end of the last of each kind that did not pay
        opens = depth < DEEPEST and room.content > 0
        photos, strips = (list(find_images(raw)), strips_in(raw)) if opens else ([], {})
        strips |= {0: strip} if strip else {}
        named = {place: Fax(found.fax) for place, found in strips.items() if found.fax}
        places = candidates(raw, self._without, named) if opens else []
        for place, kind in _outside(places, photos):
            is_same = place == 0 and kind == of and WRAPPERS[kind].keeps_header
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
            is_certain = WRAPPERS[kind].is_certain or (kind == ZipMember.kind and is_record(raw, found.start))
            if not (node.children or is_certain or self._pays(data, found)):
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
            elif depth + 1 < DEEPEST and self._room.content >= found.content.size and self._wrappers > 1:
                return found, self._undone(found.content, form)
        if found.content_kind:
            return found, Node(found.content, (), found.content_kind)
        inner = strip if strip and (strip.fax or found.kind == Ascii85.kind) else None
        node = self.node(found.content, depth + 1, found.kind, inner)
        return found, replace(node, regions=_without(found.regions, node.children)) if found.regions else node

    def _numbers(self, found: Found, depth: int, numbers: Numbers) -> tuple[Found, Node]:
        """Return a wrapper of numbers and its node."""
        if numbers.planes and depth + 1 < DEEPEST and self._room.content >= found.content.size and self._wrappers > 1:
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
    _leave_out_record(data, children, members, flags)
    _leave_out_digests(data, children, members, flags)
    owned, done = list[np.ndarray](), 0
    for number, (member, flag) in enumerate(zip(members, flags, strict=True)):
        owned.append(data[done : member.start])
        done = member.end
        found = children[number].found
        if flag and found:
            children[number] = replace(children[number], found=replace(found, extra=bytes([flag])))
    return Node(np.concatenate([*owned, data[done:]]) if children else data, tuple(children))


def _leave_out_record(data: np.ndarray, children: list[Child], members: list[Member], flags: list[int]) -> None:
    """Replace the content of a wheel's RECORD, the last of several, by what remains of it, and flag it."""
    for number in reversed(range(len(children))):
        found = children[number].found
        if found and found.kind == ZipMember.kind and is_record(data, found.start):
            remains = lines_of(found.content, data[: found.start].tobytes(), members[:number])
            if remains is not None:
                children[number] = replace(children[number], node=Node(remains))
                flags[number] |= RECORD
            return


def _leave_out_digests(data: np.ndarray, children: list[Child], members: list[Member], flags: list[int]) -> None:
    """Replace manifests and signature files of an archive by what remains of them, and flag them."""
    if any(flag & RECORD for flag in flags) or any(WRAPPERS[child.kind].has_palette for child in children):
        return
    found = dict[int, tuple[bytes, np.ndarray]]()  # names and contents of zip members, by their numbers
    for number, member in enumerate(members):
        if member.content is not None:
            found[number] = name_before(data[members[number - 1].end if number else 0 : member.start]), member.content
    kinds = {number: kind for number, (name, _) in found.items() if (kind := kind_of(name))}
    if not kinds:
        return
    digests = Digests(found.values())
    for wanted in (MANIFEST, SIGNATURE):
        numbers = [number for number, kind in kinds.items() if kind == wanted]
        for number in numbers:
            remains = digests.emptied(wanted, found[number][1])
            if remains is not None:
                children[number] = replace(children[number], node=Node(remains))
                flags[number] |= DIGESTS
        for number in sorted(numbers, key=lambda number: flags[number] & DIGESTS) if wanted == MANIFEST else ():
            digests.read(found[number][1])


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
