"""What levels 7 to 9 mean for text: the bytewise contexts beside the language model.

The table here is part of the format, as those of codecs/presets.py are.
"""

from dataclasses import dataclass, replace

from squeeze.codecs.presets import ALL, GAPS, LARGE, LINE, LINES, ORDERS_1_TO_4, PAIRS, SHAPES, WORDS, Preset, order

_TOKEN_1, _TOKEN_2, _TOKEN_3 = 15, 16, 17  # registers: hashes of the latest tokens


@dataclass(frozen=True)
class TokenPreset:
    """The parameters of the tokenwise models: lanes and window are those of one block."""

    bytewise: Preset
    lanes: int
    window: int  # positions, a multiple of 16
    without: frozenset[str] = frozenset()  # of arrays.PARTS, those left out to measure what they are worth


CONTEXTS = (
    *(order(0), *ORDERS_1_TO_4, order(6), WORDS, PAIRS, GAPS, SHAPES, LINES),
    *((_TOKEN_1, ALL, 0), (_TOKEN_2, ALL, 0), (_TOKEN_3, ALL, 0), (LINE, 0xFF00, 0), (LINE, 0xFF00, 0xFF)),
)
BYTEWISE = replace(LARGE["text"], contexts=CONTEXTS)
