"""What levels 7 to 9 mean for text: the bytewise contexts beside the language model.

The table here is part of the format, as those of codecs/presets.py are.
"""

from dataclasses import dataclass, replace

from squeeze.codecs.presets import (
    COLUMNS,
    GAPS,
    LARGE,
    LINES,
    ORDERS_1_TO_4,
    PAIRS,
    SHAPES,
    TOKENS,
    WORDS,
    Preset,
    order,
)


@dataclass(frozen=True)
class TokenPreset:
    """The parameters of the tokenwise models: lanes and window are those of one block."""

    bytewise: Preset
    lanes: int
    window: int  # positions, a multiple of 16
    without: frozenset[str] = frozenset()  # of arrays.PARTS, those left out to measure what they are worth


CONTEXTS = (
    *(order(0), *ORDERS_1_TO_4, order(6), WORDS, PAIRS, GAPS, SHAPES, LINES),
    *(*TOKENS, *COLUMNS),
)
BYTEWISE = replace(LARGE["text"], contexts=CONTEXTS)
