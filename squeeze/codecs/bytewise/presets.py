"""Parameters of levels 1 to 3: the contexts for each kind of content, and the sizes of mixers and hash tables.

The tables are part of the format: a change to them changes the coded bytes. A context is a register of the byte history
(bitmodels/contexts.py, fields.py and records.py), a mask on that register, and a mask on the last eight bytes. The last
table has the contexts that levels 7 to 9 mix with the language model.
"""

from dataclasses import dataclass, replace

from squeeze.codecs.content import CODES

Contexts = tuple[tuple[int, int, int], ...]

# A context: a register (see bitmodels/contexts.py), the mask on it, and the mask on the last eight bytes.
ALL = (1 << 64) - 1
# Both are numbered here, because `--help` imports this module, and compiled code takes a third of a second to load.
_NONE, _OLDER, _WORD, _WORD_PAIR, _WORD_SKIP, _FOLLOWED, _RECORD, _POSITION, _CLASSES, LINE = range(10)
ABOVE, ALIKE, MARKS, CELL_KEY, CELL_PLACE, NUMBER = range(22, 28)
COUNT, CHANGES, LINEAR = range(93, 96)


def order(n: int) -> tuple[int, int, int]:
    """Return the order-N context, the last N bytes, for N up to 8."""
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

# Of lines: the line above and the last line of the same form, with how far they agree, marks, cells and numbers.
_ALIKE = (ALIKE, 0xFFFFFF, 0)
_ABOVE_AND_FIELD = (ABOVE, 0xFF0000FF, 0)
_MARKS = (MARKS, 0xFFFFFF, 0xFF)
_KEYS = (CELL_KEY, ALL, 0)
_CELLS = (CELL_PLACE, ALL, 0)
_NUMBERS = (NUMBER, ALL, 0)

# Of records: the column, bytes above, bytes that count up, what changed, and a byte expected by difference.
_COLUMN = (_RECORD, 0xFFFF0000, 0)
_ABOVE_AND_COLUMN = (_RECORD, 0xFFFF00FF, 0)
_TWO_ABOVE = (_RECORD, 0xFFFF, 0)
_COUNTS = (COUNT, ALL & ~0xFF00, 0)
_COUNTS_AND_RIGHT = (COUNT, ALL, 0)
_CHANGED = (CHANGES, ALL, 0)
_EXPECTED = (LINEAR, 0xFFFF00FF, 0)
_COLUMN_AND_FIELD = (_RECORD, 0xFFFF0000, 0xFFFF << 48)

TOKENS = ((15, ALL, 0), (16, ALL, 0), (17, ALL, 0))  # hashes of the latest tokens
COLUMNS = ((LINE, 0xFF00, 0), (LINE, 0xFF00, 0xFF))
_NAMES = {
    **{order(n): f"order {n}" for n in range(9)},
    WORDS: "word",
    PAIRS: "word and the one before",
    GAPS: "word and the second before",
    SHAPES: "classes of twelve bytes",
    LINES: "line above",
    _FOLLOWED_1: "what followed the byte",
    _FOLLOWED_2: "what followed two bytes",
    **dict(zip(_SKIPS, ("bytes 2 and 3", "byte 4 in fours", "byte 1 in fours", "bytes 3 and 4"), strict=True)),
    **dict(zip(_SPARSE, ("bytes 2 and 3", "bytes 1 and 3", "high halves"), strict=True)),
    _ALIKE: "line of the same form",
    _ABOVE_AND_FIELD: "field above and its number",
    _MARKS: "three marks and byte",
    _KEYS: "cell and key",
    _CELLS: "cell and its number",
    _NUMBERS: "number by difference",
    _COLUMN: "column",
    _ABOVE_AND_COLUMN: "above and column",
    _TWO_ABOVE: "two above",
    _COUNTS: "count and above",
    _COUNTS_AND_RIGHT: "count, above and its right",
    _CHANGED: "changes of two records",
    _EXPECTED: "expected by difference and column",
    _COLUMN_AND_FIELD: "column and bytes 7 and 8",
    **dict(zip(TOKENS, ("one token before", "two tokens before", "three tokens before"), strict=True)),
    **dict(zip(COLUMNS, ("column of the line", "column of the line and byte"), strict=True)),
}


def name_of(context: tuple[int, int, int]) -> str:
    """Return a context's name for `explain`, such as "order 4"."""
    return _NAMES[context]


@dataclass(frozen=True)
class Preset:
    """The parameters of bytewise context mixing."""

    contexts: Contexts
    matches: tuple[int, ...]  # shortest match of each match model, in bytes
    selectors: int  # mixer weight sets that are used
    slot_bits: int  # log2 of the largest hash table, in cache lines
    warm_start: str = ""  # file of the package with the first weights (state.py); "": untrained
    lines: bool = False  # whether the registers of fields.py are updated


def input_names(preset: Preset, width: int) -> list[str]:
    """Name the context or match model that each mixer input belongs to.

    Args:
        preset: the contexts and match models.
        width: inputs of the mixer; those after contexts and matches belong to the bias.
    """
    contexts = [name_of(context) for context in preset.contexts]
    matches = [f"match of {least} bytes or more" for least in preset.matches for _ in range(2)]
    return (contexts + matches + ["bias"] * width)[:width]


