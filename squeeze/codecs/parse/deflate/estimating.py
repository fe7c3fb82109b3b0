"""Estimating the settings of a stream's encoder, from how well they predict its first tokens."""

from dataclasses import replace

import numpy as np

from squeeze.codecs.parse.deflate import choices, layout, state
from squeeze.codecs.parse.deflate.encoders import (
    BLOCK,
    CHEAPEST_LEVELS,
    FILTERED,
    FREE,
    ISAL_LEVELS,
    OTHERS,
    UNFILTERED,
    Encoder,
)
from squeeze.codecs.parse.deflate.layout import Tokens, empty
from squeeze.codecs.parse.deflate.matcher import MARGIN

__all__ = ["estimate"]

_FEW_TOKENS, _SAMPLE = 1 << 12, 1 << 15  # tokens on which all settings are tried, and the best
_BEST, _NEAR = 3, 16  # settings that are tried again, and the most bytes that they may need beyond the best
_FEW = 24  # bytes of choices in a sample that is predicted well enough
_SETTINGS = 5  # bytes of settings that are not those before
_LEAST_WINDOW, _MOST_WINDOW = 9, 15  # bits
_HEADER, _BADLY = 64, 100  # bytes of choices that any stream may have, and tokens that may have another one


def estimate(stream: Tokens, window: int, before: object) -> Encoder:
    """Return the settings that predict the first tokens best.

    The window is the smallest that holds all matches, if the content is larger and the given one predicts worse.
    Encoders that look for the cheapest tokens are tried if others predict badly, since that takes longer.

    Args:
        stream: the stream.
        window: bits of the window, if a header tells them.
        before: the settings of the stream before, or None.
    """
    if isinstance(before, Encoder) and before.level in CHEAPEST_LEVELS:
        same, sample = replace(before, window=window), _blocks(stream, _FEW_TOKENS)
        if _cost(sample, same) <= _much(sample):
            return same
    found, cost = _best(stream, window, before)
    smaller = _window_of(stream)
    if cost >= _FEW and smaller < window and stream.content.size > 1 << smaller:
        other, less = _best(stream, smaller, before)
        found = other if less + _SETTINGS < cost else found
    return found if cost < _FEW else _cheapest(stream, found)


def _cheapest(stream: Tokens, found: Encoder) -> Encoder:
    """Return settings of an encoder that looks for the cheapest tokens if they predict better than those found."""
    tried = [replace(found, level=level, filtered=False, joined=True) for level in CHEAPEST_LEVELS]
    for most in (_FEW_TOKENS, _SAMPLE):
        sample = _blocks(stream, most)
        limit = _cost(sample, found)
        if limit <= _much(sample):
            return found
        costs = sorted((_cost(sample, encoder), number) for number, encoder in enumerate(tried))
        tried = [tried[number] for cost, number in costs[:_BEST] if cost < limit]
        if not tried:
            return found
    return tried[0]


def _much(sample: Tokens) -> int:
    """Return how many bytes of choices show that another encoder wrote a sample."""
    return _HEADER + int(sample.totals[layout.TOKENS]) // _BADLY


def _best(stream: Tokens, window: int, before: object) -> tuple[Encoder, int]:
    """Return the settings with this window that predict the first tokens best, and the bytes of their choices.

    Those of the stream before are tried first, then zlib's, then others. The first that predict well are enough.
    """
    block = _block_of(stream)
    memory = (block + 1).bit_length() - 7  # zlib's blocks have 2^(memory + 6) - 1 tokens
    base = Encoder(window=window, block=block, memory=memory if 1 <= memory <= 9 else 8)
    if isinstance(before, Encoder):
        same = replace(base, level=before.level, filtered=before.filtered, joined=before.joined)
        if (size := _cost(_sample(stream, _FEW_TOKENS), same)) < _FEW:
            return same, size
    levels = [(level, filtered) for filtered, some in ((False, UNFILTERED), (True, FILTERED)) for level in some]
    found, cost = _choose(stream, [replace(base, level=level, filtered=filtered) for level, filtered in levels])
    if cost < _FEW:
        return found, cost
    others = [replace(base, level=level, joined=level in FREE) for level in OTHERS]
    others += [replace(base, level=level, joined=True, memory=memory) for level, memory in ISAL_LEVELS]
    other, _ = _choose(stream, others)
    sample = _sample(stream, _SAMPLE)
    cost, less = _cost(sample, found), _cost(sample, other)
    return (other, less) if less < cost else (found, cost)


