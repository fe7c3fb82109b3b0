"""Writing bzip2 streams as libbzip2 does: runs, blocks, rotations, ranks of bytes, Huffman codes (Seward, bzip2 1.0.8).

Runs of bytes become their lengths, and a block is filled with the result. Its Burrows-Wheeler transform becomes places
in a list of the latest bytes. Several Huffman tables code these, and numbers for runs of zeros.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.bzip2 import huffman, sorting
from squeeze.codecs.parse.bzip2.huffman import GROUP, MOST_SYMBOLS, MOST_TABLES
from squeeze.numerics.jit import inline, kernel

__all__ = ["BLOCK_MARK", "END_MARK", "Bits", "Block", "blocks", "put_all", "write_block"]

BLOCK_MARK, END_MARK = 0x314159265359, 0x177245385090
_UNIT, _SPARE = 100_000, 19  # bytes of a block for each level, and those that are left free
_MOST_RUN = 255
_POLYNOMIAL, _MASK = 0x04C11DB7, 0xFFFFFFFF


def _crc_table() -> np.ndarray:
    table = np.arange(256) << 24
    for _ in range(8):
        table = (table << 1 & _MASK) ^ np.where(table >> 31, _POLYNOMIAL, 0)
    return table


_CRC = _crc_table()


class Bits(NamedTuple):
    """A stream that is written, high bits first.

    Attributes:
        data: uint8, zeros after what is written.
        place: int64 [1], bits that are written.
    """

    data: np.ndarray
    place: np.ndarray

    @property
    def size(self) -> int:
        """The bits that are written."""
        return int(self.place[0])


class Block(NamedTuple):
    """A block: its bytes with runs coded, uint8, and the CRC-32 of those that it stands for."""

    data: np.ndarray
    checksum: int


def blocks(content: np.ndarray, level: int) -> Iterator[Block]:
    """Yield the blocks of uint8 `content` at a level from 1 to 9."""
    most, at = _UNIT * level - _SPARE, 0
    while at < content.size:
        data, found = np.empty(most + 8, np.uint8), np.zeros(2, np.int64)
        at = int(_fill(content, at, most, data, found, _CRC))
        yield Block(data[: found[0]], int(found[1]))


@kernel
def _fill(content, at, most, data, found, table):
    """Fill a block from a place of the content on, and return where the next one begins.

    A run of 4 to 255 bytes is 4 bytes and the number of the others. It is in the block that is not full where it
    begins. The size of the block and its checksum go to `found`.
    """
    size, checksum = 0, np.int64(_MASK)
    while at < content.size and size < most:
        byte, length = content[at], 1
        while length < _MOST_RUN and at + length < content.size and content[at + length] == byte:
            length += 1
        for _ in range(length):
            checksum = ((checksum << 8) & _MASK) ^ table[(checksum >> 24) ^ np.int64(byte)]
        for _ in range(min(length, 4)):
            data[size] = byte
            size += 1
        if length >= 4:
            data[size] = length - 4
            size += 1
        at += length
    found[0], found[1] = size, checksum ^ _MASK
    return at


def write_block(bits: Bits, block: Block, place_of: Callable[[int], int]) -> None:
    """Write a block.

    Args:
        bits: the stream.
        block: what to write.
        place_of: returns the place of the block among its rotations, from that of the first one that is equal to it.
    """
    last, first = sorting.transform(block.data)
    used = np.zeros(256, bool)
    used[block.data] = True
    alphabet = int(used.sum()) + 2
    symbols, totals = np.empty(block.data.size + 1, np.uint16), np.zeros(MOST_SYMBOLS, np.int64)
    count = _rank(
        last, (np.cumsum(used) - 1).astype(np.uint8), np.arange(256, dtype=np.uint8), symbols, totals, alphabet
    )
    symbols, tables = symbols[:count], huffman.tables_of(count)
    lengths, selectors = np.zeros((MOST_TABLES, MOST_SYMBOLS), np.int64), np.zeros(-(-count // GROUP), np.uint8)
    room = np.zeros((MOST_TABLES, MOST_SYMBOLS), np.int64), np.zeros((3, 2 * MOST_SYMBOLS + 2), np.int64)
    huffman.choose_tables(symbols, alphabet, tables, totals, lengths, selectors, *room)
    _write_header(bits, used, block.checksum, place_of(first))
    _write_symbols(bits, symbols, alphabet, tables, lengths, selectors, np.zeros_like(lengths))


@kernel
def _rank(last, numbers, latest, symbols, totals, alphabet):
    """Write the symbols of a transformed block, and return their number.

    A byte is its place in the list of the latest ones plus 1, and the last symbol of the alphabet is the end. A run of
    r zeros is r in digits 1 and 2 by powers of 2, low ones first, as symbols 0 and 1.
    """
    count, run = 0, np.int64(0)
    for i in range(last.size + 1):
        place = 0
        if i < last.size:
            number = numbers[last[i]]
            while latest[place] != number:
                place += 1
            if place == 0:
                run += 1
                continue
            for k in range(place, 0, -1):
                latest[k] = latest[k - 1]
            latest[0] = number
        while run > 0:
            digit = 1 if run & 1 else 2
            symbols[count] = digit - 1
            totals[digit - 1] += 1
            count += 1
            run = (run - digit) >> 1
        symbol = place + 1 if i < last.size else alphabet - 1
        symbols[count] = symbol
        totals[symbol] += 1
        count += 1
    return count


@inline
def _put(bits, value, count):
    """Write the low `count` bits of a value, at most 24."""
    place = bits.place[0]
    shifted = np.int64(value) << (32 - count - (place & 7))
    for k in range(4):
        bits.data[(place >> 3) + k] |= np.uint8((shifted >> (24 - 8 * k)) & 255)
    bits.place[0] = place + count


@kernel
def put(bits, value, count):
    """Write the low `count` bits of a value, at most 24."""
    _put(bits, value, count)


def put_all(bits: Bits, *numbers: tuple[int, int]) -> None:
    """Write numbers, each with its number of bits."""
    for value, count in numbers:
        for rest in range(count, 0, -16):
            width = min(rest, 16)
            put(bits, value >> rest - width & (1 << width) - 1, width)


def _write_header(bits: Bits, used: np.ndarray, checksum: int, place: int) -> None:
    """Write what comes before the tables of a block."""
    put_all(bits, (BLOCK_MARK, 48), (checksum, 32), (0, 1), (place, 24))
    rows = used.reshape(16, 16)
    for row in (rows.any(1), *rows[rows.any(1)]):
        put_all(bits, *((bool(bit), 1) for bit in row))


@kernel
def _write_symbols(bits, symbols, alphabet, tables, lengths, selectors, codes):
    """Write the tables of a block, and its symbols by them. `codes`, of the size of `lengths`, is room."""
    _put(bits, tables, 3)
    _put(bits, selectors.size, 15)
    order = np.int64(0x543210)  # of the tables, the latest first, in digits of 4 bits
    for table in selectors:
        place = 0
        while (order >> (4 * place)) & 15 != table:
            _put(bits, 1, 1)
            place += 1
        _put(bits, 0, 1)
        low = order & ((np.int64(1) << (4 * place)) - 1)
        order = (order >> (4 * place + 4)) << (4 * place + 4) | low << 4 | np.int64(table)
    for table in range(tables):
        length = lengths[table, 0]
        _put(bits, length, 5)
        for symbol in range(alphabet):
            while length != lengths[table, symbol]:
                _put(bits, 2 if length < lengths[table, symbol] else 3, 2)
                length += 1 if length < lengths[table, symbol] else -1
            _put(bits, 0, 1)
        code = np.int64(0)
        for length in range(1, 21):
            for symbol in range(alphabet):
                if lengths[table, symbol] == length:
                    codes[table, symbol] = code
                    code += 1
            code <<= 1
    for i in range(symbols.size):
        table = selectors[i // GROUP]
        _put(bits, codes[table, symbols[i]], lengths[table, symbols[i]])
