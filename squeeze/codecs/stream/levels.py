"""Levels: what -1 to -9 mean, one row each. A level and a kind of content name every parameter of the models.

The rows are part of the format: a change to models, window or lanes changes
the coded bytes. A new level is a new row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING

from squeeze.codecs.bytewise import presets
from squeeze.codecs.bytewise.presets import BYTEWISE, Preset, TokenPreset
from squeeze.errors import LevelError, printable
from squeeze.lm.arrays import SINK

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset


DEFAULT = 3
DEFAULT_BLOCK = 1 << 24  # raw bytes


@dataclass(frozen=True)
class TextModel:
    """How a level runs a language model over a block of text."""

    window: int  # positions that a token is predicted from
    most_lanes: int
    lane_bytes: int  # of text, for each of which there is a lane
    batch: int  # lanes that llama.cpp runs together: each costs time, also in a text that needs fewer
    bytewise: Preset = BYTEWISE  # the contexts of bytes beside the language model

    def preset(self, size: int, context: int, lanes: int | None, window: int | None) -> TokenPreset:
        """For a text of `size` bytes and a language model trained on `context` positions."""
        window = min(window or self.window, max(context - SINK, SINK))
        lanes = lanes or min(max(size // self.lane_bytes, 1), self.most_lanes)
        return TokenPreset(self.bytewise, lanes, max(window // 16, 1) * 16)


def _deep(number: int, kind: str, bare: bool = False) -> "DeepPreset":
    # Start-up: what levels 4 to 6 compile takes a tenth of a second to load, which other levels do without.
    from squeeze.codecs.deep.presets import preset

    return preset(number, kind, bare)


@dataclass(frozen=True)
class Beside:
    """A lower level at which small inputs are coded, too: fewer models learn faster, and where the pretrained network
    reads nothing they are better. The smaller stream is written."""

    level: int
    below: int  # raw bytes
    least: int = 0  # raw bytes
    kinds: tuple[str, ...] = ()  # of content; (): every kind
    unread: bool = False  # only what the network does not read (deep/reading.py)

    def serves(self, size: int, kind: Callable[[], str], unread: Callable[[], bool]) -> bool:
        if not self.least <= size < self.below or (self.kinds and kind() not in self.kinds):
            return False
        return not self.unread or unread()


@dataclass(frozen=True)
class Level:
    """All that a level decides. `models` gives those of a kind of content: "text", "executable", "table", "other"."""

    number: int
    name: str
    bytes_a_second: int  # raw, coded by one thread on a slow machine of today: for estimates only
    models: Callable[..., "Preset | DeepPreset"]
    takes_dictionary: bool = False
    text: TextModel | None = None  # None where text is coded as everything else is
    beside: Beside | None = None
    bare: bool = False  # whether models begin with nothing built in, and no network is beside them

    @property
    def needs_language_model(self) -> bool:
        return self.text is not None


_UNREAD = Beside(4, 1 << 18, kinds=("text", "other"), unread=True)
_ROWS = (
    Level(1, "context mixing, small", 550_000, partial(presets.preset, 1)),
    Level(
        *(2, "context mixing, medium", 400_000, partial(presets.preset, 2)),
        beside=Beside(1, 1 << 17, 1 << 16, ("other",)),
    ),
    Level(3, "context mixing, large", 300_000, partial(presets.preset, 3), beside=Beside(2, 1 << 16)),
    Level(4, "deep context mixing, few contexts", 100_000, partial(_deep, 4), True, beside=Beside(3, 1 << 18)),
    Level(5, "deep context mixing and a pretrained network", 25_000, partial(_deep, 5), True, beside=_UNREAD),
    Level(6, "deep context mixing, more, and a pretrained network", 15_000, partial(_deep, 6), True, beside=_UNREAD),
    Level(7, "language model, short window", 1_600, partial(_deep, 6), text=TextModel(512, 64, 1 << 13, 16)),
    Level(8, "language model", 1_400, partial(_deep, 6), text=TextModel(1024, 16, 1 << 14, 4)),
    Level(9, "language model, long window", 700, partial(_deep, 6), text=TextModel(4096, 4, 1 << 18, 1)),
)
LEVELS = {row.number: row for row in _ROWS}


def has_built_in(row: Level, kind: str) -> bool:
    """Whether models of this kind of content begin with what comes with the package, and no language model is before
    them."""
    return row.text is None and bool(row.models(kind).warm_start)


def bare(row: Level) -> Level:
    """Return the row of the same level whose models begin with nothing but what a block says itself: no network, and
    nothing that mixers were taught. Raises LevelError for a level with a language model."""
    if row.text is not None:
        raise LevelError(f"levels {those_with_language_model()} always use what is built in: use a level from 1 to 6")
    return replace(row, models=partial(row.models, bare=True), takes_dictionary=False, bare=True)


def level(number: int) -> Level:
    """The row of a level. Raises LevelError where there is none."""
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise LevelError(
            f"level must be a whole number from {min(LEVELS)} to {max(LEVELS)}, got {printable(repr(number))}"
        )
    if number not in LEVELS:
        raise LevelError(f"level {number} does not exist: use a level from {min(LEVELS)} to {max(LEVELS)}")
    return LEVELS[number]


def with_those_beside(
    row: Level, size: int, kind: Callable[[], str], unread: Callable[[], bool] = lambda: False
) -> list[Level]:
    """Return the levels at which an input of `size` raw bytes is coded: the requested one, and lower ones if it is
    small. `kind` looks at what it holds, and `unread` at whether the network does not read that; both take a while. The
    lower ones of a bare row are bare."""
    rows = [row]
    while (beside := rows[-1].beside) and beside.serves(size, kind, unread):
        lower = level(beside.level)
        rows.append(bare(lower) if row.bare else lower)
    return rows


def without_language_model() -> Level:
    """The highest level that needs none."""
    return max((row for row in _ROWS if not row.needs_language_model), key=lambda row: row.number)


def those_with_language_model() -> str:
    """For messages: "7 to 9"."""
    numbers = [number for number, row in LEVELS.items() if row.needs_language_model]
    return f"{min(numbers)} to {max(numbers)}"


def estimate_seconds(number: int, size: int, threads: int | None = None, verify: bool = True) -> float:
    """About how long `size` raw bytes take; blocks are spread over the threads."""
    row = level(number)
    blocks = 2 if row.needs_language_model else max(1, -(-size // DEFAULT_BLOCK))
    most_threads = threads or (2 if row.needs_language_model else 1)
    return size * (2 if verify else 1) / row.bytes_a_second / min(most_threads, blocks)
