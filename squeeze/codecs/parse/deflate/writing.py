"""Writing tokens and codes as a deflate stream."""

import numpy as np

from squeeze.codecs.parse.deflate import layout
from squeeze.codecs.parse.deflate.layout import Tokens, reversed_bits, set_fixed_lengths
from squeeze.numerics.jit import inline, kernel, part

_SPARE = 1024  # bytes that a writer needs after the coded ones


def write(stream: Tokens) -> np.ndarray:
    """Return the bytes of a deflate stream, uint8."""
    size = 2 * stream.content.size + _SPARE * (int(stream.totals[layout.BLOCKS]) + 1)  # the longest codes have 15 bits
    out = np.zeros(size, np.uint8)
    bits = _write(stream, out, np.zeros(layout.CODES, np.uint16))
    return out[: (bits + 7) // 8]


@inline
def _put(out, bit, value, count):
    """Write some bits, at most 32, and return the place after them."""
    shifted = np.uint64(value) << np.uint64(bit & 7)
    place = bit >> 3
    while shifted:
        out[place] |= np.uint8(shifted & np.uint64(255))
        shifted >>= np.uint64(8)
        place += 1
    return bit + count


@part
def _encoding_table(codes, row, first, count, table):
    """Fill in the bits of each symbol."""
    code = 0
    for length in range(1, layout.LONGEST + 1):
        for k in range(count):
            if codes[row, first + k] == length:
                table[first + k] = reversed_bits(code, length)
                code += 1
        code <<= 1


@part
def _write_code_lengths(s, row, first, out, bit, table):
    """Write the header of a dynamic block from its repeat symbols, which start at `first`."""
    block = s.blocks
    bit = _put(out, bit, block[row, layout.NLITERALS] - 257, 5)
    bit = _put(out, bit, block[row, layout.NDISTANCES] - 1, 5)
    bit = _put(out, bit, block[row, layout.NREPEAT_CODES] - 4, 4)
    for k in range(block[row, layout.NREPEAT_CODES]):
        bit = _put(out, bit, s.codes[row, layout.FIRST_REPEAT_CODE + layout.REPEAT_ORDER[k]], 3)
    _encoding_table(s.codes, row, layout.FIRST_REPEAT_CODE, layout.REPEAT_CODES, table)
    for k in range(first, block[row, layout.REPEATS]):
        symbol, extra = np.int64(s.repeats[k]) & 255, np.int64(s.repeats[k]) >> 8
        bit = _put(out, bit, table[layout.FIRST_REPEAT_CODE + symbol], s.codes[row, layout.FIRST_REPEAT_CODE + symbol])
        if symbol >= 16:
            bit = _put(out, bit, extra, 2 if symbol == 16 else 3 if symbol == 17 else 7)
    return bit


@part
def _write_tokens(s, row, first, place, out, bit, table):
    """Write the tokens of a block from number `first` on, whose content starts at `place`."""
    codes = s.codes
    for k in range(first, s.blocks[row, layout.END]):
        token = np.int64(s.tokens[k])
        if token == 0:
            symbol = np.int64(s.content[place])
            bit = _put(out, bit, table[symbol], codes[row, symbol])
            place += 1
            continue
        length, distance = token >> 16, token & 0xFFFF
        symbol = layout.LENGTH_SYMBOL[length]
        bit = _put(out, bit, table[257 + symbol], codes[row, 257 + symbol])
        bit = _put(out, bit, length - layout.LENGTH_BASE[symbol], layout.LENGTH_EXTRA[symbol])
        symbol = layout.DISTANCE_SYMBOL[distance]
        bit = _put(out, bit, table[layout.FIRST_DISTANCE + symbol], codes[row, layout.FIRST_DISTANCE + symbol])
        bit = _put(out, bit, distance - layout.DISTANCE_BASE[symbol], layout.DISTANCE_EXTRA[symbol])
        place += length
    return _put(out, bit, table[layout.END_OF_BLOCK], codes[row, layout.END_OF_BLOCK])


@kernel
def _write(s, out, table):
    """Write a stream, and return its number of bits."""
    bit, first, place, repeats = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for row in range(s.totals[layout.BLOCKS]):
        kind = s.blocks[row, layout.TYPE]
        bit = _put(out, bit, s.blocks[row, layout.FINAL] | kind << 1, 3)
        if kind == layout.STORED:
            length = s.blocks[row, layout.SIZE]
            bit = _put(out, bit, s.blocks[row, layout.PADDING], -bit & 7)
            bit = _put(out, bit, length, 16)
            bit = _put(out, bit, length ^ 0xFFFF, 16)
            for k in range(length):
                out[(bit >> 3) + k] = s.content[place + k]
            bit += 8 * length
        else:
            if kind == layout.FIXED:
                set_fixed_lengths(s.codes, row)
            else:
                bit = _write_code_lengths(s, row, repeats, out, bit, table)
            _encoding_table(s.codes, row, 0, layout.LITERALS, table)
            _encoding_table(s.codes, row, layout.FIRST_DISTANCE, layout.DISTANCES, table)
            bit = _write_tokens(s, row, first, place, out, bit, table)
        first, repeats = s.blocks[row, layout.END], s.blocks[row, layout.REPEATS]
        place += s.blocks[row, layout.SIZE]
    return _put(out, bit, s.totals[layout.REST], 0)
