"""Entropy coding of the coefficients of a saved cache: small integers, most of them 0, token by token.

A coefficient is coded as decisions: is it 0, is its magnitude above 1, above 2 and so on, and its sign. Each decision
is predicted from the channel, its running mean, the last tokens, the channels before, and how large this token is so
far. The predictions are mixed as in numerics/bitmodels/mixer.py, in integers, so every machine decodes the same ones.
"""

from typing import NamedTuple

import numpy as np

from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors.archive_models import code_bit

MOST = 1 << 24  # largest magnitude
_DIGITS = 24  # of a magnitude above those in unary
_NODES = 32  # decisions on a magnitude that have contexts: 16 in unary, then digits of an Exp-Golomb code
_UNARY, _SIGN = 15, 31
_INPUTS, _CONTEXTS = 6, 2048
_RATE, _LIMIT = 10, 511  # of the weights, and the counts after which a map learns no slower
_START = 1 << 13  # initial weight of a prediction, in units of 2^-16
_ONE = 256  # of running means
_SPARE = 1024  # bytes, more than one coefficient takes


class Coefficients(NamedTuple):
    """The state of the models, which encoder and decoder update alike."""

    maps: np.ndarray  # uint32 [_INPUTS, contexts * _NODES]: see histories.learn
    weights: np.ndarray  # int32 [_NODES, _INPUTS + 1]
    means: np.ndarray  # int64 [K]: running means of magnitudes, in units of 1 / _ONE
    scalars: np.ndarray  # int64 [2]: magnitudes of this token so far, and what was expected
    before: np.ndarray  # int64 [4]: magnitudes of this channel in the last two tokens, and of the last two channels
    contexts: np.ndarray  # int64 [_INPUTS]
    entries: np.ndarray  # int64 [_INPUTS]
    inputs: np.ndarray  # int32 [_INPUTS + 1]


def build(means: np.ndarray) -> Coefficients:
    """Return the initial state for channels with these mean magnitudes, [K] in units of 1 / 256."""
    contexts = max(_CONTEXTS, means.size)
    return Coefficients(
        maps=np.full((_INPUTS, contexts * _NODES), 1 << 31, np.uint32),
        weights=np.full((_NODES, _INPUTS + 1), _START, np.int32),
        means=means.astype(np.int64),
        scalars=np.zeros(2, np.int64),
        before=np.zeros(4, np.int64),
        contexts=np.zeros(_INPUTS, np.int64),
        entries=np.zeros(_INPUTS, np.int64),
        inputs=np.zeros(_INPUTS + 1, np.int32),
    )


@inline
def _level(value):
    """Return the logarithm of a positive number in quarters, roughly: 0 to 63."""
    exponent = 0
    while value >= 8:
        value >>= 1
        exponent += 1
    return exponent * 4 + value - 4 if exponent else value >> 1


@inline
def _set_contexts(m, channel, before):
    """Set the contexts of a coefficient. `before` are the magnitudes of the last two tokens and channels."""
    mean = min(_level(m.means[channel] + 1), 63)
    ratio = min(max(_level((m.scalars[0] + 64) * 64 // (m.scalars[1] + 64) + 1) - 8, 0), 31)
    m.contexts[0] = channel
    m.contexts[1] = mean * 16 + min(before[0], 3) * 4 + min(before[1], 3)
    m.contexts[2] = mean * 32 + ratio
    m.contexts[3] = mean * 16 + min(before[2], 3) * 4 + min(before[3], 3)
    m.contexts[4] = min(m.means[channel] >> 1, 2047)
    m.contexts[5] = ratio * 27 + min(before[0], 2) * 9 + min(before[1], 2) * 3 + min(before[2] + before[3], 2)


@inline
def _decide(m, node, bit, coder, coded, decoding):
    for k in range(_INPUTS):
        m.entries[k] = m.contexts[k] * _NODES + node
    return code_bit(bit, m.maps, _INPUTS, m.entries, m.weights[node], m.inputs, _RATE, _LIMIT, coder, coded, decoding)


@inline
def _code_magnitude(m, magnitude, coder, coded, decoding):
    """Code a magnitude: up to 14 in unary, larger ones by the digits of what is left."""
    found = 0
    while found < _UNARY:
        if not _decide(m, found, np.int64(magnitude > found), coder, coded, decoding):
            return found
        found += 1
    digits, left = 0, magnitude - found + 1
    while digits < _DIGITS and _decide(
        m, 16 + min(digits, 14), np.int64(left >> (digits + 1) > 0), coder, coded, decoding
    ):
        digits += 1
    value = 1
    for shift in range(digits - 1, -1, -1):
        bit = (left >> shift) & 1
        if decoding:
            bit = arithmetic.decode(1 << 31, coder, coded)
        else:
            arithmetic.encode(bit, 1 << 31, coder, coded)
        value = 2 * value + bit
    return found + value - 1


@kernel
def code(m, values, coder, coded, decoding):
    """Code int32 [T, K] in either direction.

    Returns the number of tokens, fewer than T if `coded` is full or used up.
    """
    tokens, channels = values.shape
    before = m.before
    for token in range(tokens):
        if arithmetic.is_over(coder, coded, decoding):
            return token
        m.scalars[0] = m.scalars[1] = 0
        before[2] = before[3] = 0
        for channel in range(channels):
            if not decoding and np.int64(coder[arithmetic.POSITION]) > coded.size - _SPARE:
                return token
            last = np.int64(values[token - 1, channel]) if token > 0 else 0
            before[0] = abs(last)
            before[1] = abs(np.int64(values[token - 2, channel])) if token > 1 else 0
            _set_contexts(m, channel, before)
            value = np.int64(values[token, channel])
            magnitude = _code_magnitude(m, abs(value), coder, coded, decoding)
            if magnitude:
                m.contexts[1] = 2047 if last == 0 else 2045 + np.int64(last > 0)
                m.contexts[0] = channel
                negative = _decide(m, _SIGN, np.int64(value < 0), coder, coded, decoding)
                if decoding:
                    values[token, channel] = -magnitude if negative else magnitude
            elif decoding:
                values[token, channel] = 0
            part = min(magnitude, 63) * _ONE
            m.scalars[0] += part - (m.scalars[0] >> 5)
            m.scalars[1] += m.means[channel] - (m.scalars[1] >> 5)
            m.means[channel] += (part - m.means[channel]) >> 5
            before[3] = before[2]
            before[2] = magnitude
    return tokens


def encode(values: np.ndarray, magnitudes: np.ndarray) -> np.ndarray:
    """Return the code of coefficients, uint8.

    Args:
        values: int32 [T, K], magnitudes up to MOST.
        magnitudes: integers [K], their expected means in units of 1 / 256.
    """
    coder, width = np.zeros(3, np.uint64), 1
    while True:
        coded = np.zeros(width * values.size + 4 * _SPARE, np.uint8)
        arithmetic.start_encoder(coder)
        if code(build(magnitudes), np.ascontiguousarray(values), coder, coded, False) == len(values):
            return coded[: arithmetic.finish_encoder(coder, coded)].copy()
        width *= 4  # bytes of a coefficient, if those of the last buffer were too few


def decode(coded: np.ndarray, tokens: int, magnitudes: np.ndarray) -> np.ndarray:
    """Decode int32 [tokens, K]. Raise DamagedError if the code ends too early."""
    values, coder = np.zeros((tokens, magnitudes.size), np.int32), np.zeros(3, np.uint64)
    arithmetic.start_decoder(coder, coded)
    if code(build(magnitudes), values, coder, coded, True) < tokens:
        raise DamagedError("its coded bytes end too early")
    return values
