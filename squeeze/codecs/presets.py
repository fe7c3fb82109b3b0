"""What levels 1 to 3 mean: the contexts of each kind of content, and the sizes of mixers and tables.

The tables here are part of the format: a change to them changes the coded
bytes, so it needs a new numerics version.
"""

from dataclasses import dataclass

# A context: a register (see bitmodels/contexts.py), the mask on it, and the mask on the last eight bytes.
ALL = (1 << 64) - 1
_NONE, _OLDER, _WORD, _WORD_PAIR, _WORD_SKIP, _FOLLOWED, _RECORD, _POSITION, _CLASSES, LINE = range(10)


def order(n: int) -> tuple[int, int, int]:
    return (_NONE, 0, (1 << 8 * n) - 1)


ORDERS_1_TO_4 = (order(1), order(2), order(3), order(4))
WORDS = (_WORD, ALL, 0)
PAIRS = (_WORD_PAIR, ALL, 0)
GAPS = (_WORD_SKIP, ALL, 0)
SHAPES = (_CLASSES, 0xFFFFFFFFFFFF, 0)
LINES = (LINE, 0xFF00FF, 0)
_FOLLOWED_1 = (_FOLLOWED, 0xFFFF, 0xFF)
_FOLLOWED_2 = (_FOLLOWED, 0xFFFF0000, 0xFF)
_SKIPS = ((_NONE, 0, 0xFFFF00), (_POSITION, 3, 0xFF000000), (_POSITION, 3, 0xFF), (_NONE, 0, 0xFFFF0000))
_SPARSE = ((_NONE, 0, 0xFFFF00), (_NONE, 0, 0xFF00FF), (_NONE, 0, 0xF0F0FF))


@dataclass(frozen=True)
class Preset:
    """The parameters of the bytewise models."""

    contexts: tuple[tuple[int, int, int], ...]
    matches: tuple[int, ...]  # least match lengths
    selectors: int  # of mixer weight sets
    slot_bits: int  # the most cache lines of context slots, as a power of two


_TEXT = {
    1: (*ORDERS_1_TO_4, order(6), WORDS),
    2: (order(0), *ORDERS_1_TO_4, order(6), WORDS, _FOLLOWED_1, SHAPES),
    3: (
        *(order(0), *ORDERS_1_TO_4, order(6), WORDS, PAIRS, GAPS),
        *(_FOLLOWED_1, _FOLLOWED_2, SHAPES, LINES),
    ),
}
_OTHER = {
    1: (order(1), order(2), order(3), order(5), *_SKIPS[:2]),
    2: (order(0), *ORDERS_1_TO_4, order(6), *_SKIPS[:2], _SPARSE[1]),
    3: (
        *(order(0), *ORDERS_1_TO_4, order(6), WORDS, _FOLLOWED_1, _FOLLOWED_2),
        *(*_SPARSE, *_SKIPS[1:]),
    ),
}
_TABLE = {
    1: (order(1), order(2), order(3), (_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFF, 0xFF)),
    2: (
        *(order(0), order(1), order(2), order(3), order(4)),
        *((_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFF, 0xFF)),
    ),
    3: (
        *(order(0), *ORDERS_1_TO_4, order(6), _FOLLOWED_1, *_SPARSE),
        *((_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFFFF, 0), (_RECORD, 0xFF, 0xFF)),
        (_RECORD, 0xFF, 0xFFFF),
    ),
}
_CONTEXTS = {"text": _TEXT, "executable": _OTHER, "table": _TABLE, "other": _OTHER}
_MATCHES = {1: (6,), 2: (6,), 3: (6, 16)}
_SELECTORS = {1: 2, 2: 3, 3: 3}
_SLOT_BITS = {1: 19, 2: 22, 3: 23}


def preset(level: int, kind: str) -> Preset:
    """The models of a level from 1 to 3 for a kind of content ("text", "executable", "table" or "other")."""
    return Preset(_CONTEXTS[kind][level], _MATCHES[level], _SELECTORS[level], _SLOT_BITS[level])
