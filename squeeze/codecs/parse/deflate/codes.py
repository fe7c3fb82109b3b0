"""Coding the Huffman codes of a block, each length as zlib would choose it or not."""

import numpy as np

from squeeze.codecs.parse.deflate import layout, state
from squeeze.codecs.parse.deflate.huffman import FREQUENCY, LENGTH, zlib_lengths, zlib_repeat
from squeeze.codecs.parse.deflate.matcher import JOINED
from squeeze.codecs.parse.deflate.state import code_choice
from squeeze.numerics.bitmodels.adaptive import code_tree
from squeeze.numerics.jit import inline, part


@part
def _zlib_tree(x, first, size, limit):
    """Predict the code lengths of the symbols from `first` on."""
    w = x.trees
    for k in range(size):
        w[FREQUENCY, k] = x.counts[first + k]
    zlib_lengths(w, size, limit, x.used)
    for k in range(size):
        x.predicted[0, first + k] = w[LENGTH, k]


@inline
def _last(codes, row, first, size):
    """Return the number of symbols up to the last that has a code."""
    while size and codes[row, first + size - 1] == 0:
        size -= 1
    return size


@inline
def _nrepeat_codes(codes, row):
    count = layout.REPEAT_CODES
    while count > 4 and codes[row, layout.FIRST_REPEAT_CODE + layout.REPEAT_ORDER[count - 1]] == 0:
        count -= 1
    return count


@inline
def _fill_line(x, codes, row, literals, distances):
    for k in range(literals):
        x.line[0, k] = codes[row, k]
    for k in range(distances):
        x.line[0, literals + k] = codes[row, layout.FIRST_DISTANCE + k]


@inline
def _begin_repeats(x):
    for k in range(layout.REPEAT_CODES):
        x.counts[layout.FIRST_REPEAT_CODE + k] = 0


@part
def _fixed_are_shorter(x):
    """Return whether zlib would use the fixed codes, which needs the size of a header with its own."""
    literals, distances = (
        _last(x.predicted, 0, 0, layout.USED_LITERALS),
        _last(x.predicted, 0, layout.FIRST_DISTANCE, layout.DISTANCES),
    )
    _fill_line(x, x.predicted, 0, literals, distances)
    _begin_repeats(x)
    place, before, bits = 0, -1, 14
    while place < literals + distances:
        before = -1 if place == literals else before
        symbol, run = zlib_repeat(x.line, 0, place, literals if place < literals else literals + distances, before)
        kind = symbol & 255
        x.counts[layout.FIRST_REPEAT_CODE + kind] += 1
        bits += 0 if kind < 16 else 2 if kind == 16 else 3 if kind == 17 else 7
        before, place = np.int64(x.line[0, place]), place + run
    _zlib_tree(x, layout.FIRST_REPEAT_CODE, layout.REPEAT_CODES, 7)
    bits += 3 * _nrepeat_codes(x.predicted, 0)
    fixed = 0
    for k in range(layout.CODES):
        extra = 0
        if layout.END_OF_BLOCK < k < layout.USED_LITERALS:
            extra = layout.LENGTH_EXTRA[k - layout.END_OF_BLOCK - 1]
        elif layout.FIRST_DISTANCE <= k < layout.FIRST_REPEAT_CODE:
            extra = layout.DISTANCE_EXTRA[k - layout.FIRST_DISTANCE]
        bits += x.counts[k] * (np.int64(x.predicted[0, k]) + extra)
        if k < layout.FIRST_REPEAT_CODE:
            fixed += x.counts[k] * ((np.int64(layout.FIXED_LENGTHS[k]) if k < layout.LITERALS else 5) + extra)
    return (fixed + 10) >> 3 <= (bits + 10) >> 3


@part
def _code_lengths(x, row, first, size, bits, index, decoding):
    """Code the code lengths of the symbols from `first` on, each as predicted or not."""
    codes, same = x.stream.codes, True
    for k in range(first, first + size):
        same = same and codes[row, k] == x.predicted[0, k]
    same = code_choice(x, same, index, decoding)
    for k in range(first, first + size):
        guess = np.int64(x.predicted[0, k])
        if same or code_choice(x, codes[row, k] == guess, state.IS_LENGTH + 16 * (bits == 3) + guess, decoding):
            codes[row, k] = guess
        elif bits == 3:
            codes[row, k] = code_tree(
                codes[row, k], 3, x.entries, state.REPEAT_LENGTH + 8 * guess, x.coder, x.coded, decoding
            )
        else:
            codes[row, k] = code_tree(
                codes[row, k], 4, x.entries, state.LENGTH + 16 * guess, x.coder, x.coded, decoding
            )


