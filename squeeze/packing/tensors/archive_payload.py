"""What both directions of the archive coding (archive.py) know of its payloads: the header, how values are cut,
and in what segments they are coded. docs/format.md specifies it."""

import heapq
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from squeeze.packing.tensors.archive_models import ArchiveModel, build_model
from squeeze.packing.tensors.content import Content
from squeeze.packing.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.packing.tensors.tables import damaged, parse_symbols, tables_text
from squeeze.system.arena import kept

__all__ = [
    "AT_ONCE",
    "FORMAT",
    "FORMS",
    "HEAD",
    "MAX_COLUMNS",
    "MIXED",
    "MOST_MIXED",
    "SEGMENT",
    "WHOLE",
    "Cut",
    "Tree",
    "model_of",
    "segments",
    "tops",
]

FORMAT = 1
WHOLE, MIXED = 0, 1  # what follows the header: a payload of floats.py, or this coding
SEGMENT = 1 << 22  # values that one set of models codes
MAX_COLUMNS = 1 << 28
HEAD = struct.Struct("<BBBBIQQQ")  # format, mode, mixed mantissa bits, 0, columns, values, tree bytes, rest bytes
MOST_MIXED = 7
AT_ONCE = 1 << 18  # values

# Bits of exponent and mantissa in the coded top of each dtype that is mixed.
FORMS = {"BF16": (8, 7), "F16": (5, 10), "F32": (8, 23), "F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}


class Tree(NamedTuple):
    """The Huffman tree of the exponents: nodes as in ArchiveModel, and the way to each as in `archive_models.code`."""

    nodes: Array
    paths: Array
    text: bytes  # as it stands in the payload: see tables.tables_text
    mean: int

    @classmethod
    def build(cls, counts: Array) -> "Tree":
        used = np.flatnonzero(counts)
        heap = [(int(counts[symbol]), int(symbol), [int(symbol)]) for symbol in used]
        heapq.heapify(heap)
        depths = np.zeros(counts.size, np.int64)
        while len(heap) > 1:
            first, second = heapq.heappop(heap), heapq.heappop(heap)
            symbols = first[2] + second[2]
            depths[symbols] += 1
            heapq.heappush(heap, (first[0] + second[0], min(first[1], second[1]), symbols))
        return cls.parse(tables_text(used, np.maximum(depths[used], 1)[None]), counts.size)

    @classmethod
    def parse(cls, text: bytes, exponents: int) -> "Tree":
        """The canonical tree of depths by exponent. Raises DamagedError where they are those of no tree."""
        symbols, (depths,) = (part.tolist() for part in parse_symbols(text, 1, exponents))
        order = sorted(range(len(symbols)), key=lambda k: (depths[k], symbols[k]))
        paths = np.zeros(exponents, np.uint64)
        if len(symbols) == 1:
            only = -1 - symbols[0]
            return cls(np.array([[only, only]], np.int32), paths, text, symbols[0])
        nodes, word, before = [[0, 0]], 0, 0
        if not symbols or max(depths) > 63 or sum(1 << (63 - depth) for depth in depths) != 1 << 63:
            raise damaged("its tree is impossible")
        for k in order:
            word <<= depths[k] - before
            before, node = depths[k], 0
            for shift in range(before - 1, -1, -1):
                bit = word >> shift & 1
                paths[symbols[k]] |= np.uint64(bit << (before - 1 - shift))
                if shift == 0:
                    nodes[node][bit] = -1 - symbols[k]
                elif nodes[node][bit] == 0:
                    nodes.append([0, 0])
                    nodes[node][bit] = len(nodes) - 1
                node = nodes[node][bit]
            word += 1
        return cls(np.array(nodes, np.int32), paths, text, symbols[order[0]])


@dataclass(frozen=True)
class Cut:
    """How values are cut: bits of one, of its exponent, and of the mantissa bits that are mixed."""

    bits: int
    exponent: int
    mixed: int

    @property
    def rest(self) -> int:
        return self.bits - self.exponent - self.mixed

    @property
    def dtype(self) -> str:
        """As which what is behind them is coded."""
        return next(f"U{width}" for width in (8, 16, 32) if self.rest <= width)

    @property
    def width(self) -> int:
        """Bytes of that."""
        return DTYPES[self.dtype][0] // 8

    def rotated(self, content: Content, first: int, last: int) -> Array:
        """Some values, in memory that is a thread's own."""
        data = kept("of archive", (last - first) * self.bits // 8)
        content.fill(first * self.bits // 8, data)
        values = data.view(WORDS[self.bits])
        kind = values.dtype.type
        rotated: Array = (values << kind(1)) | (values >> kind(self.bits - 1))
        return rotated

    def top(self, content: Content, first: int, last: int) -> Array:
        """uint16 of some values, in memory that is a thread's own."""
        found = tops(last - first)
        for begin in range(first, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            rotated = self.rotated(content, begin, end)
            found[begin - first : end - first] = rotated >> rotated.dtype.type(self.bits - self.exponent - self.mixed)
        return found


def tops(count: int) -> Array:
    """uint16 [count], undefined: a thread has one."""
    return kept("tops of archive", 2 * count).view(np.uint16)


def segments(count: int, columns: int) -> Iterator[tuple[int, int]]:
    """Where each segment begins and ends; whole rows where they are short."""
    size = SEGMENT // columns * columns if columns <= SEGMENT else SEGMENT
    for begin in range(0, count, size):
        yield begin, min(begin + size, count)


def model_of(values: Array, tree: Tree, columns: int, mixed: int) -> ArchiveModel:
    """What predicts a segment: a thread has one."""
    return build_model(tree.nodes, min(columns, values.size), mixed, tree.mean)