def _of_kinds(
    contexts: dict[str, Contexts],
    matches: tuple[int, ...],
    selectors: int,
    slot_bits: int,
    matches_of_text: tuple[int, ...] = (),
) -> dict[str, Preset]:
    """Return the models by kind of content. matches_of_text: shortest matches in text and lines, if others."""
    contexts |= {"executable": contexts["other"], "cells": contexts["table"]}
    contexts |= dict.fromkeys(CODES, contexts["table"])
    made = {
        kind: Preset(specs, matches, selectors, slot_bits, lines=kind == "lines") for kind, specs in contexts.items()
    }
    for kind in ("text", "lines") if matches_of_text else ():
        made[kind] = replace(made[kind], matches=matches_of_text)
    return made


# Models for each kind of content, from fast to slow.
SMALL = _of_kinds(
    {
        "text": (*ORDERS_1_TO_4, order(6), WORDS),
        "lines": (order(1), order(3), WORDS, SHAPES, _ALIKE, _KEYS),
        "other": (order(1), order(2), order(3), order(5), *_SKIPS[:2]),
        "table": (order(1), order(3), _COLUMN, _ABOVE_AND_COLUMN, _TWO_ABOVE, _COUNTS),
    },
    matches=(6,),
    selectors=2,
    slot_bits=19,
)
MEDIUM = _of_kinds(
    {
        "text": (order(0), *ORDERS_1_TO_4, order(6), WORDS, _FOLLOWED_1, SHAPES),
        "lines": (order(1), order(3), order(4), WORDS, _FOLLOWED_2, SHAPES, _ALIKE, _KEYS, _ABOVE_AND_FIELD),
        "other": (order(0), *ORDERS_1_TO_4, order(6), *_SKIPS[:2], _SPARSE[1]),
        "table": (
            *(order(1), order(2), order(3), order(4)),
            *(_COLUMN, _ABOVE_AND_COLUMN, _TWO_ABOVE, _COUNTS),
        ),
    },
    matches=(6,),
    selectors=3,
    slot_bits=22,
)
LARGE = _of_kinds(
    {
        "text": (
            *(order(0), *ORDERS_1_TO_4, order(6), WORDS, PAIRS, GAPS),
            *(_FOLLOWED_1, _FOLLOWED_2, SHAPES, LINES),
        ),
        "lines": (
            *(order(1), order(3), order(4), WORDS, PAIRS, _FOLLOWED_2, SHAPES),
            *(_ALIKE, _ABOVE_AND_FIELD, _MARKS, _KEYS, _CELLS, _NUMBERS),
        ),
        "other": (
            *(order(0), *ORDERS_1_TO_4, order(6), WORDS, _FOLLOWED_1, _FOLLOWED_2),
            *(*_SPARSE, *_SKIPS[1:]),
        ),
        "table": (
            *(order(0), order(1), order(2), order(4), order(6), _FOLLOWED_1, _SPARSE[0], _SPARSE[2]),
            *(_COLUMN, _ABOVE_AND_COLUMN, _TWO_ABOVE),
            *(_COUNTS_AND_RIGHT, _CHANGED, _EXPECTED, _COLUMN_AND_FIELD),
        ),
    },
    matches=(6, 16),
    selectors=3,
    slot_bits=23,
    matches_of_text=(6, 20),  # longer than a padded number: the last place of one number tells little of the next
)
BY_LEVEL = {1: SMALL, 2: MEDIUM, 3: LARGE}
WARM_START_KINDS = "text", "executable"  # kinds of content whose models start with trained weights
_WARM_STARTS = {"lines": "text", "code": "executable", **{kind: kind for kind in WARM_START_KINDS}}


def warm_start(level: int, kind: str) -> str:
    """Return the file of the weights that a level's models for a kind of content start with, or ""."""
    return f"{_WARM_STARTS[kind]}.{level}" if kind in _WARM_STARTS else ""


def trained_contexts(preset: "Preset") -> Contexts:
    """Return the contexts of the models whose trained weights a preset starts with."""
    kind, level = preset.warm_start.split(".")
    return BY_LEVEL[int(level)][kind].contexts


def preset(level: int, kind: str, bare: bool = False) -> Preset:
    """Return the models of a level from 1 to 3 for a kind of content.

    Args:
        level: 1, 2 or 3.
        kind: "text", "lines", "executable", "table", "cells" or one of CODES, which are the same here, or "other".
        bare: start with untrained weights and maps instead of those of the package.
    """
    return replace(BY_LEVEL[level][kind], warm_start="" if bare else warm_start(level, kind))


@dataclass(frozen=True)
class TokenPreset:
    """The parameters of tokenwise mixing at levels 7 to 9; lanes and window are those of one block."""

    bytewise: Preset
    lanes: int
    window: int  # positions, a multiple of 16
    without: frozenset[str] = frozenset()  # names in arrays.PARTS that are left out, for ablations


CONTEXTS = (
    *(order(0), *ORDERS_1_TO_4, order(6), WORDS, PAIRS, GAPS, SHAPES, LINES),
    *(*TOKENS, *COLUMNS),
)
BYTEWISE = replace(LARGE["text"], contexts=CONTEXTS, matches=(6, 16))
