"""The state in which the choices of a deflate encoder are coded, shared by tokens.py, codes.py and choices.py."""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse.deflate import layout
from squeeze.codecs.parse.deflate.huffman import work_space
from squeeze.codecs.parse.deflate.layout import Tokens
from squeeze.codecs.parse.deflate.matcher import Matcher, matcher
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import EVEN, code_bit, code_digits
from squeeze.numerics.jit import inline

ROOM = 2 * arithmetic.SPARE  # bytes of a buffer that stay free
RANKS = 16  # candidates for a distance that are told by their rank
HISTORIES, BUCKETS = 16, 8
# First entries of the adaptive probabilities.
IS_MATCH = 0
IS_SAME = IS_MATCH + 3 * BUCKETS * HISTORIES
MATCH_LENGTH = IS_SAME + 3 * BUCKETS * HISTORIES
RANK = MATCH_LENGTH + BUCKETS * 256
FAR = RANK + BUCKETS * (RANKS + 1)
IS_STORED = FAR + 32
STORED_SIZE = IS_STORED + 2
PADDED = STORED_SIZE + 512
IS_FINAL = PADDED + 2 + 128
ENDS = IS_FINAL + 4
NTOKENS = ENDS + 2
IS_FIXED = NTOKENS + 64
ARE_ZLIBS = IS_FIXED + 2
IS_LENGTH = ARE_ZLIBS + 4
LENGTH = IS_LENGTH + 2 * 16
COUNTS = LENGTH + 16 * 16
IS_REPEAT = COUNTS + 4 * 64
REPEAT = IS_REPEAT + 4
EXTRA = REPEAT + 16
REPEAT_LENGTH = EXTRA + 4 * 128
PICK = REPEAT_LENGTH + 8 * 8
FIRST_PICKS = 56 * HISTORIES
OTHER = PICK + FIRST_PICKS + 8 * 56 * 8
ENTRIES = OTHER + 1


class Coding(NamedTuple):
    """A stream, the predictions for it, and the state of its coding."""

    stream: Tokens
    matcher: Matcher
    entries: np.ndarray  # uint32 [ENTRIES]
    coder: np.ndarray  # uint64 [3]
    coded: np.ndarray  # uint8
    counts: np.ndarray  # int64 [layout.CODES]: how often the block has each symbol
    predicted: np.ndarray  # uint8 [1, layout.CODES]: zlib's code lengths of the block
    line: np.ndarray  # uint8 [1, layout.MOST_REPEATS]: the lengths of literals and distances in a row
    trees: np.ndarray  # work space of zlib's trees
    used: np.ndarray  # int64 [17], the same
    history: np.ndarray  # int64 [1]: which of the last tokens were predicted wrongly


def nothing_learnt() -> np.ndarray:
    """Return the adaptive probabilities before the first stream, uint32 [entries]."""
    return np.full(ENTRIES, EVEN, np.uint32)


def coding(stream: Tokens, settings: np.ndarray, steps: int, coded: np.ndarray, entries: np.ndarray) -> Coding:
    """Return the state before the first block of a stream, with the probabilities that others have taught."""
    return Coding(
        stream,
        matcher(stream.content, settings, steps),
        entries,
        np.zeros(3, np.uint64),
        coded,
        np.zeros(layout.CODES, np.int64),
        np.zeros((1, layout.CODES), np.uint8),
        np.zeros((1, layout.MOST_REPEATS + 1), np.uint8),
        work_space(),
        np.zeros(17, np.int64),
        np.zeros(1, np.int64),
    )


@inline
def code_choice(x, bit, index, decoding):
    """Code a choice with the probability of an entry, and return it."""
    return code_bit(np.int64(bit), x.entries, index, x.coder, x.coded, decoding)


@inline
def code_number(x, value, index, decoding):
    """Code a number below 2^32: its digits in unary, then those below the highest."""
    digits, count = 0, 0
    while not decoding and value >> digits:
        digits += 1
    while count < 32 and code_choice(x, digits > count, index + count, decoding):
        count += 1
    if count == 0:
        return np.int64(0)
    rest = code_digits(value & ((1 << count - 1) - 1), count - 1, x.coder, x.coded, decoding)
    return 1 << count - 1 | rest
