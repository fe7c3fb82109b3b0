"""Blocks whose wrappers are opened: their contents are put together by kind, and coded by the models of their kind.

The payload is a zero, a plan, and groups. The plan is the tree of the wrappers (parse/tree.py), and the pieces of the
opened bytes with the group of each. The plan and the groups are blocks of one kind of content.
docs/format.md specifies it (3.5).
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from squeeze.codecs.content import Content, Region
from squeeze.codecs.parse import outline, room, tree
from squeeze.codecs.parse.dex import Dex
from squeeze.codecs.parse.encodings import CodePage, Utf32
from squeeze.codecs.parse.finding import parse
from squeeze.codecs.parse.java.wrapper import JavaClass
from squeeze.codecs.parse.program.wrapper import Program, has_sections
from squeeze.codecs.parse.pyc.wrapper import Pyc
from squeeze.codecs.parse.quick.lz4_frames import Lz4Frame
from squeeze.codecs.parse.quick.parquet import ParquetPage
from squeeze.codecs.parse.quick.snappy_frames import SnappyFrame
from squeeze.codecs.parse.texts import Lines, Utf16
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import blocks, container, media, sampling
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.trials import Trials
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

_LARGE = 1 << 14  # bytes of text, byte code, classes or LZ4 from which on another form of them always pays
_LARGE_PROGRAM = 1 << 17  # the same of programs that are a part of other data
_SHRUNK = 1.2  # times the bytes of blocks in LZ4 and Snappy from which on their content is always smaller
_MOSTLY = 0.75  # share of the data from which on it is that
_LEAST_TABLE = 1 << 11  # bytes of tables of one record length that become a group of their own
_PART_COST = 2  # bytes that a coded part must save to pay for its length
_LONGEST = 1 << 24  # bytes of a block in a group, unless it is of a medium
_MOST_PLAN = 1 << 24  # bytes of a tree and its pieces
_LEAST_MEDIUM = 256  # bytes of a medium that becomes a group of its own
_MOST_PARTS = 1 << 19  # parts of a block: media are alone, and have a quarter of a KiB or more of at most 64 MiB
MEMORY = 8  # bytes of memory for each opened byte: its copies, tokens, and the stream that is written
_PLAN_MEMORY = 128  # the same for each byte of a plan, whose pieces and wrappers have a few bytes

EncodePlan = Callable[[np.ndarray], Coded | None]
EncodePart = Callable[[np.ndarray, Content], Coded | None]


@dataclass(frozen=True)
class OpenedBlock(Coded):
    """A coded block with opened wrappers, and their numbers by kind."""

    wrappers: dict[str, int] = field(default_factory=dict, compare=False)


def find(data: np.ndarray, by_network: bool = True) -> Node | None:
    """Return the tree of the wrappers in a block that pay, or None without any.

    Args:
        data: uint8, the block.
        by_network: whether a network reads text; others learn by themselves how lines end, and what bytes stand for.
    """
    root = parse(data, Trials(), () if by_network else (Lines.kind, CodePage.kind))
    return root if root.children else None


def surely_pays(root: Node, data: np.ndarray) -> bool:
    """Return whether the wrappers of a block, uint8, are such that it is not worth coding it closed, too.

    Short programs must look like code, or have sections: what others load may be tables, texts or noise.
    """
    size = data.size
    kinds = {child.kind for node in root.nodes() for child in node.children}
    outer = {child.kind for child in root.children}
    if size >= _LARGE_PROGRAM and outer == {Program.kind}:
        return True
    wrapped = sum(child.found.size for child in root.children if child.found)
    of_code = {Pyc.kind, JavaClass.kind, Dex.kind, Program.kind}
    is_sure = kinds <= {Utf16.kind, Utf32.kind, Lines.kind} or outer <= of_code
    if outer <= {Lz4Frame.kind, SnappyFrame.kind, ParquetPage.kind}:
        is_sure = size_of(root) - root.own.size >= _SHRUNK * wrapped  # noise is stored
    if size < _LARGE or not is_sure or wrapped < _MOSTLY * size:
        return False
    if Program.kind not in outer or blocks.content(data).kind == "executable":
        return True
    return all(has_sections(child.found) for child in root.children if child.found and child.kind == Program.kind)


def encode(root: Node, encode_plan: EncodePlan, encode_part: EncodePart) -> OpenedBlock:
    """Code the data of a tree.

    Args:
        root: its wrappers.
        encode_plan: codes the plan as a block of a kind without a language model, or returns None to store it.
        encode_part: the same for a part of a group.
    """
    found = [(content, node.own[start:end]) for node in root.nodes() for start, end, content in _regions(node)]
    rows = Counter[Content]()  # bytes of tables, by their content
    for content, piece in found:
        rows[content] += piece.size if content.kind == "table" else 0
    groups, pieces = _Groups(), bytearray()
    for content, piece in found:
        is_small = content.kind == "table" and rows[content] < _LEAST_TABLE
        pieces += varint(piece.size) + varint(groups.add(sampling.OTHER if is_small else content, piece))
    written = tree.to_bytes(root)
    plan = np.frombuffer(varint(len(written)) + written + pieces, np.uint8)
    parts = [_part(plan, encode_plan(plan))]
    for content, joint in groups.all:
        joined = np.concatenate(joint)
        longest = joined.size if media.of_content(content) else _LONGEST
        cuts = [joined[at : at + longest] for at in range(0, joined.size, longest)]
        parts += [varint(len(cuts)), *(_part(cut, encode_part(cut, content)) for cut in cuts)]
    return OpenedBlock(container.OPENED, b"\0" + b"".join(parts), wrappers=outline.counts(root))


def size_of(root: Node) -> int:
    """Return the bytes of a tree with all wrappers opened."""
    return sum(node.own.size for node in root.nodes())


def _regions(node: Node) -> Iterator[Region]:
    """Yield the regions of a node's own bytes."""
    if node.content and node.own.size >= _LEAST_MEDIUM:
        yield 0, node.own.size, node.content
        return
    done = 0
    for start, end, content in node.regions:
        if end > start:
            yield from _found(node.own, done, start)
            yield start, end, content
            done = end
    yield from _found(node.own, done, node.own.size)


