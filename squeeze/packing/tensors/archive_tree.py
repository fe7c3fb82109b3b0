"""The tree down which the archive coding walks to an exponent."""

import heapq
from typing import NamedTuple

import numpy as np

from squeeze.packing.tensors.float_payload import Array
from squeeze.packing.tensors.tables import damaged, parse_symbols, tables_text

__all__ = ["Tree"]


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
