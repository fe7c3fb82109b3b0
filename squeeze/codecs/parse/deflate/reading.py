"""Reading a deflate stream into its content, tokens and codes."""

import numpy as np

from squeeze.codecs.parse.deflate import layout
from squeeze.codecs.parse.deflate.layout import Tokens, empty, reversed_bits, set_fixed_lengths
from squeeze.codecs.parse.room import Room
from squeeze.numerics.jit import inline, kernel, part

_TABLE = 1 << layout.LONGEST
_TABLE_COST = 512  # bytes of content that take as much time as the tables of a block


def read(data: np.ndarray, room: Room) -> tuple[Tokens, int] | None:
    """Read a deflate stream.

    Args:
        data: uint8, which starts with the stream.
        room: for its content.

    Returns:
        the stream, and its coded bytes; or None if it is not one, is cut off, or is larger.
    """
    first, table, most = empty(0, 0, 1, 0), np.zeros((2, _TABLE), np.uint16), room.content
    if not _read(data, first, most, table, False):
        room.spend(_work(first))
        return None
    content, tokens, blocks, repeats = (
        int(first.totals[k]) for k in (layout.CONTENT, layout.TOKENS, layout.BLOCKS, layout.SYMBOLS)
    )
    if blocks > layout.most_blocks(content):
        room.spend(_work(first))
        return None
    found = empty(content, tokens, blocks, repeats)
    _read(data, found, most, table, True)
    return found, (int(found.totals[layout.BITS]) + 7) // 8


def _work(stream: Tokens) -> int:
    """Return how many bytes of content take as much time as reading a stream did; tables of codes take some, too."""
    content, blocks, symbols = (int(stream.totals[k]) for k in (layout.CONTENT, layout.BLOCKS, layout.SYMBOLS))
    return content + symbols + _TABLE_COST * blocks


@inline
def _peek(data, bit):
    """Return at least 33 bits from a place on; zeros after the end."""
    start = bit >> 3
    value = np.uint64(0)
    for k in range(5):
        if start + k < data.size:
            value |= np.uint64(data[start + k]) << np.uint64(8 * k)
    return np.int64(value >> np.uint64(bit & 7))


@part
def _decoding_table(codes, row, first, count, table, which):
    """Fill a table from the next bits to symbol << 4 | length.

    Returns its bits, or -1 if there are more codes than bits allow.
    """
    longest, used = 0, 0
    for k in range(count):
        longest = max(longest, np.int64(codes[row, first + k]))
    if longest == 0:
        table[which, 0] = table[which, 1] = 0
        return 1
    for k in range(1 << longest):
        table[which, k] = 0
    code = 0
    for length in range(1, longest + 1):
        for k in range(count):
            if codes[row, first + k] == length:
                used += 1 << (longest - length)
                if used > 1 << longest:
                    return -1
                place = reversed_bits(code, length)
                while place < 1 << longest:
                    table[which, place] = np.uint16(k << 4 | length)
                    place += 1 << length
                code += 1
        code <<= 1
    return longest


@inline
def _is_within(bit, data):
    return bit <= 8 * data.size


@part
def _read_code_lengths(data, bit, s, row, counts, table, store):
    """Read the code lengths of a dynamic block into a row, and return the bit after them, or -1."""
    header = _peek(data, bit)
    literals, distances, repeats = 257 + (header & 31), 1 + (header >> 5 & 31), 4 + (header >> 10 & 15)
    bit += 14
    if literals > layout.USED_LITERALS or distances > layout.DISTANCES:
        return -1
    for k in range(layout.CODES):
        s.codes[row, k] = 0
    for k in range(repeats):
        s.codes[row, layout.FIRST_REPEAT_CODE + layout.REPEAT_ORDER[k]] = _peek(data, bit) & 7
        bit += 3
    width = _decoding_table(s.codes, row, layout.FIRST_REPEAT_CODE, layout.REPEAT_CODES, table, 0)
    done, before = 0, -1
    if width < 0:
        return -1
    while done < literals + distances:
        entry = np.int64(table[0, _peek(data, bit) & ((1 << width) - 1)])
        if entry == 0 or not _is_within(bit, data):
            return -1
        bit += entry & 15
        symbol, extra, count, value = entry >> 4, 0, 1, entry >> 4
        if symbol >= 16:
            width_of_extra = 2 if symbol == 16 else 3 if symbol == 17 else 7
            extra = _peek(data, bit) & ((1 << width_of_extra) - 1)
            bit += width_of_extra
            count = extra + (11 if symbol == 18 else 3)
            value = before if symbol == 16 else 0
        if value < 0 or done + count > literals + distances:
            return -1
        for k in range(done, done + count):
            s.codes[row, k if k < literals else layout.FIRST_DISTANCE + k - literals] = value
        done, before = done + count, value
        if store:
            s.repeats[counts[layout.SYMBOLS]] = np.uint16(symbol | extra << 8)
        counts[layout.SYMBOLS] += 1
    if store:
        s.blocks[row, layout.NLITERALS], s.blocks[row, layout.NDISTANCES], s.blocks[row, layout.NREPEAT_CODES] = (
            literals,
            distances,
            repeats,
        )
    return bit


