"""Coding the tokens of a content: those that are predicted cost almost nothing, others a few bytes.

One kernel walks over the parts in all directions. In LZ4 frames it also follows what an encoder has written, since that
stops, and the part is stored, as soon as it does not shrink.
"""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate.state import code_choice, code_number
from squeeze.codecs.parse.quick.layout import FRAMED, LEAST_MATCH, LINKED, MOST_DISTANCE, PART, Tokens, empty
from squeeze.codecs.parse.quick.matcher import STEPS, Matcher, matcher, predict, start_part
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import EVEN
from squeeze.numerics.jit import inline, kernel, part

__all__ = ["differences", "encode", "restore"]

COUNT, ENCODE, DECODE = range(3)  # directions
# First entries of the adaptive probabilities.
IS_SAME = 0
SHRINKS = IS_SAME + 16
NUMBER = SHRINKS + 2
ENTRIES = NUMBER + 3 * 32
_MOST_TOKEN = 320  # bytes of one: three numbers of 33 choices with up to 22 bits, and 31 digits, are at most 284
_ROOM = 2 * _MOST_TOKEN
_TOKEN_OVERHEAD, _MATCH_OVERHEAD = 8, 6  # bytes that LZ4 wants to have left behind literals, and behind a distance


class Coding(NamedTuple):
    """The tokens of a content, the predictions for them, and the state of their coding."""

    tokens: Tokens
    matcher: Matcher
    entries: np.ndarray  # uint32 [ENTRIES]
    coder: np.ndarray  # uint64 [3]
    coded: np.ndarray  # uint8
    history: np.ndarray  # int64 [1]: which of the last tokens were predicted wrongly


def _coding(tokens: Tokens, settings: np.ndarray, coded: np.ndarray) -> Coding:
    entries = np.full(ENTRIES, EVEN, np.uint32)
    finding = matcher(tokens.content, settings)
    return Coding(tokens, finding, entries, np.zeros(3, np.uint64), coded, np.zeros(1, np.int64))


def differences(tokens: Tokens, settings: np.ndarray, most: int) -> int:
    """Return how many tokens are not as predicted: more than `most` if there are more than that."""
    return int(_code(_coding(tokens, settings, np.zeros(0, np.uint8)), COUNT, most))


def encode(tokens: Tokens, settings: np.ndarray, most: int) -> bytes | None:
    """Return the coded tokens, or None if they take more than `most` bytes or too many steps."""
    made = _coding(tokens, settings, np.zeros(most + _ROOM, np.uint8))
    arithmetic.start_encoder(made.coder)
    if _code(made, ENCODE, 0) < 0:
        return None
    coded = made.coded[: arithmetic.finish_encoder(made.coder, made.coded)].tobytes()
    return coded if len(coded) <= most else None


def restore(content: np.ndarray, settings: np.ndarray, coded: bytes) -> Tokens:
    """Return the tokens of a content, uint8 [n], that were coded.

    Raises:
        DamagedError: if they do not belong together.
    """
    tokens = empty(content, int(settings[PART]))
    made = _coding(tokens, settings, np.frombuffer(bytearray(coded), np.uint8))
    arithmetic.start_decoder(made.coder, made.coded)
    if _code(made, DECODE, 0) < 0:
        raise _impossible()
    return tokens


