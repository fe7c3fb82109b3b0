"""Coding the tokens of a block, each as zlib would choose it or not."""

import numpy as np

from squeeze.codecs.parse.deflate import layout, state
from squeeze.codecs.parse.deflate.matcher import (
    BLOCK,
    CHEAPEST,
    LITERALS_ONLY,
    MATCH,
    NOTHING,
    SPEED,
    STEPS,
    advance,
    of_rank,
    predict,
    rank_of,
)
from squeeze.codecs.parse.deflate.state import code_choice, code_number
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import code_digits, code_tree
from squeeze.numerics.jit import inline, part


@inline
def _bucket(length):
    if length < 7:
        return max(length - 2, 0)
    return 5 if length < 11 else 6 if length < 33 else 7


@part
def _code_token(x, p, token, decoding):
    """Code the token at position p, and return it, or -1 if it is impossible."""
    kind, length, distance = predict(x.matcher, p)
    past, bucket = x.history[0] & (state.HISTORIES - 1), _bucket(length)
    context = (kind * state.BUCKETS + bucket) * state.HISTORIES + past
    if code_choice(x, token != 0, state.IS_MATCH + context, decoding):
        right = np.int64(0)
        if kind != NOTHING:
            right = code_choice(x, token == (length << 16 | distance), state.IS_SAME + context, decoding)
        token = length << 16 | distance if right else _code_match(x, p, token, bucket, decoding)
        wrong = 1 - (right if kind == MATCH else 0)
    else:
        token = np.int64(0)
        wrong = np.int64(kind == MATCH)
    x.history[0] = x.history[0] << 1 | wrong
    return token


@part
def _code_match(x, p, token, bucket, decoding):
    """Code a match that was not predicted."""
    length, distance = token >> 16, token & 0xFFFF
    length = layout.LEAST_MATCH + code_tree(
        length - layout.LEAST_MATCH, 8, x.entries, state.MATCH_LENGTH + 256 * bucket, x.coder, x.coded, decoding
    )
    if length > x.stream.content.size - p:
        return np.int64(-1)
    rank = 0 if decoding else rank_of(x.matcher, p, length, distance, state.RANKS)
    known = 0
    while known < state.RANKS and code_choice(
        x, rank > known, state.RANK + bucket * (state.RANKS + 1) + known, decoding
    ):
        known += 1
    if known < state.RANKS:
        distance = of_rank(x.matcher, p, length, known)
    else:
        symbol = code_tree(layout.DISTANCE_SYMBOL[distance], 5, x.entries, state.FAR, x.coder, x.coded, decoding)
        if symbol >= layout.DISTANCES:
            return np.int64(-1)
        extra = code_digits(
            distance - layout.DISTANCE_BASE[symbol], layout.DISTANCE_EXTRA[symbol], x.coder, x.coded, decoding
        )
        distance = layout.DISTANCE_BASE[symbol] + extra
    return length << 16 | distance if 0 < distance <= p else np.int64(-1)


@part
def code_stored(x, row, p, decoding):
    """Code a stored block, and return the position after it, or -1."""
    block, end = x.stream.blocks, x.stream.content.size
    high = code_tree(block[row, layout.SIZE] >> 8, 8, x.entries, state.STORED_SIZE, x.coder, x.coded, decoding)
    low = code_tree(block[row, layout.SIZE] & 255, 8, x.entries, state.STORED_SIZE + 256, x.coder, x.coded, decoding)
    block[row, layout.SIZE] = high << 8 | low
    if code_choice(x, block[row, layout.PADDING] != 0, state.PADDED, decoding):
        block[row, layout.PADDING] = code_tree(
            block[row, layout.PADDING], 7, x.entries, state.PADDED + 2, x.coder, x.coded, decoding
        )
    if p + block[row, layout.SIZE] > end:
        return -1
    end = p + block[row, layout.SIZE]
    is_predicted = x.matcher.settings[SPEED] != LITERALS_ONLY and x.matcher.settings[SPEED] != CHEAPEST
    while p < end and is_predicted and x.matcher.state[STEPS] >= 0:
        kind, length, _ = predict(x.matcher, p)
        length = min(length, end - p) if kind == MATCH else 0
        advance(x.matcher, p, length)
        p += max(length, 1)
    return end


@part
def code_tokens(x, row, p, decoding):
    """Code the tokens of a block, count its symbols, and return the position after it, or -1."""
    s, counts = x.stream, x.counts
    first = np.int64(s.blocks[row - 1, layout.END]) if row else np.int64(0)
    count, most = s.blocks[row, layout.END] - first, x.matcher.settings[BLOCK]
    ends = count == most or (p + s.blocks[row, layout.SIZE] == s.content.size and count < most)
    predicted = code_choice(x, ends, state.ENDS, decoding)
    if not predicted:
        count = code_number(x, count, state.NTOKENS, decoding)
    elif decoding:
        count = most
    for k in range(layout.CODES):
        counts[k] = 0
    done = np.int64(0)
    while done < count and not (predicted and p == s.content.size):
        if p >= s.content.size or first + done >= s.tokens.size or x.matcher.state[STEPS] < 0:
            return -1
        if arithmetic.is_over(x.coder, x.coded, decoding):
            return -1
        token = _code_token(x, p, np.int64(s.tokens[first + done]), decoding)
        if token < 0:
            return -1
        s.tokens[first + done] = token
        length = token >> 16
        if length:
            counts[257 + layout.LENGTH_SYMBOL[length]] += 1
            counts[layout.FIRST_DISTANCE + layout.DISTANCE_SYMBOL[token & 0xFFFF]] += 1
        else:
            counts[s.content[p]] += 1
        advance(x.matcher, p, length)
        p += max(length, 1)
        done += 1
    counts[layout.END_OF_BLOCK] = 1
    s.blocks[row, layout.END] = first + done
    return p
