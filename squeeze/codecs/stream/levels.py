"""Levels: what -1 to -9 mean, one row each. A level and a kind of content name every parameter of the models.

The rows are part of the format: a change to models, window or lanes changes
the coded bytes, so it needs a new numerics version. A new level is a new row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from squeeze.codecs import presets
from squeeze.codecs.presets import Preset
from squeeze.codecs.tokenwise.presets import BYTEWISE, TokenPreset
from squeeze.errors import LevelError
from squeeze.lm.window import SINK

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
    arithmetic: int = 2  # of the language model: see lm/weights.py
    in_batches: bool = False  # whether lanes are coded in batches, and not in turns
    repeats: bool = True  # whether entries that repeat may go without the language model

    def preset(
        self, size: int, context: int, lanes: int | None, window: int | None, batch: int | None = None
    ) -> TokenPreset:
        """For a text of `size` bytes and a language model trained on `context` positions."""
        window = min(window or self.window, max(context - SINK, SINK))
        lanes = lanes or min(max(size // self.lane_bytes, 1), self.most_lanes)
        return TokenPreset(self.bytewise, lanes, max(window // 16, 1) * 16, batch or 0, self.repeats)


def _deep(number: int, kind: str, numerics: int = 7) -> "DeepPreset":
    # Start-up: what levels 4 to 6 compile takes a tenth of a second to load, which other levels do without.
    from squeeze.codecs.deep.presets import preset

    return preset(number, kind, numerics)


def _first_deep(number: int, kind: str) -> "DeepPreset":
    from squeeze.codecs.deep.presets import first_preset  # start-up, as above

    return first_preset(number, kind)


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
    models: Callable[[str], "Preset | DeepPreset"]
    takes_dictionary: bool = False
    numerics: int = 1  # version, which a file's header names
    text: TextModel | None = None  # None where text is coded as everything else is
    beside: Beside | None = None

    @property
    def needs_language_model(self) -> bool:
        return self.text is not None


_UNREAD = Beside(4, 1 << 18, kinds=("text", "other"), unread=True)
_ROWS = (
    Level(1, "context mixing, small", 550_000, partial(presets.preset, 1), numerics=7),
    Level(
        *(2, "context mixing, medium", 400_000, partial(presets.preset, 2)),
        numerics=7,
        beside=Beside(1, 1 << 17, 1 << 16, ("other",)),
    ),
    Level(3, "context mixing, large", 300_000, partial(presets.preset, 3), numerics=7, beside=Beside(2, 1 << 16)),
    Level(4, "deep context mixing, few contexts", 100_000, partial(_deep, 4), True, 7, beside=Beside(3, 1 << 18)),
    Level(5, "deep context mixing and a pretrained network", 25_000, partial(_deep, 5), True, 7, beside=_UNREAD),
    Level(6, "deep context mixing, more, and a pretrained network", 15_000, partial(_deep, 6), True, 7, beside=_UNREAD),
    Level(7, "language model, short window", 1_600, partial(_deep, 6), False, 7, TextModel(512, 64, 1 << 13, 16)),
    Level(8, "language model", 1_400, partial(_deep, 6), False, 7, TextModel(1024, 16, 1 << 14, 4)),
    Level(9, "language model, long window", 700, partial(_deep, 6), False, 7, TextModel(4096, 4, 1 << 18, 1)),
)
LEVELS = {row.number: row for row in _ROWS}
_WITH_TEXT = [(row, row.text) for row in _ROWS if row.text is not None]
_WITH_ALL = [(row, replace(text, repeats=False)) for row, text in _WITH_TEXT]  # all entries go through the model
_EARLIER = (  # what files were written by before
    *(replace(LEVELS[number], models=presets.BY_LEVEL[number].__getitem__, numerics=1) for number in (1, 2, 3)),
    *(replace(LEVELS[number], models=partial(_first_deep, number), numerics=1) for number in (5, 6)),
    *(
        replace(LEVELS[number], models=partial(_deep, number, numerics=numerics), numerics=numerics)
        for number, numerics in ((4, 1), (5, 2), (5, 3), (6, 2), (6, 3))
    ),
    *(
        replace(row, models=presets.LARGE.__getitem__, numerics=1, text=replace(text, arithmetic=1))
        for row, text in _WITH_ALL
    ),
    *(
        replace(
            row,
            models=partial(_deep, 6, numerics=of_bytes),
            numerics=numerics,
            text=replace(text, in_batches=batches),
        )
        for row, text in _WITH_ALL
        for numerics, of_bytes, batches in ((2, 2, False), (3, 2, True), (4, 3, False), (5, 3, True))
    ),
    *(replace(row, models=partial(_deep, 6, numerics=3), numerics=6) for row, _ in _WITH_TEXT),
)

_IN_BATCHES = {  # what files are written by where that is asked for
    row.number: replace(row, numerics=8, text=replace(text, in_batches=True)) for row, text in _WITH_ALL
}


def rows_of(number: int) -> list[Level]:
    """Those of a level: the present one, what files were written by before, and what codes lanes in batches."""
    return [row for row in (*LEVELS.values(), *_EARLIER, *_IN_BATCHES.values()) if row.number == number]


def in_batches(row: Level) -> Level:
    """The row of a level with a language model by which lanes are coded in batches."""
    return _IN_BATCHES[row.number]


def of_file(number: object, numerics: object) -> Level | None:
    """The row by which a file was written; None where this version has none."""
    if not isinstance(number, int):
        return None
    return next((row for row in rows_of(number) if row.numerics == numerics), None)


def has_built_in(row: Level, kind: str) -> bool:
    """Whether models of this kind of content begin with what comes with the package, and no language model is before
    them."""
    return row.text is None and bool(row.models(kind).taught)


def without_built_in(row: Level) -> Level:
    """The row of the same level by which a block begins with nothing but what it says itself: no network, and nothing
    that mixers were taught. Raises LevelError for a level with a language model."""
    if row.text is not None:
        raise LevelError(
            f"levels {those_with_language_model()} do not go without what is built in: use one from 1 to 6"
        )
    return next(one for one in rows_of(row.number) if one.numerics == 1)


def level(number: int) -> Level:
    """The row of a level. Raises LevelError where there is none."""
    if number not in LEVELS:
        raise LevelError(f"level {number} does not exist: use a level from {min(LEVELS)} to {max(LEVELS)}")
    return LEVELS[number]


def with_those_beside(
    row: Level, size: int, kind: Callable[[], str], unread: Callable[[], bool] = lambda: False
) -> list[Level]:
    """The levels that an input of `size` raw bytes is coded at: the one asked for, and lower ones where it is small.
    `kind` looks at what it holds, and `unread` at whether the network does not read that, which take a while. Beside
    a row that has nothing built in there are such rows."""
    rows, bare = [row], row not in LEVELS.values()
    while (beside := rows[-1].beside) and beside.serves(size, kind, unread):
        lower = level(beside.level)
        rows.append(without_built_in(lower) if bare else lower)
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