@part
def _code_token(x, k, p, token, end, direction):
    """Code token k, at position p, with its prediction. Return whether it is as predicted, or -1 if it is impossible.

    Literals up to the end of the part mean that it has no match.
    """
    t = x.tokens
    decoding = direction == DECODE
    same = np.int64(t.literals[k] == token[0] and t.lengths[k] == token[1] and t.offsets[k] == token[2])
    if direction == COUNT:
        return same
    same = code_choice(x, same, IS_SAME + 2 * (x.history[0] & 7) + (token[1] > 0), decoding)
    x.history[0] = x.history[0] << 1 | (1 - same)
    if same:
        t.literals[k], t.lengths[k], t.offsets[k] = token
    else:
        literals = code_number(x, np.int64(t.literals[k]), NUMBER, decoding)
        if literals > end - p:
            return np.int64(-1)
        length, offset = np.int64(0), np.int64(0)
        if literals < end - p:
            length = LEAST_MATCH + code_number(
                x, np.int64(t.lengths[k] - LEAST_MATCH), NUMBER + 32, direction == DECODE
            )
            offset = 1 + code_number(x, np.int64(t.offsets[k] - 1), NUMBER + 64, decoding)
            start = p + literals
            if length > end - start or offset > MOST_DISTANCE or offset > start:
                return np.int64(-1)
            for i in range(length):
                if x.matcher.content[start + i] != x.matcher.content[start + i - offset]:
                    return np.int64(-1)
        t.literals[k], t.lengths[k], t.offsets[k] = literals, length, offset
    return same


@inline
def _written(size, literals, length, most):
    """Return the bytes of an LZ4 block after another token, or more than `most` if its encoder stops there."""
    if length == 0:
        return size + literals + 1 + (literals + 240) // 255
    size += 1
    if size + literals + _TOKEN_OVERHEAD + literals // 255 > most:
        return most + 1
    size += literals + (0 if literals < 15 else 1 + (literals - 15) // 255) + 2
    rest = length - LEAST_MATCH
    if size + _MATCH_OVERHEAD + (rest + 240) // 255 > most:
        return most + 1
    return size + (0 if rest < 15 else 1 + (rest - 15) // 255)


@inline
def _is_over(x, decoding):
    """Return whether the coded bytes are used up, or another token may not fit."""
    spare = arithmetic.SPARE if decoding else -_MOST_TOKEN
    return np.int64(x.coder[arithmetic.POSITION]) > x.coded.size + spare


@part
def _code_part(x, row, k, begin, end, direction):
    """Code the tokens of a part from token k on. Return the number of wrong predictions, or -1."""
    t, p, wrong, size = x.tokens, begin, np.int64(0), np.int64(0)
    stored = np.int64(t.stored[row])
    if x.matcher.settings[FRAMED] and direction != COUNT:
        stored = 1 - code_choice(x, 1 - stored, SHRINKS, direction == DECODE)
    start_part(x.matcher, begin, end)
    tried = not stored or x.matcher.settings[LINKED]  # later parts may need what was tried in a stored one
    while p < end and tried and not (stored and size >= end - begin):
        if k >= t.literals.size or x.matcher.state[STEPS] < 0:
            return np.int64(-1)
        literals, length, offset = predict(x.matcher, p, begin, end)
        if not stored:  # a stored part has no tokens, but its encoder has tried them
            same = _code_token(x, k, p, (literals, length, offset), end, direction)
            if same < 0 or (direction != COUNT and _is_over(x, direction == DECODE)):
                return np.int64(-1)
            literals, length = np.int64(t.literals[k]), np.int64(t.lengths[k])
            wrong += 1 - same
            k += 1
        p += literals + length
        size = _written(size, literals, length, end - begin - 1)
    t.stored[row], t.ends[row] = stored, k
    return wrong


@kernel
def _code(x, direction, most):
    """Code all parts in a direction: to count wrong predictions, to encode or to decode.

    Returns:
        the number of tokens that are not as predicted, or -1 if they are impossible.
    """
    t, k, wrong = x.tokens, np.int64(0), np.int64(0)
    for row in range(t.ends.size):
        begin = row * x.matcher.settings[PART]
        end = min(begin + x.matcher.settings[PART], t.content.size)
        found = _code_part(x, row, k, begin, end, direction)
        if found < 0:
            return found
        k, wrong = t.ends[row], wrong + found
        if direction == COUNT and wrong > most:
            break
    return wrong


def _impossible() -> DamagedError:
    return DamagedError("what closes a block of Snappy or LZ4 is impossible: the file is damaged")
