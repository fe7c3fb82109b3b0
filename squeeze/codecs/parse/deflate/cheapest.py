"""Coding a block of an encoder that looks for the cheapest tokens: first its codes, then each token by its excess."""

import numpy as np

from squeeze.codecs.parse.deflate import layout, state
from squeeze.codecs.parse.deflate.codes import code_header, predict_codes
from squeeze.codecs.parse.deflate.matcher import STEPS
from squeeze.codecs.parse.deflate.paths import (
    NEVER,
    STOP,
    count_symbols,
    look,
    measure,
    rank,
    set_costs,
)
from squeeze.codecs.parse.deflate.state import code_choice, code_number
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import code_digits, code_tree
from squeeze.numerics.jit import inline, part

_UNKNOWN = 13  # bits of a symbol whose code is not known
_ROUNDS = 2  # of finding the cheapest tokens and the codes that they ask for


@inline
def _gap_bucket(gap):
    return gap if gap < 4 else 4 if gap < 6 else 5 if gap < 10 else 6


@inline
def _bucket(token):
    length = token >> 16
    return 0 if length == 0 else length - 2 if length < 6 else 4 if length < 10 else 5 if length < 20 else 6


@part
def _code_token(x, paths, p, end, token, decoding):
    """Code the token at a position, and return it, or -1 if it is impossible."""
    count, past, k = rank(paths, p), x.history[0] & (state.HISTORIES - 1), 0
    while k < count:
        gap = paths.excess[k + 1] - paths.excess[k] if k + 1 < count else np.int64(100)
        context = _bucket(paths.tokens[k]) * 8 + _gap_bucket(gap)
        if k == 0:
            context = context * state.HISTORIES + past
        else:
            context = state.FIRST_PICKS + (min(k, 7) * 56 + context) * 8 + min(paths.excess[k], 7)
        if code_choice(x, token == paths.tokens[k], state.PICK + context, decoding):
            token = paths.tokens[k]
            break
        k += 1
    if k == count:
        token = _code_other(x, p, end, token, decoding)
    x.history[0] = x.history[0] << 1 | (k > 0)
    return token


@part
def _code_other(x, p, end, token, decoding):
    """Code a token that is not among the ranked ones."""
    if not code_choice(x, token != 0, state.OTHER, decoding):
        return np.int64(0)
    length, distance = token >> 16, token & 0xFFFF
    length = layout.LEAST_MATCH + code_tree(
        length - layout.LEAST_MATCH, 8, x.entries, state.MATCH_LENGTH, x.coder, x.coded, decoding
    )
    symbol = code_tree(layout.DISTANCE_SYMBOL[distance], 5, x.entries, state.FAR, x.coder, x.coded, decoding)
    if symbol >= layout.DISTANCES or length > end - p:
        return np.int64(-1)
    extra = code_digits(
        distance - layout.DISTANCE_BASE[symbol], layout.DISTANCE_EXTRA[symbol], x.coder, x.coded, decoding
    )
    distance = layout.DISTANCE_BASE[symbol] + extra
    return length << 16 | distance if distance <= p else np.int64(-1)


@part
def _expect_codes(x, paths, p):
    """Predict the codes of a block whose matches are known, from the costs of the block before."""
    for _ in range(_ROUNDS):
        measure(paths, p)
        count_symbols(paths, p, x.counts)
        predict_codes(x)
        set_costs(paths, x.predicted, 0, _UNKNOWN)


@part
def code_cheapest(x, paths, row, p, repeats, decoding):
    """Code the codes and the tokens of a block.

    Returns the position after it and the number of repeat symbols, or -1 for one of them.
    """
    s, block, n = x.stream, x.stream.blocks, x.stream.content.size
    failed = np.int64(-1), repeats
    size = n - p
    if not code_choice(x, block[row, layout.SIZE] == size, state.ENDS, decoding):
        size = code_number(x, block[row, layout.SIZE], state.NTOKENS, decoding)
    if size > n - p:
        return failed
    end = p + size
    look(paths, p, end)
    _expect_codes(x, paths, p)
    repeats = code_header(x, row, repeats, np.int64(0), decoding)
    if repeats < 0:
        return failed
    if block[row, layout.TYPE] == layout.FIXED:
        layout.set_fixed_lengths(s.codes, row)
    set_costs(paths, s.codes, row, NEVER)
    done = np.int64(s.blocks[row - 1, layout.END]) if row else np.int64(0)
    measure(paths, p)
    while p < end:
        if p >= paths.state[STOP]:
            look(paths, p, end)
            measure(paths, p)
        if done >= s.tokens.size or x.matcher.state[STEPS] < 0 or arithmetic.is_over(x.coder, x.coded, decoding):
            return failed
        token = _code_token(x, paths, p, end, np.int64(s.tokens[done]), decoding)
        if token < 0:
            return failed
        s.tokens[done] = token
        p += max(token >> 16, 1)
        done += 1
    set_costs(paths, s.codes, row, _UNKNOWN)
    block[row, layout.END] = done
    return p, repeats
