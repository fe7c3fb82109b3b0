"""Blocks whose wrappers are opened: their contents are put together by kind, and coded by the models of their kind.

The payload is a zero, a plan, and groups. The plan is the tree of the wrappers (parse/tree.py), and the pieces of the
opened bytes with the group of each. The plan and the groups are blocks of one kind of content.
docs/format.md specifies it (3.5).
"""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.content import Content, Medium, Region
from squeeze.codecs.parse import tree
from squeeze.codecs.parse.deflate.stream import Opened
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import blocks, container, media, sampling
from squeeze.codecs.stream.container import Coded
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

_SMALL = 1 << 12  # bytes of content that is opened without a trial, if deflate made it smaller
_LEAST_TABLE = 1 << 15  # bytes of a table that becomes a group of its own
_LEAST_SAMPLE, _MOST_SAMPLE = 1 << 15, 1 << 18
_COST = 8  # bytes of a wrapper in the tree
_PAYS = 0.95  # share of a wrapper's bytes below which its content must be coded
_LONGEST = 1 << 24  # bytes of a block in a group, unless it is of a medium
_MOST_PLAN = 1 << 24  # bytes of a tree and its pieces
MEMORY = 8  # bytes of memory for each opened byte: its copies, tokens, and the stream that is written

Encode = Callable[[np.ndarray, Content], Coded | None]


def find(data: np.ndarray) -> Node | None:
    """Return the tree of the wrappers in a block, uint8 `data`, that pay, or None without any."""
    root = tree.parse(data, _pays)
    return root if root.children else None


