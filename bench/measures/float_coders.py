"""Sizes and speeds of two codings of exponents that a GPU can decode, over real bf16 weights.

Compared are a Huffman code of the exponents limited to 12 bits (DFloat11's kind), the same over exponent and
two mantissa bits, and this package's rANS, each with one table a tensor. Speeds are one thread's over all exponents of
the tensor: Huffman reads four streams with one table look-up a symbol.
"""

import argparse
import heapq
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.entry import Row
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.rans import MAX_PRECISION
from squeeze.codecs.tensors.tables import quantise
from squeeze.numerics.jit import kernel

_LIMIT = 12  # bits of the longest codeword
_STREAMS = 4


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for path in options.paths:
        totals = dict.fromkeys(("bound", "huffman", "huffman, 2 mantissa bits", "rans", "rans, 2 mantissa bits"), 0.0)
        seconds, values = {"huffman": 0.0, "rans": 0.0}, 0
        for data in large_tensors(path):
            rotated = data << 1 | data >> 15
            for name, bits in sizes(rotated).items():
                totals[name] += bits
            values += data.size
            symbols, counts = dense(rotated >> 8)
            seconds["huffman"] += time_huffman(symbols, lengths(counts))
            seconds["rans"] += time_rans(symbols)
        bound = totals.pop("bound")
        above = {name: round(bits / bound - 1, 5) for name, bits in totals.items()}
        speeds = {f"{name} M/s": round(values / 1e6 / spent, 1) for name, spent in seconds.items()}
        yield {"checkpoint": path.stem, **above, **speeds}


def large_tensors(path: Path) -> Iterator[np.ndarray]:
    """bf16 values, as uint16, of the tensors of 2^16 values or more."""
    file = tensorfile.read(path)
    with path.open("rb") as reading:
        for tensor in file.tensors:
            if tensor.dtype == "BF16" and tensor.size >= 1 << 17:
                yield tensorfile.read_tensor(reading, tensor).view(np.uint16)


def sizes(rotated: np.ndarray) -> dict[str, float]:
    """Bits of a tensor by each way, and the bound: the entropies of its two halves."""
    found = {"bound": entropy(np.bincount(rotated >> 8)) + entropy(np.bincount(rotated & 255))}
    for name, bits in (("", 8), (", 2 mantissa bits", 10)):
        _, counts = dense(rotated >> (16 - bits))
        raw = (16 - bits) * rotated.size
        found[f"huffman{name}"] = float((counts * lengths(counts)).sum()) + raw
        found[f"rans{name}"] = ideal_rans(counts) + raw
    return found


def entropy(counts: np.ndarray) -> float:
    counts = counts[counts > 0].astype(np.float64)
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def dense(prefixes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Symbols numbered without gaps, and their counts."""
    counts = np.bincount(prefixes)
    used = np.flatnonzero(counts)
    number = np.zeros(counts.size, np.uint8)
    number[used] = np.arange(used.size)
    return number[prefixes], counts[used]


def ideal_rans(counts: np.ndarray) -> float:
    """Bits that coding with quantised frequencies takes, and the states of all lanes."""
    frequencies = np.zeros(counts.size, np.int64)
    quantise(counts, MAX_PRECISION, frequencies, np.empty(counts.size))
    segments = -(-int(counts.sum()) // (32 * 1024))
    code = float((counts * (MAX_PRECISION - np.log2(frequencies))).sum())
    return code + segments * (32 * 16 + 32)  # a state holds 16 bits that are not of the code


def lengths(counts: np.ndarray) -> np.ndarray:
    """Code lengths of a Huffman code limited to _LIMIT bits: package-merge (Larmore and Hirschberg, 1990)."""
    order = np.argsort(counts, kind="stable")
    leaves = [(int(counts[k]), (int(k),)) for k in order]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(_LIMIT):
        row = list(heapq.merge(leaves, merged))
        merged = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(row[::2], row[1::2], strict=False)]
    found = np.zeros(counts.size, np.int64)
    for _, members in merged[: counts.size - 1]:
        for symbol in members:
            found[symbol] += 1
    return found


def time_huffman(symbols: np.ndarray, depths: np.ndarray) -> float:
    """Seconds to decode what was coded, after a check of the result."""
    codes, table = np.zeros(depths.size, np.uint64), np.zeros(1 << _LIMIT, np.uint16)
    at = 0
    for symbol in np.lexsort((np.arange(depths.size), depths)):
        size = 1 << (_LIMIT - int(depths[symbol]))
        codes[symbol] = at >> (_LIMIT - int(depths[symbol]))
        table[at : at + size] = symbol | int(depths[symbol]) << 8
        at += size
    share = symbols.size // _STREAMS
    streams = np.zeros((_STREAMS, share * _LIMIT // 8 + 64), np.uint8)
    write_huffman(symbols, codes, depths, streams, share)
    out = np.zeros(share * _STREAMS, np.uint8)
    read_huffman(streams, table, out, share)
    assert np.array_equal(out, symbols[: out.size])
    start = time.perf_counter()
    read_huffman(streams, table, out, share)
    return time.perf_counter() - start


@kernel
def write_huffman(symbols, codes, depths, streams, share):
    for stream in range(streams.shape[0]):
        bit = 0
        for i in range(share):
            symbol = symbols[stream * share + i]
            for k in range(depths[symbol] - 1, -1, -1):
                if (codes[symbol] >> np.uint64(k)) & np.uint64(1):
                    streams[stream, bit >> 3] |= np.uint8(128 >> (bit & 7))
                bit += 1


@kernel
def read_huffman(streams, table, out, share):
    bit0 = bit1 = bit2 = bit3 = np.uint64(0)
    one, two, three = np.uint64(share), np.uint64(2 * share), np.uint64(3 * share)
    for i in range(np.uint64(share)):
        entry = table[_peek(streams[0], bit0)]
        out[i] = np.uint8(entry)
        bit0 += np.uint64(entry >> 8)
        entry = table[_peek(streams[1], bit1)]
        out[one + i] = np.uint8(entry)
        bit1 += np.uint64(entry >> 8)
        entry = table[_peek(streams[2], bit2)]
        out[two + i] = np.uint8(entry)
        bit2 += np.uint64(entry >> 8)
        entry = table[_peek(streams[3], bit3)]
        out[three + i] = np.uint8(entry)
        bit3 += np.uint64(entry >> 8)


@kernel
def _peek(stream, bit):
    at = bit >> np.uint64(3)
    word = np.uint64(stream[at]) << np.uint64(16) | np.uint64(stream[at + np.uint64(1)]) << np.uint64(8)
    word |= np.uint64(stream[at + np.uint64(2)])
    return (word >> (np.uint64(24 - 12) - (bit & np.uint64(7)))) & np.uint64(4095)


def time_rans(symbols: np.ndarray) -> float:
    """The same, of rANS as squeeze has it, without raw bits."""
    payload, out = floats.encode(symbols, "U8"), np.empty_like(symbols)
    assert payload is not None and np.array_equal(floats.decode(payload, "U8", symbols.size), symbols)
    start = time.perf_counter()
    floats.decode(payload, "U8", symbols.size, out=out)
    return time.perf_counter() - start
