"""Coding the choices of a deflate encoder: those that zlib would make cost almost nothing, others a few bits.

One kernel walks over a stream in either direction. Every choice is a bit with an adaptive probability: whether the next
token is as predicted, where a block ends, and whether its codes are zlib's.
"""

from typing import Any

import numpy as np

from squeeze.codecs.parse.deflate import layout, state
from squeeze.codecs.parse.deflate.cheapest import code_cheapest
from squeeze.codecs.parse.deflate.codes import code_codes
from squeeze.codecs.parse.deflate.layout import Tokens
from squeeze.codecs.parse.deflate.matcher import CHEAPEST, SPEED
from squeeze.codecs.parse.deflate.paths import Paths, paths
from squeeze.codecs.parse.deflate.state import Coding, code_choice
from squeeze.codecs.parse.deflate.tokens import code_stored, code_tokens
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.numerics.bitmodels.adaptive import code_tree
from squeeze.numerics.jit import kernel

_STEPS, _LEAST_STEPS = 600, 1 << 22  # candidates that may be compared for each byte of content, and for all


def coding(stream: Tokens, settings: np.ndarray, coded: np.ndarray, entries: np.ndarray) -> Coding:
    """Return the state before the first block of a stream, with a limit on its steps.

    Args:
        stream: the stream; decoding, its content, and room for the rest.
        settings: of a matcher, int64 [matcher.FIELDS].
        coded: room for the coded choices, or these, uint8.
        entries: the adaptive probabilities that streams before have taught, uint32.
    """
    return state.coding(stream, settings, max(_LEAST_STEPS, _STEPS * stream.content.size), coded, entries)


def paths_of(x: Coding) -> Paths:
    """Return what finds the cheapest tokens of a stream, without room unless its encoder looks for them."""
    settings = x.matcher.settings
    return paths(x.stream.content, settings, x.matcher.state, bool(settings[SPEED] == CHEAPEST))


def encode(stream: Tokens, settings: np.ndarray, most: int, entries: np.ndarray) -> bytes | None:
    """Return the coded choices of a stream, or None if they take more than `most` bytes or too many steps."""
    made = coding(stream, settings, np.zeros(most, np.uint8), entries)
    arithmetic.start_encoder(made.coder)
    if code(made, paths_of(made), False) < 0:
        return None
    length = arithmetic.finish_encoder(made.coder, made.coded)
    return made.coded[:length].tobytes() if length <= most else None


@kernel
def code(x: Coding, finding: Paths, decoding: bool) -> Any:
    """Code a stream's choices in either direction.

    Args:
        x: the stream; decoding, its content, and room for the rest.
        finding: what finds the cheapest tokens. It is no part of `x`, since that is copied for each token.
        decoding: the direction.

    Returns:
        the number of blocks, or -1 if they do not fit, or take too many steps.
    """
    s, p, row, repeats, before = x.stream, np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    while True:
        if row >= s.blocks.shape[0] or arithmetic.is_over(x.coder, x.coded, decoding):
            return -1
        before = code_choice(x, s.blocks[row, layout.TYPE] == layout.STORED, state.IS_STORED + before, decoding)
        begin = p
        if before:
            p = code_stored(x, row, p, decoding)
            s.blocks[row, layout.TYPE] = layout.STORED
            s.blocks[row, layout.END] = s.blocks[row - 1, layout.END] if row else 0
        elif x.matcher.settings[SPEED] == CHEAPEST:
            p, repeats = code_cheapest(x, finding, row, p, repeats, decoding)
        else:
            p = code_tokens(x, row, p, decoding)
            repeats = code_codes(x, row, repeats, decoding) if p >= 0 else repeats
        if p < 0 or repeats < 0:
            return -1
        s.blocks[row, layout.SIZE], s.blocks[row, layout.REPEATS] = p - begin, repeats
        final = code_choice(x, s.blocks[row, layout.FINAL], state.IS_FINAL + (p == s.content.size), decoding)
        s.blocks[row, layout.FINAL] = final
        row += 1
        if final:
            break
    if code_choice(x, s.totals[layout.REST] != 0, state.PADDED + 1, decoding):
        s.totals[layout.REST] = code_tree(
            s.totals[layout.REST], 7, x.entries, state.PADDED + 2, x.coder, x.coded, decoding
        )
    s.totals[layout.CONTENT], s.totals[layout.TOKENS], s.totals[layout.BLOCKS], s.totals[layout.SYMBOLS] = (
        p,
        s.blocks[row - 1, layout.END],
        row,
        repeats,
    )
    return row if p == s.content.size else -1