def _choose(stream: Tokens, tried: list[Encoder]) -> tuple[Encoder, int]:
    """Return the settings that predict the first tokens best, and the bytes of their choices.

    Few tokens are predicted by all settings, more by the best ones.
    """
    for most in (_FEW_TOKENS, _SAMPLE):
        sample, found = _sample(stream, most), list[tuple[int, int, Encoder]]()
        for number, encoder in enumerate(tried):
            size = _cost(sample, encoder)
            found.append((size, number, encoder))
            if size < _FEW and most >= stream.tokens.size:
                return encoder, size
        least = min(size for size, _, _ in found)
        tried = [encoder for size, _, encoder in sorted(found)[:_BEST] if size <= least + _NEAR]
        if len(tried) == 1 or most >= stream.tokens.size:
            break
    return tried[0], least


def _cost(sample: Tokens, encoder: Encoder) -> int:
    """Return the bytes of a sample's choices; many if they are too many."""
    most = 8 * state.ROOM + int(sample.totals[layout.TOKENS])
    coded = choices.encode(sample, encoder.settings, most, state.nothing_learnt())
    return 1 << 62 if coded is None else len(coded)


def _block_of(stream: Tokens) -> int:
    """Return the tokens of a block that are most frequent before the last one."""
    rows = stream.blocks
    counts = np.diff(rows[:, layout.END], prepend=0)[:-1][rows[:-1, layout.TYPE] != layout.STORED]
    values, often = np.unique(counts, return_counts=True)
    return int(values[often.argmax()]) if values.size and often.max() > 1 else max(BLOCK, int(counts.max(initial=0)))


def _window_of(stream: Tokens) -> int:
    """Return the bits of the smallest window in which zlib finds the matches of a stream."""
    farthest = int((stream.tokens & 0xFFFF).max(initial=0)) + MARGIN
    return min(max((farthest - 1).bit_length(), _LEAST_WINDOW), _MOST_WINDOW)


def _sample(stream: Tokens, most: int) -> Tokens:
    """Return the first tokens of a stream as a stream of one block."""
    start = np.flatnonzero(stream.blocks[:, layout.TYPE] != layout.STORED)
    count = min(int(stream.totals[layout.TOKENS]), most)
    if not start.size or stream.blocks[0, layout.TYPE] == layout.STORED:
        count = 0
    tokens = stream.tokens[:count]
    lengths = np.maximum(tokens >> 16, 1)
    size = int(lengths.sum())
    blocks = np.zeros((1, layout.COLUMNS), np.int64)
    blocks[0, [layout.TYPE, layout.FINAL, layout.END, layout.SIZE]] = layout.FIXED, 1, count, size
    found = empty(0, 0, 1, 0)._replace(content=stream.content[:size], tokens=tokens, blocks=blocks)
    found.totals[[layout.CONTENT, layout.TOKENS, layout.BLOCKS, layout.SYMBOLS, layout.REST]] = size, count, 1, 0, 0
    return found


def _blocks(stream: Tokens, most: int) -> Tokens:
    """Return the first tokens of a stream in their blocks."""
    count = min(int(stream.totals[layout.TOKENS]), most)
    rows = int(np.searchsorted(stream.blocks[:, layout.END], count)) + 1
    blocks = stream.blocks[:rows].copy()
    first = int(blocks[-2, layout.END]) if rows > 1 else 0
    if blocks[-1, layout.TYPE] != layout.STORED:
        blocks[-1, [layout.END, layout.SIZE]] = count, int(np.maximum(stream.tokens[first:count] >> 16, 1).sum())
    blocks[-1, layout.FINAL] = 1
    size = int(blocks[:, layout.SIZE].sum())
    totals = np.array([size, count, rows, blocks[-1, layout.REPEATS], 0, 0], np.int64)
    return stream._replace(content=stream.content[:size], tokens=stream.tokens[:count], blocks=blocks, totals=totals)