@part
def _read_stored(data, bit, s, row, counts, most, store):
    """Read a stored block, and return the bit after it, or -1."""
    padding = -bit & 7
    if store:
        s.blocks[row, layout.PADDING] = _peek(data, bit) & ((1 << padding) - 1)
    bit += padding
    size = _peek(data, bit) & 0xFFFF
    check = _peek(data, bit + 16) & 0xFFFF
    bit += 32
    if size ^ check != 0xFFFF or not _is_within(bit + 8 * size, data) or counts[layout.CONTENT] + size > most:
        return -1
    if store:
        s.blocks[row, layout.SIZE] = size
        for k in range(size):
            s.content[counts[layout.CONTENT] + k] = data[(bit >> 3) + k]
    counts[layout.CONTENT] += size
    return bit + 8 * size


@part
def _read_tokens(data, bit, s, counts, most, table, widths, store):
    """Read the tokens of a block, and return the bit after them, or -1."""
    of_literals, of_distances = (1 << widths[0]) - 1, (1 << widths[1]) - 1
    while _is_within(bit, data):
        entry = np.int64(table[0, _peek(data, bit) & of_literals])
        symbol = entry >> 4
        bit += entry & 15
        if entry == 0:
            return -1
        if symbol < layout.END_OF_BLOCK:
            if counts[layout.CONTENT] >= most:
                return -1
            if store:
                s.content[counts[layout.CONTENT]] = symbol
                s.tokens[counts[layout.TOKENS]] = 0
            counts[layout.CONTENT] += 1
            counts[layout.TOKENS] += 1
            continue
        if symbol == layout.END_OF_BLOCK:
            return bit if _is_within(bit, data) else -1
        symbol -= layout.END_OF_BLOCK + 1
        if symbol >= layout.LENGTH_BASE.size:
            return -1
        length = layout.LENGTH_BASE[symbol] + (_peek(data, bit) & ((1 << layout.LENGTH_EXTRA[symbol]) - 1))
        bit += layout.LENGTH_EXTRA[symbol]
        entry = np.int64(table[1, _peek(data, bit) & of_distances])
        symbol = entry >> 4
        bit += entry & 15
        if entry == 0 or (length == layout.MOST_MATCH and layout.LENGTH_SYMBOL[length] != 28):
            return -1
        distance = layout.DISTANCE_BASE[symbol] + (_peek(data, bit) & ((1 << layout.DISTANCE_EXTRA[symbol]) - 1))
        bit += layout.DISTANCE_EXTRA[symbol]
        if distance > counts[layout.CONTENT] or counts[layout.CONTENT] + length > most:
            return -1
        if store:
            for k in range(counts[layout.CONTENT], counts[layout.CONTENT] + length):
                s.content[k] = s.content[k - distance]
            s.tokens[counts[layout.TOKENS]] = np.uint32(length << 16 | distance)
        counts[layout.CONTENT] += length
        counts[layout.TOKENS] += 1
    return -1


@kernel
def _read(data, s, most, table, store):
    """Read a stream: count what it has, or also store it. Return whether it is one."""
    counts, bit, final = s.totals, np.int64(0), np.int64(0)
    for k in range(counts.size):
        counts[k] = 0
    while final == 0:
        row = counts[layout.BLOCKS] if store else 0
        final, kind = _peek(data, bit) & 1, _peek(data, bit) >> 1 & 3
        begun = counts[layout.CONTENT]
        bit += 3
        if not _is_within(bit, data) or kind > layout.DYNAMIC:
            return False
        if kind == layout.STORED:
            bit = _read_stored(data, bit, s, row, counts, most, store)
        else:
            if kind == layout.FIXED:
                set_fixed_lengths(s.codes, row)
            else:
                bit = _read_code_lengths(data, bit, s, row, counts, table, store)
            if bit >= 0:
                widths = (
                    _decoding_table(s.codes, row, 0, layout.LITERALS, table, 0),
                    _decoding_table(s.codes, row, layout.FIRST_DISTANCE, layout.DISTANCES, table, 1),
                )
                bit = _read_tokens(data, bit, s, counts, most, table, widths, store) if min(widths) > 0 else -1
        if bit < 0:
            return False
        if store:
            s.blocks[row, layout.TYPE], s.blocks[row, layout.FINAL], s.blocks[row, layout.END] = (
                kind,
                final,
                counts[layout.TOKENS],
            )
            s.blocks[row, layout.REPEATS], s.blocks[row, layout.SIZE] = (
                counts[layout.SYMBOLS],
                counts[layout.CONTENT] - begun,
            )
        counts[layout.BLOCKS] += 1
    counts[layout.BITS] = bit
    counts[layout.REST] = _peek(data, bit) & ((1 << (-bit & 7)) - 1)
    return True
