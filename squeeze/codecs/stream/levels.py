"""Levels: what -1 to -9 mean. A level and a kind of content name every parameter of the models.

The tables here are part of the format: a change to them changes the coded
bytes, so it needs a new numerics version.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from squeeze.errors import LevelError

if TYPE_CHECKING:
    from squeeze.codecs.bitmodels.ssm_arrays import Sizes

AVAILABLE = (1, 2, 3, 4, 5, 6, 7, 8, 9)
DEEP = (4, 5, 6)  # many contexts, and a state-space model trained on the way
BESIDE = (5, 6)  # that model may be trained in a second thread
TOKENWISE = (7, 8, 9)  # text goes through a language model
DEFAULT = 3

# Raw bytes a second that one thread codes, on a slow machine of today: for estimates only.
_SPEED = {1: 550_000, 2: 400_000, 3: 300_000, 4: 100_000, 5: 25_000, 6: 15_000, 7: 1_200, 8: 1_100, 9: 500}
DEFAULT_BLOCK = 1 << 24

# A context: a register (see bitmodels/contexts.py), the mask on it, and the mask on the last eight bytes.
_ALL = (1 << 64) - 1
_NONE, _OLDER, _WORD, _WORD_PAIR, _WORD_SKIP, _FOLLOWED, _RECORD, _POSITION, _CLASSES, _LINE = range(10)
_TOKEN_1, _TOKEN_2, _TOKEN_3 = 15, 16, 17


def _order(n: int) -> tuple[int, int, int]:
    return (_NONE, 0, (1 << 8 * n) - 1)


_ORDERS_1_TO_4 = (_order(1), _order(2), _order(3), _order(4))
_WORDS = (_WORD, _ALL, 0)
_PAIRS = (_WORD_PAIR, _ALL, 0)
_GAPS = (_WORD_SKIP, _ALL, 0)
_SHAPES = (_CLASSES, 0xFFFFFFFFFFFF, 0)
_LINES = (_LINE, 0xFF00FF, 0)
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
    1: (*_ORDERS_1_TO_4, _order(6), _WORDS),
    2: (_order(0), *_ORDERS_1_TO_4, _order(6), _WORDS, _FOLLOWED_1, _SHAPES),
    3: (
        *(_order(0), *_ORDERS_1_TO_4, _order(6), _WORDS, _PAIRS, _GAPS),
        *(_FOLLOWED_1, _FOLLOWED_2, _SHAPES, _LINES),
    ),
}
_OTHER = {
    1: (_order(1), _order(2), _order(3), _order(5), *_SKIPS[:2]),
    2: (_order(0), *_ORDERS_1_TO_4, _order(6), *_SKIPS[:2], _SPARSE[1]),
    3: (
        *(_order(0), *_ORDERS_1_TO_4, _order(6), _WORDS, _FOLLOWED_1, _FOLLOWED_2),
        *(*_SPARSE, *_SKIPS[1:]),
    ),
}
_TABLE = {
    1: (_order(1), _order(2), _order(3), (_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFF, 0xFF)),
    2: (
        *(_order(0), _order(1), _order(2), _order(3), _order(4)),
        *((_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFF, 0xFF)),
    ),
    3: (
        *(_order(0), *_ORDERS_1_TO_4, _order(6), _FOLLOWED_1, *_SPARSE),
        *((_RECORD, 0xFFFF0000, 0), (_RECORD, 0xFFFF00FF, 0), (_RECORD, 0xFFFF, 0), (_RECORD, 0xFF, 0xFF)),
        (_RECORD, 0xFF, 0xFFFF),
    ),
}
_CONTEXTS = {"text": _TEXT, "executable": _OTHER, "table": _TABLE, "other": _OTHER}
_MATCHES = {1: (6,), 2: (6,), 3: (6, 16)}
_SELECTORS = {1: 2, 2: 3, 3: 3}
_SLOT_BITS = {1: 19, 2: 22, 3: 23}


@dataclass(frozen=True)
class DeepPreset:
    """The parameters of the models of levels 4 to 6."""

    contexts: tuple[tuple[int, int, int, int], ...]
    matches: tuple[int, ...]  # least match lengths
    selectors: int  # of mixer weight sets
    buckets: int  # the most buckets of evidence, of 192 bytes each
    rates: tuple[float, ...]  # of learning, see deepmodel.py
    ssm: "Sizes | None"


def preset(level: int, kind: str) -> Preset | DeepPreset:
    """The models of a level for a kind of content ("text", "executable", "table" or "other")."""
    if level in DEEP:
        from squeeze.codecs.deep import presets as deeplevels

        return deeplevels.preset(level, kind)
    level = min(level, 3)
    return Preset(_CONTEXTS[kind][level], _MATCHES[level], _SELECTORS[level], _SLOT_BITS[level])


@dataclass(frozen=True)
class TokenPreset:
    """The parameters of the tokenwise models: lanes and window are those of one block."""

    bytewise: Preset
    lanes: int
    window: int  # positions, a multiple of 16


_TOKENS = (
    *(_order(0), *_ORDERS_1_TO_4, _order(6), _WORDS, _PAIRS, _GAPS, _SHAPES, _LINES),
    *((_TOKEN_1, _ALL, 0), (_TOKEN_2, _ALL, 0), (_TOKEN_3, _ALL, 0), (_LINE, 0xFF00, 0), (_LINE, 0xFF00, 0xFF)),
)
_WINDOWS = {7: 512, 8: 1024, 9: 4096}
_LANES = {7: (64, 1 << 13), 8: (16, 1 << 14), 9: (4, 1 << 18)}  # at most so many, and one for so many bytes
SINK = 16  # positions that are always seen, besides the window


def token_preset(level: int, size: int, context: int, lanes: int | None, window: int | None) -> TokenPreset:
    """The models of a level for a text of `size` bytes and a language model trained on `context` positions."""
    most, share = _LANES[level]
    window = min(window or _WINDOWS[level], max(context - SINK, SINK))
    contexts = Preset(_TOKENS, _MATCHES[3], _SELECTORS[3], _SLOT_BITS[3])
    return TokenPreset(contexts, lanes or min(max(size // share, 1), most), max(window // 16, 1) * 16)


def check(level: int) -> None:
    """Raise LevelError, with the reason, where `level` cannot be used."""
    if level not in AVAILABLE:
        raise LevelError(f"level {level} does not exist: use a level from 1 to 9")


def default() -> tuple[int, str | None]:
    """The level used when none is given, and a note to print, if any."""
    return DEFAULT, None


def estimate_seconds(level: int, size: int, threads: int | None = None, verify: bool = True) -> float:
    """About how long `size` raw bytes take; blocks are spread over the threads."""
    blocks = 2 if level in TOKENWISE else max(1, -(-size // DEFAULT_BLOCK))
    return size * (2 if verify else 1) / _SPEED[level] / min(threads or (2 if level in TOKENWISE else 1), blocks)
