"""Blocks whose wrappers are opened: their contents are put together by kind, and coded by the models of their kind.

The payload is a zero, a plan, and groups. The plan is the tree of the wrappers (parse/tree.py), and the pieces of the
opened bytes with the group of each. The plan and the groups are blocks of one kind of content.
docs/format.md specifies it (3.5).
"""

import io
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from squeeze.codecs.parse import tree
from squeeze.codecs.parse.protocol import Found
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import blocks, container, sampling
from squeeze.codecs.stream.container import Coded, Content
from squeeze.errors import DamagedError
from squeeze.system.binary import read_exactly, read_varint, varint

_SMALL = 1 << 12  # bytes of content that is opened without a trial, if deflate made it smaller
_LEAST_TABLE = 1 << 15  # bytes of a table that becomes a group of its own
_LEAST_SAMPLE, _MOST_SAMPLE = 1 << 15, 1 << 18
_COST = 8  # bytes of a wrapper in the tree
_PAYS = 0.95  # share of a wrapper's bytes below which its content must be coded
_LONGEST = 1 << 24  # bytes of a block in a group
_MOST_PLAN = 1 << 24  # bytes of a tree and its pieces


@lru_cache(2)
def find(data: bytes) -> Node | None:
    """Return the tree of the wrappers in the bytes of a block that pay, or None without any."""
    root = tree.parse(np.frombuffer(data, np.uint8), _pays)
    return root if root.children else None


def _pays(data: np.ndarray, found: Found) -> bool:
    """Return whether the content of a wrapper in `data`, coded by level 1, is clearly smaller than the wrapper.

    A part of larger contents decides. It is compared with the tokens that deflate has for it. Text in another form is
    opened unless level 1, which gains the least from it, makes it clearly larger, such as genes that look like base64.
    """
    content = found.content
    if found.opened and content.size <= _SMALL:
        return found.size < 0.9 * content.size
    size = min(content.size, max(_LEAST_SAMPLE, min(content.size // 16, _MOST_SAMPLE)))
    start = (content.size - size) // 2
    sample = content[start : start + size]
    coded = sampling.coded_size(sample, _kind_of(sample))
    if found.opened:
        return coded < _PAYS * found.opened.stream.share_of(start, start + size) * found.size
    begin, end = (found.start + found.size * place // content.size for place in (start, start + size))
    return _PAYS * coded < sampling.coded_size(data[begin:end], Content("text")) - _COST


def _kind_of(data: np.ndarray) -> Content:
    """Return the content of a few bytes, or of a sample of more: text or other."""
    kind = blocks.content(data[:_SMALL]).kind
    return Content("text" if kind == "text" else "other")


def encode(root: Node, encode_part: Callable[[np.ndarray, Content], Coded | None]) -> Coded:
    """Code the data of a tree.

    Args:
        root: its wrappers.
        encode_part: codes a block of one kind of content, or returns None to store it.
    """
    groups, pieces = dict[Content, list[np.ndarray]](), bytearray()
    for node in root.nodes():
        for start, end, content in blocks.regions(node.own) if node.own.size else ():
            group = _group(content, end - start)
            groups.setdefault(group, []).append(node.own[start:end])
            pieces += varint(end - start) + varint(list(groups).index(group))
    written = tree.to_bytes(root)
    plan = np.frombuffer(varint(len(written)) + written + pieces, np.uint8)
    parts = [_part(plan, encode_part(plan, sampling.OTHER))]
    for content, found in groups.items():
        joined = np.concatenate(found)
        cuts = [joined[at : at + _LONGEST] for at in range(0, joined.size, _LONGEST)]
        parts += [varint(len(cuts)), *(_part(cut, encode_part(cut, content)) for cut in cuts)]
    return Coded(container.OPENED, b"\0" + b"".join(parts))


def _group(content: Content, size: int) -> Content:
    """Return the group of a piece: small tables are coded with others."""
    return sampling.OTHER if content.kind == "table" and size < _LEAST_TABLE else content


def _part(data: np.ndarray, coded: Coded | None) -> bytes:
    if coded is None:
        return bytes([container.STORED]) + varint(data.size) + data.tobytes()
    return bytes([coded.kind]) + varint(data.size) + varint(len(coded.payload)) + coded.payload


def decode(payload: bytes, length: int, decode_part: Callable[[Coded, int], np.ndarray]) -> np.ndarray:
    """Decode a block with opened wrappers to uint8 [length].

    Args:
        payload: of the block.
        length: its raw bytes.
        decode_part: decodes a block of one kind of content of some raw bytes, and checks its memory before.

    Raises:
        DamagedError: if the payload is invalid.
    """
    file = io.BytesIO(payload)
    if read_exactly(file, 1) != b"\0":
        raise _impossible()
    plan = io.BytesIO(_read_part(file, _MOST_PLAN, decode_part).tobytes())
    size, _ = read_varint(plan)
    if size > len(plan.getbuffer()):
        raise _impossible()
    written, groups, left = read_exactly(plan, size), list[np.ndarray](), 2 * tree.MOST_OPENED
    while file.tell() < len(payload):
        count, _ = read_varint(file)
        cuts = []
        for _ in range(count):
            cuts.append(_read_part(file, min(left, _LONGEST), decode_part))
            left -= cuts[-1].size
        if not cuts:
            raise _impossible()
        groups.append(np.concatenate(cuts))
    data = tree.close(tree.read(written, _in_order(plan, groups)), length)
    if data.size != length:
        raise _impossible()
    return data


def _read_part(file: io.BytesIO, most: int, decode_part: Callable[[Coded, int], np.ndarray]) -> np.ndarray:
    kind, (raw, _) = read_exactly(file, 1)[0], read_varint(file)
    size = raw if kind == container.STORED else read_varint(file)[0]
    if kind not in container.CODECS or kind == container.OPENED or raw > most or not size <= raw:
        raise _impossible()
    if size > len(file.getbuffer()):
        raise _impossible()
    return decode_part(Coded(kind, read_exactly(file, size)), raw)


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