@inline
def _count(x, row, column, guess, least, bits, index, decoding):
    """Code a count of a block's header, which is as predicted or has some bits."""
    block = x.stream.blocks
    if code_choice(x, block[row, column] == guess, index, decoding):
        block[row, column] = guess
    else:
        value = code_tree(block[row, column] - least, bits, x.entries, index, x.coder, x.coded, decoding)
        block[row, column] = least + value


@part
def _code_repeats(x, row, total, decoding):
    """Code the repeat symbols of a block, and return their number with those before it, or -1."""
    s = x.stream
    literals, end = s.blocks[row, layout.NLITERALS], s.blocks[row, layout.NLITERALS] + s.blocks[row, layout.NDISTANCES]
    _fill_line(x, s.codes, row, literals, s.blocks[row, layout.NDISTANCES])
    _begin_repeats(x)
    joined = x.matcher.settings[JOINED]
    place, before = np.int64(0), np.int64(-1)
    while place < end:
        if total >= s.repeats.size:
            return np.int64(-1)
        before = np.int64(-1) if place == literals and not joined else before
        value = np.int64(x.line[0, place])
        symbol, run = zlib_repeat(x.line, 0, place, literals if place < literals and not joined else end, before)
        kind = 0 if symbol < 16 else (symbol & 255) - 15
        actual = np.int64(s.repeats[total])
        if not code_choice(x, actual == symbol, state.IS_REPEAT + kind, decoding):
            code = code_tree(
                max((actual & 255) - 15, 0), 2, x.entries, state.REPEAT + 4 * kind, x.coder, x.coded, decoding
            )
            symbol, run = value, 1
            if code:
                extra = code_tree(actual >> 8, 7, x.entries, state.EXTRA + 128 * code, x.coder, x.coded, decoding)
                symbol, run = 15 + code | extra << 8, extra + (11 if code == 3 else 3)
        s.repeats[total] = symbol
        x.counts[layout.FIRST_REPEAT_CODE + (symbol & 255)] += 1
        before, place, total = value, place + run, total + 1
    return total if place == end else np.int64(-1)


@part
def predict_codes(x):
    """Predict zlib's code lengths of a block whose symbols are counted."""
    _zlib_tree(x, 0, layout.USED_LITERALS, 15)
    _zlib_tree(x, layout.FIRST_DISTANCE, layout.DISTANCES, 15)


@part
def code_codes(x, row, repeats, decoding):
    """Code the Huffman codes of a block whose symbols are counted, and return the number of repeat symbols, or -1."""
    predict_codes(x)
    return code_header(x, row, repeats, np.int64(_fixed_are_shorter(x)), decoding)


@part
def code_header(x, row, repeats, guess, decoding):
    """Code the Huffman codes of a block, of which those of literals and distances are predicted.

    Args:
        x: the stream.
        row: the block.
        repeats: the number of repeat symbols before it.
        guess: whether fixed codes are expected.
        decoding: the direction.

    Returns:
        the number of repeat symbols with those of the block, or -1.
    """
    s = x.stream
    is_fixed = code_choice(x, s.blocks[row, layout.TYPE] == layout.FIXED, state.IS_FIXED + guess, decoding)
    s.blocks[row, layout.TYPE] = layout.FIXED if is_fixed else layout.DYNAMIC
    if is_fixed:
        return repeats
    _code_lengths(x, row, 0, layout.USED_LITERALS, 4, state.ARE_ZLIBS, decoding)
    _code_lengths(x, row, layout.FIRST_DISTANCE, layout.DISTANCES, 4, state.ARE_ZLIBS + 1, decoding)
    guess = max(_last(s.codes, row, 0, layout.USED_LITERALS), layout.END_OF_BLOCK + 1)
    _count(x, row, layout.NLITERALS, guess, layout.END_OF_BLOCK + 1, 5, state.COUNTS, decoding)
    guess = max(_last(s.codes, row, layout.FIRST_DISTANCE, layout.DISTANCES), 1)
    _count(x, row, layout.NDISTANCES, guess, 1, 5, state.COUNTS + 64, decoding)
    if s.blocks[row, layout.NLITERALS] > layout.USED_LITERALS or s.blocks[row, layout.NDISTANCES] > layout.DISTANCES:
        return np.int64(-1)
    repeats = _code_repeats(x, row, repeats, decoding)
    _zlib_tree(x, layout.FIRST_REPEAT_CODE, layout.REPEAT_CODES, 7)
    _code_lengths(x, row, layout.FIRST_REPEAT_CODE, layout.REPEAT_CODES, 3, state.ARE_ZLIBS + 2, decoding)
    _count(x, row, layout.NREPEAT_CODES, _nrepeat_codes(s.codes, row), 4, 4, state.COUNTS + 128, decoding)
    return repeats