def _pays(data: np.ndarray, found: Found) -> bool:
    """Return whether the content of a wrapper in `data`, coded by level 1, is clearly smaller than the wrapper.

    A part of larger contents decides. It is compared with the tokens that deflate has for it. Text in another form is
    opened unless level 1, which gains the least from it, makes it clearly larger, such as genes that look like base64.
    """
    content = found.content
    if found.opened and content.size <= _SMALL:
        return found.size < 0.9 * content.size
    if found.opened and found.content_kind and (medium := media.of_content(found.content_kind)):
        return _medium_pays(found, found.opened, found.content_kind, medium)
    size = min(content.size, max(_LEAST_SAMPLE, min(content.size // 16, _MOST_SAMPLE)))
    start = (content.size - size) // 2
    sample = content[start : start + size]
    coded = sampling.coded_size(sample, _kind_of(sample))
    if found.opened:
        return coded < _PAYS * found.opened.stream.share_of(start, start + size) * found.size
    begin, end = (found.start + found.size * place // content.size for place in (start, start + size))
    return _PAYS * coded < sampling.coded_size(data[begin:end], Content("text")) - _COST


def _medium_pays(found: Found, opened: Opened, kind: Content, medium: Medium) -> bool:
    """Return the same for the content of a medium, of which its own model at level 1 codes a part."""
    start, end, part = medium.sample(found.content.size, kind, _MOST_SAMPLE)
    coded = medium.encode(found.content[start:end], part, 1)
    return coded is not None and len(coded) < _PAYS * opened.stream.share_of(start, end) * found.size


def _kind_of(data: np.ndarray) -> Content:
    """Return the content of a few bytes, or of a sample of more: text or other."""
    kind = blocks.content(data[:_SMALL]).kind
    return Content("text" if kind == "text" else "other")


def encode(root: Node, encode_plan: Encode, encode_part: Encode) -> Coded:
    """Code the data of a tree.

    Args:
        root: its wrappers.
        encode_plan: codes the plan as a block, or returns None to store it.
        encode_part: the same for a part of a group.
    """
    groups, pieces = list[tuple[Content, list[np.ndarray]]](), bytearray()
    for node in root.nodes():
        for start, end, content in _regions(node):
            number = _group(groups, content, end - start)
            groups[number][1].append(node.own[start:end])
            pieces += varint(end - start) + varint(number)
    written = tree.to_bytes(root)
    plan = np.frombuffer(varint(len(written)) + written + pieces, np.uint8)
    parts = [_part(plan, encode_plan(plan, sampling.OTHER))]
    for content, found in groups:
        joined = np.concatenate(found)
        longest = joined.size if media.of_content(content) else _LONGEST
        cuts = [joined[at : at + longest] for at in range(0, joined.size, longest)]
        parts += [varint(len(cuts)), *(_part(cut, encode_part(cut, content)) for cut in cuts)]
    return Coded(container.OPENED, b"\0" + b"".join(parts))


def size_of(root: Node) -> int:
    """Return the bytes of a tree with all wrappers opened."""
    return sum(node.own.size for node in root.nodes())


def _regions(node: Node) -> Iterator[Region]:
    """Yield the regions of a node's own bytes."""
    if node.content and node.own.size:
        yield 0, node.own.size, node.content
    elif node.own.size:
        yield from media.regions(node.own)


def _group(groups: list[tuple[Content, list[np.ndarray]]], content: Content, size: int) -> int:
    """Return the number of the group of a piece: small tables are coded with others, and a medium alone."""
    content = sampling.OTHER if content.kind == "table" and size < _LEAST_TABLE else content
    same = [number for number, (known, _) in enumerate(groups) if known == content]
    if same and not media.of_content(content):
        return same[0]
    groups.append((content, []))
    return len(groups) - 1


def _part(data: np.ndarray, coded: Coded | None) -> bytes:
    if coded is None:
        return bytes([container.STORED]) + varint(data.size) + data.tobytes()
    return bytes([coded.kind]) + varint(data.size) + varint(len(coded.payload)) + coded.payload


@dataclass(frozen=True)
class Parts:
    """The blocks in a block with opened wrappers, each with its raw bytes: the plan, and those of each group."""

    plan: tuple[Coded, int]
    groups: list[list[tuple[Coded, int]]]

    @property
    def size(self) -> int:
        """The raw bytes of all of them."""
        return self.plan[1] + sum(size for group in self.groups for _, size in group)

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
    plan, groups, left = _read_part(file, _MOST_PLAN), list[list[tuple[Coded, int]]](), tree.MOST_OPENED + length
    while file.tell() < len(payload):
        groups.append([])
        for _ in range(read_varint(file)[0]):
            groups[-1].append(_read_part(file, left))
            left -= groups[-1][-1][1]
        if not groups[-1]:
            raise _impossible()
    return Parts(plan, groups)


def _read_part(file: io.BytesIO, most: int) -> tuple[Coded, int]:
    kind, (raw, _) = read_exactly(file, 1)[0], read_varint(file)
    size = raw if kind == container.STORED else read_varint(file)[0]
    most = most if media.of_block(kind) else min(most, _LONGEST)
    if kind not in container.CODECS or kind == container.OPENED or raw > most or size > raw:
        raise _impossible()
    if size > len(file.getbuffer()):
        raise _impossible()
    return Coded(kind, read_exactly(file, size)), raw


def decode(parts: Parts, length: int, decode_part: Callable[[Coded, int], np.ndarray]) -> np.ndarray:
    """Decode the parts of a block, and close its wrappers to uint8 [length].

    Args:
        parts: of the block.
        length: its raw bytes.
        decode_part: decodes a block of one kind of content of some raw bytes.

    Raises:
        DamagedError: if they do not belong together.
    """
    plan = io.BytesIO(decode_part(*parts.plan).tobytes())
    size, _ = read_varint(plan)
    if size > len(plan.getbuffer()):
        raise _impossible()
    written = read_exactly(plan, size)
    groups = [np.concatenate([decode_part(*part) for part in group]) for group in parts.groups]
    data = tree.close(tree.read(written, _in_order(plan, groups)), length)
    if data.size != length:
        raise _impossible()
    return data


def _in_order(plan: io.BytesIO, groups: list[np.ndarray]) -> np.ndarray:
    """Return the opened bytes from the pieces of the groups, whose sizes follow in the plan."""
    pieces, done = [np.zeros(0, np.uint8)], [0] * len(groups)
    while plan.tell() < len(plan.getbuffer()):
        size, number = read_varint(plan)[0], read_varint(plan)[0]
        if number >= len(groups) or done[number] + size > groups[number].size:
            raise _impossible()
        pieces.append(groups[number][done[number] : done[number] + size])
        done[number] += size
    return np.concatenate(pieces)


def _impossible() -> DamagedError:
    return DamagedError("a block with opened wrappers is impossible: the file is damaged")