def _found(data: np.ndarray, begin: int, end: int) -> Iterator[Region]:
    """Yield the regions of a part of uint8 `data`, whose kinds its bytes say."""
    if begin < end:
        for start, stop, content in media.regions(data[begin:end]):
            yield begin + start, begin + stop, content


class _Groups:
    """The pieces of the opened bytes by their content; most media are alone."""

    def __init__(self) -> None:
        self.all: list[tuple[Content, list[np.ndarray]]] = []
        self._numbers: dict[tuple[Content, tuple[int, ...]], int] = {}  # of the groups that may get more pieces

    def add(self, content: Content, piece: np.ndarray) -> int:
        """Add a piece, and return the number of its group."""
        medium = media.of_content(content)
        joins = not medium or medium.joins(piece.size, content)
        key = content, medium.likeness(piece, content) if medium and joins else ()
        number = self._numbers.get(key, len(self.all)) if joins else len(self.all)
        if number == len(self.all):
            self.all.append((content, []))
        if joins:
            self._numbers[key] = number
        self.all[number][1].append(piece)
        return number


def _part(data: np.ndarray, coded: Coded | None) -> bytes:
    if coded is None or len(coded.payload) + _PART_COST > data.size:
        return bytes([container.STORED]) + varint(data.size) + data.tobytes()
    return bytes([coded.kind]) + varint(data.size) + varint(len(coded.payload)) + coded.payload


@dataclass(frozen=True)
class Parts:
    """The blocks in a block with opened wrappers, each with its raw bytes: the plan, and those of each group."""

    plan: tuple[Coded, int]
    groups: list[list[tuple[Coded, int]]]

    @property
    def sizes(self) -> list[int]:
        """The raw bytes of each group."""
        return [sum(size for _, size in group) for group in self.groups]

    @property
    def size(self) -> int:
        """The raw bytes of all of them."""
        return self.plan[1] + sum(self.sizes)

    @property
    def memory(self) -> int:
        """The bytes of memory for closing them."""
        return _PLAN_MEMORY * self.plan[1] + MEMORY * sum(self.sizes)

    def blocks(self) -> Iterator[Coded]:
        """Yield the blocks of the groups."""
        for group in self.groups:
            for coded, _ in group:
                yield coded


