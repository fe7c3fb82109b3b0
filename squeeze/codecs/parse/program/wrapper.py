"""Programs as wrappers: an image whose content has its parts transformed, and is of known kinds of content."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from squeeze.codecs.content import ABSOLUTE, CODES, Content, Region
from squeeze.codecs.parse.program import elf, fixed, headers, macho, pe, plan as plans, transform
from squeeze.codecs.parse.program.plan import KEPT, Part, Plan, Segment
from squeeze.codecs.parse.program.sections import Image, Role, Section
from squeeze.codecs.parse.protocol import Found, Wrapper
from squeeze.codecs.parse.room import Room

__all__ = ["Program", "has_sections"]

_ELF = re.compile(b"\x7fELF[\x01\x02][\x01\x02]\x01")
_MACHO = re.compile(b"\xce\xfa\xed\xfe"), re.compile(b"\xcf\xfa\xed\xfe")
_PE = re.compile(b"PE\0\0")
_LEAST = 1 << 9  # bytes of the smallest image
_PROOFS = 6  # times as long as reading an image: to transform it three times, and to undo that
_HEADERS = 1 << 20  # bytes that headers count as, of which there are many perhaps, if they are not valid
_LEAST_CODE = 64  # bytes of code that is transformed
_HALF, _WIDE = 4, 16  # the high bytes of an address of 64 bits come first in rows of so many bytes
_NEAR = 256  # bytes between code that is transformed as one
_CODES = (
    None,
    plans.X86,
    plans.X86_64,
    plans.ARM64,
    plans.RISCV,
    *[plans.WORDS] * 4,
    None,
)  # kinds of parts of code, by machine
_KINDS = {
    Role.FRAMES: plans.FRAMES,
    Role.RELOCATIONS: plans.RELOCATIONS,
    Role.RANGES: plans.ROWS,
    Role.PLACES: plans.PLACES,
    Role.BEGINS: plans.BEGINS,
    Role.SYMBOLS: plans.SYMBOLS,
    Role.HEADERS: plans.HEADERS,
    Role.FRAME_INDEX: plans.FRAME_INDEX,
    Role.HASH: plans.HASH,
}
# Roles that have a kind without final addresses, too.
_OF_OBJECTS = (Role.RANGES, Role.PLACES, Role.BEGINS, Role.SYMBOLS, Role.HEADERS)
_EXECUTABLE = Content("executable", 0, ABSOLUTE)
_OF_CODE = (  # content of code, by machine
    *(None, _EXECUTABLE, _EXECUTABLE, Content("AArch64 code", 4), Content("RISC-V code", 2)),
    *(Content("SPARC code", 4), Content("PowerPC code", 4), Content("MIPS code", 4), Content("ARM code", 4)),
    Content("z/Architecture code", 2),
)


class Program(Wrapper):
    """An image of a program, a library or an object file, in ELF, PE or Mach-O.

    Parts of the kinds in `without` stay as they are, for ablations.
    """

    def __init__(self, without: tuple[int, ...] = ()):
        self._without = without

    kind = 9
    name = "program"
    mark = _ELF
    is_certain = True
    least_copied = 0.1
    keeps_header = True

    def find(self, data: bytes) -> Iterator[int]:
        for mark in (_ELF, *_MACHO):
            yield from (match.start() for match in mark.finditer(data))
        for match in _PE.finditer(data):
            start = data.rfind(b"MZ", max(match.start() - pe.FARTHEST, 0), match.start())
            if start >= 0:
                yield start

    def open(self, data: bytes, start: int, room: Room) -> Found | None:
        image = _reader(data[start : start + 4])(data, start)
        if image is None and _ELF.match(data, start):
            room.spend(_HEADERS)
        if image is None or not _LEAST <= image.size <= room.content:
            return None
        raw = np.frombuffer(data, np.uint8, image.size, start)
        for is_careful, without in ((False, ()), (False, (plans.RISCV,)), (True, ())):
            sections = _apart(image, is_careful)
            plan = _plan(image, raw, sections, (*self._without, *without))
            if not (plan.parts or self._without):
                return None
            content = transform.hide(raw, plan)
            if np.array_equal(transform.show(content, plan), raw):
                regions = tuple(_regions(sections, plan))
                return Found(self.kind, start, image.size, content, None, plan.to_bytes(), None, regions)
        room.spend(_PROOFS * image.size)
        return None

    def close(self, content: np.ndarray, stream: np.ndarray, extra: bytes) -> np.ndarray:
        return transform.show(content, Plan.read(extra, content.size))

    def kind_name(self, extra: bytes) -> str:
        return f"{Plan.read_head(extra)} {self.name}"

    def title(self, extra: bytes, number: int) -> str:
        plan = Plan.read_head(extra)
        return f"{self.name} {number}: {plan}, {plan.sections:,} sections"

    def segments(self, content: np.ndarray, extra: bytes) -> list[tuple[int, int, str]]:
        plan = Plan.read(extra, content.size)
        raw = transform.show(content, plan).tobytes()
        image = _reader(raw[:4])(raw, 0)
        found, done, removed = list[tuple[int, int, str]](), 0, _removed(plan)
        for section in sorted(image.sections if image else [], key=lambda section: section.start):
            start, end = (
                _place(min(place, len(raw)), removed) for place in (section.start, section.start + section.size)
            )
            if done <= start < end and section.name:
                found.append((start, end, section.name))
                done = end
        return found


def has_sections(found: Found) -> bool:
    """Return whether section headers of a program in ELF say what is in it."""
    return any(part.kind == plans.HEADERS for part in Plan.read(found.extra, found.content.size).parts)


def _reader(mark: bytes) -> Callable[[bytes, int], Image | None]:
    return elf.read if mark == b"\x7fELF" else pe.read if mark[:2] == b"MZ" else macho.read


def _apart(image: Image, is_careful: bool) -> list[Section]:
    """Return sections of an image that do not overlap, by their places; if careful, of other roles than _KINDS."""
    found, done = list[Section](), 0
    for section in sorted(image.sections, key=lambda section: (section.start, section.size)):
        size = min(section.size, image.size - section.start)
        if section.role is Role.OTHER or section.start < done or size <= 0:
            continue
        if is_careful and section.role in _KINDS:
            continue
        whole = size == section.size
        last = found[-1] if found else None
        if last and last.role == section.role == Role.CODE and section.start - done <= _NEAR:
            found[-1] = replace(last, size=section.start + size - last.start)
        elif whole or section.role not in (Role.FRAME_INDEX, Role.HASH):
            found.append(replace(section, size=size))
        done = section.start + size
    return found


def _plan(image: Image, raw: np.ndarray, sections: list[Section], without: tuple[int, ...]) -> Plan:
    """Return the plan of an image, whose derived parts are checked."""
    segments = sorted(
        Segment(address % (1 << 63), start, min(size, image.size - start))
        for address, start, size in image.segments
        if start < image.size
    )
    empty = Plan(image.format, image.machine, image.count, tuple(segments[: plans.MOST_SEGMENTS]))
    parts, derived, read = list[Part](), 0, 0
    for section in sections:
        kind = _kind(image, section)
        if kind is None or kind in without or len(parts) == plans.MOST:
            continue
        numbers = section.of
        if kind == plans.WORDS:
            numbers = (_form(image),)
        elif kind not in (*KEPT, plans.FRAMES, plans.COMMONS, plans.RELOCATIONS) and section.row:
            numbers = section.row << 1 | image.is_big, *section.of
        if kind in plans.BY_OTHERS:
            if len(section.of) != 2 or sum(section.of) > image.size or read + section.of[1] > image.size:
                continue
            read += section.of[1]
            if kind == plans.SYMBOLS and not _are_in_order(raw, section, image.is_big):
                continue
        skipped = min(_HALF if kind == plans.ROWS and image.is_big and section.row >= _WIDE else 0, section.size)
        part = Part(kind, section.start + skipped, section.size - skipped, numbers)
        if kind not in KEPT:
            parts.append(part)
        elif numbers and derived < plans.MOST_DERIVED:
            derived += 1
            if _is_derived(raw, part, empty):
                parts.append(part)
    return replace(empty, parts=tuple(parts))


def _kind(image: Image, section: Section) -> int | None:
    """Return the kind of the part that a section becomes, or None if it stays as it is."""
    if section.role is Role.CODE:
        kind = _CODES[image.machine] if section.size >= _LEAST_CODE else None
        if kind == plans.ARM64 and not image.is_placed:
            kind = plans.WORDS
        return kind if image.is_placed or (kind == plans.WORDS and not image.is_big) else None
    if section.role is Role.FRAMES and not image.is_placed and not image.is_big:
        return plans.COMMONS
    return _KINDS.get(section.role) if image.is_placed or section.role in _OF_OBJECTS else None


def _form(image: Image) -> int:
    """Return the form of code with instructions of 4 bytes."""
    content = _OF_CODE[image.machine]
    assert content
    return CODES[content.kind] << 2 | (0 if image.is_big else fixed.LITTLE) | (fixed.PLACED if image.is_placed else 0)


def _are_in_order(raw: np.ndarray, section: Section, is_big: bool) -> bool:
    """Return whether the names of most symbols begin where those before end."""
    table, start = raw[section.start : section.start + section.size].copy(), section.of[0]
    headers.names(table, raw[start : start + section.of[1]], section.row, is_big, True)
    first = table[: table.size // section.row * section.row].reshape(-1, section.row)[:, 3 if is_big else 0]
    return 2 * int(np.count_nonzero(first == 1)) > int(np.count_nonzero(first))


def _is_derived(raw: np.ndarray, part: Part, plan: Plan) -> bool:
    """Return whether the bytes of a derived part are what the others say."""
    places = part.numbers if part.kind == plans.FRAME_INDEX else part.numbers[1:]
    if part.size < KEPT[part.kind] or any(
        start + size > raw.size for start, size in zip(places[::2], places[1::2], strict=True)
    ):
        return False
    found = transform.derived(raw, part, plan)
    return found is not None and np.array_equal(found, raw[part.end - part.removed : part.end])


def _regions(sections: list[Section], plan: Plan) -> Iterator[Region]:
    """Yield the regions of the content whose kind the sections say."""
    removed = _removed(plan)
    for section in sections:
        start, content = _place(section.start, removed), _content(section, plan)
        if content:
            yield start, start + section.size, content


def _removed(plan: Plan) -> list[tuple[int, int]]:
    """Return where the derived bytes of an image begin and end."""
    return [(part.end - part.removed, part.end) for part in plan.parts if part.removed]


def _place(place: int, removed: list[tuple[int, int]]) -> int:
    """Return the place in the content of a place in the image, or of the first byte after it that is not derived."""
    return place - sum(min(place, end) - start for start, end in removed if start < place)


def _content(section: Section, plan: Plan) -> Content | None:
    """Return the kind of content of a section, or None if its bytes say that; models of code are those of x86."""
    if section.role is Role.CODE:
        return _OF_CODE[plan.machine]
    if section.role is Role.TEXT:
        return Content("text")
    return Content("table", section.row) if section.row else None
