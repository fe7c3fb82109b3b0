"""The archive coding of floats: context mixing over exponents and leading mantissa bits. Smallest, slow, CPU only.

A tensor is a matrix of `columns`. Each exponent is walked down a tree shaped
like its Huffman code, so that it costs few decisions; the first `mixed` mantissa
bits follow. Every decision is predicted from the neighbouring exponents and the
running means of its row and column, and mixed as in bitmodels/mixer.py, in
integers (archive_models.py). The bits behind, mostly noise, are coded by floats.py. A tensor that
gains nothing, or is no float, is coded by floats.py as a whole.
"""

import heapq
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.tensors import floats
from squeeze.codecs.tensors.archive_models import build_model, code
from squeeze.codecs.tensors.float_payload import DTYPES, WORDS, Array
from squeeze.codecs.tensors.tables import damaged, parse_symbols, tables_text

FORMAT = 1
WHOLE, MIXED = 0, 1  # what follows the header: a payload of floats.py, or this coding
SEGMENT = 1 << 22  # values that one set of models codes
MAX_COLUMNS = 1 << 28
_HEAD = struct.Struct("<BBBBIQQQ")  # format, mode, mixed mantissa bits, 0, columns, values, tree bytes, rest bytes
_MOST_MIXED = 7

# Bits of exponent and mantissa in the coded top of each dtype that is mixed.
_FORMS = {"BF16": (8, 7), "F16": (5, 10), "F32": (8, 23), "F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}


def encode(data: Array, dtype: str, threads: int = 1, columns: int = 0) -> Array | None:
    """The payload of a tensor's bytes, or None where it is no shorter. columns: values in a row, 0 where unknown."""
    whole = None
    if dtype not in _FORMS or data.size < 1 << 16:
        whole = floats.encode(data, dtype, threads)
    mixed = _encode_mixed(data, dtype, threads, columns) if dtype in _FORMS and data.size else None
    if whole is not None and (mixed is None or whole.size + _HEAD.size <= mixed.size):
        head = _HEAD.pack(FORMAT, WHOLE, 0, 0, 0, 0, 0, whole.size)
        mixed = np.concatenate([np.frombuffer(head, np.uint8), whole])
    return mixed if mixed is not None and mixed.size < data.size else None


def decode(payload: Array, dtype: str, size: int, threads: int = 1, out: Array | None = None) -> Array:
    """The `size` bytes that `payload` was coded from, into `out` (uint8) if given. Raises DamagedError."""
    if payload.size < _HEAD.size:
        raise damaged("its length is impossible")
    form, mode, mixed, _, columns, count, tree_size, rest_size = _HEAD.unpack(payload[: _HEAD.size].tobytes())
    body = payload[_HEAD.size :]
    if form != FORMAT or mode > MIXED or tree_size + rest_size > body.size:
        raise damaged("its coding is unknown")
    if mode == WHOLE:
        if tree_size + rest_size != body.size:
            raise damaged("its length is not that of its parts")
        return floats.decode(body[tree_size : tree_size + rest_size], dtype, size, threads, out)
    exponent_bits, mantissa_bits = _FORMS.get(dtype, (0, -1))
    if not 0 <= mixed <= min(mantissa_bits, _MOST_MIXED) or not 1 <= columns <= MAX_COLUMNS:
        raise damaged("its coding is unknown")
    if count != size // (DTYPES[dtype][0] // 8) or count < 1:
        raise damaged("its size is not that of the tensor")
    tree = _Tree.parse(body[:tree_size].tobytes(), 1 << exponent_bits)
    rest = body[tree_size : tree_size + rest_size]
    top = _decode_top(body[tree_size + rest_size :], tree, count, columns, mixed, threads)
    return _merge(top, rest, dtype, mixed, threads, np.empty(size, np.uint8) if out is None else out)


def _encode_mixed(data: Array, dtype: str, threads: int, columns: int) -> Array | None:
    exponent_bits, mantissa_bits = _FORMS[dtype]
    bits = DTYPES[dtype][0]
    values = data.view(WORDS[bits])
    kind = values.dtype.type
    rotated = (values << kind(1)) | (values >> kind(bits - 1))
    mixed, kind_of_rest, rest = _cut(rotated, bits, exponent_bits, mantissa_bits)
    top = (rotated >> kind(bits - exponent_bits - mixed)).astype(np.uint16)
    del rotated
    coded_rest = floats.encode(rest.view(np.uint8), kind_of_rest, threads)
    if coded_rest is None:
        coded_rest = rest.view(np.uint8)
    del rest
    columns = min(columns or 1 << 16, values.size, MAX_COLUMNS)
    tree = _Tree.build(np.bincount(top >> np.uint16(mixed), minlength=1 << exponent_bits))
    streams = _encode_top(top, tree, columns, mixed, threads)
    if streams is None:
        return None
    head = _HEAD.pack(FORMAT, MIXED, mixed, 0, columns, values.size, len(tree.text), coded_rest.size)
    lengths = np.array([len(stream) for stream in streams], np.uint32)
    pieces = [head + tree.text, coded_rest.tobytes(), lengths.tobytes(), *streams]
    return np.frombuffer(b"".join(pieces), np.uint8)


def _cut(rotated: Array, bits: int, exponent_bits: int, mantissa_bits: int) -> tuple[int, str, Array]:
    """How many mantissa bits are mixed, and what is left: its dtype for floats.py, and the values."""
    mixed = min(3, mantissa_bits)
    most = min(_MOST_MIXED, mantissa_bits)
    while True:
        rest_bits = bits - exponent_bits - mixed
        name = next(f"U{width}" for width in (8, 16, 32) if rest_bits <= width)
        kind = rotated.dtype.type
        rest = (rotated & kind((1 << rest_bits) - 1)).astype(WORDS[DTYPES[name][0]])
        if mixed == most or floats.estimate(rest.view(np.uint8), name) > 0.995 * rest_bits * rest.size:
            return mixed, name, rest
        mixed = most


def _merge(top: Array, rest: Array, dtype: str, mixed: int, threads: int, out: Array) -> Array:
    bits = DTYPES[dtype][0]
    exponent_bits, _ = _FORMS[dtype]
    rest_bits = bits - exponent_bits - mixed
    name = next(f"U{width}" for width in (8, 16, 32) if rest_bits <= width)
    size = top.size * DTYPES[name][0] // 8
    low = rest if rest.size == size else floats.decode(rest, name, size, threads)
    values = out.view(WORDS[bits])
    kind = values.dtype.type
    np.left_shift(top, rest_bits, out=values, casting="unsafe", dtype=values.dtype)
    np.bitwise_or(values, low.view(WORDS[DTYPES[name][0]]), out=values)
    np.bitwise_or(values >> kind(1), values << kind(bits - 1), out=values)
    return out


class _Tree(NamedTuple):
    """The Huffman tree of the exponents: nodes as in ArchiveModel, and the way to each exponent as in `code`."""

    nodes: Array
    paths: Array
    text: bytes  # as it stands in the payload: see tables.tables_text
    mean: int

    @classmethod
    def build(cls, counts: Array) -> "_Tree":
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
    def parse(cls, text: bytes, exponents: int) -> "_Tree":
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


def _segments(count: int, columns: int) -> Iterator[tuple[int, int]]:
    """Where each segment begins and ends; whole rows where they are short."""
    size = SEGMENT // columns * columns if columns <= SEGMENT else SEGMENT
    for begin in range(0, count, size):
        yield begin, min(begin + size, count)


def _encode_top(top: Array, tree: _Tree, columns: int, mixed: int, threads: int) -> list[bytes] | None:
    """The coded segments, or None where one takes over four bytes a value, which then does not pay."""

    def work(span: tuple[int, int]) -> bytes | None:
        values = top[slice(*span)]
        model = build_model(tree.nodes, min(columns, values.size), mixed, tree.mean)
        coder, coded = np.zeros(3, np.uint64), np.zeros(4 * values.size + 1024, np.uint8)
        arithmetic.start_encoder(coder)
        columns_here = min(columns, values.size)
        end = code(model, values, mixed, columns_here, 0, values.size, tree.paths, coder, coded, False)
        if end < values.size:
            return None
        return coded[: arithmetic.finish_encoder(coder, coded)].tobytes()

    with ThreadPoolExecutor(threads) as pool:
        streams = list(pool.map(work, _segments(top.size, columns)))
    coded = [stream for stream in streams if stream is not None]
    return coded if len(coded) == len(streams) else None


def _decode_top(body: Array, tree: _Tree, count: int, columns: int, mixed: int, threads: int) -> Array:
    spans = list(_segments(count, columns))
    ends = np.cumsum(np.frombuffer(body[: 4 * len(spans)].tobytes().ljust(4 * len(spans), b"\0"), np.uint32), dtype=int)
    body = body[4 * len(spans) :]
    if ends[-1] != body.size:
        raise damaged("its length is not that of its parts")
    top = np.zeros(count, np.uint16)

    def work(number: int) -> None:
        values = top[slice(*spans[number])]
        coded = body[ends[number - 1] if number else 0 : ends[number]].copy()
        model = build_model(tree.nodes, min(columns, values.size), mixed, tree.mean)
        coder = np.zeros(3, np.uint64)
        arithmetic.start_decoder(coder, coded)
        columns_here = min(columns, values.size)
        end = code(model, values, mixed, columns_here, 0, values.size, tree.paths, coder, coded, True)
        if end < values.size:
            raise damaged("its coded bytes end too early")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(len(spans))))
    return top