def read(payload: bytes, length: int) -> Parts:
    """Read the blocks in a block of `length` raw bytes, without decoding them.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    if read_exactly(file, 1) != b"\0":
        raise _impossible()
    plan, groups, left = _read_part(file, _MOST_PLAN), list[list[tuple[Coded, int]]](), room.MOST_OPENED + length
    most = _MOST_PARTS
    while file.tell() < len(payload):
        groups.append([])
        count, _ = read_varint(file)
        most -= count
        if most < 0:
            raise _impossible()
        for _ in range(count):
            groups[-1].append(_read_part(file, left))
            left -= groups[-1][-1][1]
        if not groups[-1]:
            raise _impossible()
    return Parts(plan, groups)


def _read_part(file: io.BytesIO, most: int) -> tuple[Coded, int]:
    kind, (raw, _) = read_exactly(file, 1)[0], read_varint(file)
    size = raw if kind == container.STORED else read_varint(file)[0]
    most = most if media.of_block(kind) else min(most, _LONGEST)
    if kind not in container.CODECS or kind in (container.OPENED, container.REPEATS) or raw > most or size > raw:
        raise _impossible()
    if size > len(file.getbuffer()):
        raise _impossible()
    return Coded(kind, read_exactly(file, size)), raw


@dataclass(frozen=True)
class Plan:
    """The plan of a block.

    Attributes:
        tree: The tree of its wrappers (parse/tree.py).
        pieces: The size and the group of each piece of the opened bytes.
    """

    tree: bytes
    pieces: list[tuple[int, int]]

    def places(self, group: int) -> np.ndarray:
        """Return where the bytes of a group are among the opened bytes, int64."""
        sizes, groups = np.array(self.pieces, np.int64).reshape(-1, 2).T
        return np.flatnonzero(np.repeat(groups == group, sizes))


def read_plan(data: np.ndarray, parts: Parts) -> Plan:
    """Return the plan of a block from its bytes, uint8.

    Raises:
        DamagedError: if it does not belong to the groups.
    """
    file = io.BytesIO(data.tobytes())
    size, _ = read_varint(file)
    if size > data.size:
        raise _impossible()
    written, pieces, left = read_exactly(file, size), list[tuple[int, int]](), parts.sizes
    while file.tell() < data.size:
        size, group = read_varint(file)[0], read_varint(file)[0]
        if group >= len(left) or size > left[group]:
            raise _impossible()
        left[group] -= size
        pieces.append((size, group))
    if any(left):
        raise _impossible()
    return Plan(written, pieces)


def decode(
    parts: Parts,
    length: int,
    decode_part: Callable[[Coded, int, np.ndarray | None], np.ndarray],
    guessed: np.ndarray | None = None,
) -> np.ndarray:
    """Decode the parts of a block, and close its wrappers to uint8 [length].

    Args:
        parts: of the block.
        length: its raw bytes.
        decode_part: decodes a block of one kind of content of some raw bytes, which may be guessed.
        guessed: uint8, the opened bytes that are expected, which make decoding faster.

    Raises:
        DamagedError: if they do not belong together.
    """
    plan = read_plan(decode_part(*parts.plan, None), parts)
    data, groups = np.empty(sum(parts.sizes), np.uint8), []
    known = None if guessed is None or guessed.size != data.size else _by_group(plan, guessed)
    for number, group in enumerate(parts.groups):
        done, decoded = 0, []
        for coded, size in group:
            expected = None if known is None else known[number][done : done + size]
            decoded.append(decode_part(coded, size, expected))
            done += size
        groups.append(np.concatenate(decoded))
    for start, size, number, at in _runs(plan):
        data[start : start + size] = groups[number][at : at + size]
    return close(plan, data, length)


def _by_group(plan: Plan, data: np.ndarray) -> dict[int, np.ndarray]:
    """Return the opened bytes of each group that has any."""
    found: dict[int, list[np.ndarray]] = {}
    for start, size, number, _ in _runs(plan):
        found.setdefault(number, []).append(data[start : start + size])
    return {number: np.concatenate(pieces) for number, pieces in found.items()}


def _runs(plan: Plan) -> Iterator[tuple[int, int, int, int]]:
    """Yield the start of each piece among the opened bytes, its size, its group, and its start in that group."""
    start, done = 0, dict[int, int]()
    for size, number in plan.pieces:
        yield start, size, number, done.get(number, 0)
        start, done[number] = start + size, done.get(number, 0) + size


def close(plan: Plan, data: np.ndarray, length: int) -> np.ndarray:
    """Close the wrappers of a block around its opened bytes, uint8, to uint8 [length].

    Raises:
        DamagedError: if they do not belong together.
    """
    closed = tree.close(tree.read(plan.tree, data), length)
    if closed.size != length:
        raise _impossible()
    return closed


def _impossible() -> DamagedError:
    return DamagedError("a block with opened wrappers is impossible: the file is damaged")
