"""The levels -1 to -9, one row each: a level and a kind of content name every parameter of the models.

The rows are part of the format: a change to models, window or lanes changes the coded bytes. A new level is a new row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING

from squeeze.codecs.bytewise import presets
from squeeze.codecs.bytewise.presets import BYTEWISE, Preset, TokenPreset
from squeeze.errors import LevelError, printable

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset


DEFAULT = 3
DEFAULT_BLOCK = 1 << 24  # raw bytes


@dataclass(frozen=True)
class TextModel:
    """The parameters with which a level runs a language model over a block of text."""

    window: int  # positions that a token is predicted from
    most_lanes: int
    lane_bytes: int  # bytes of text per lane
    batch: int  # lanes that llama.cpp runs together, even if a text has fewer
    bytewise: Preset = BYTEWISE  # contexts of bytes that are mixed with the language model

    def preset(self, size: int, context: int, lanes: int | None, window: int | None) -> TokenPreset:
        """Return the parameters for a text.

        Args:
            size: bytes of the text.
            context: positions that the language model was trained on.
            lanes: a user's choice, or None for the level's.
            window: a user's choice, or None for the level's.
        """
        from squeeze.lm.arrays import SINK  # with numpy, and `--help` imports this module

        window = min(window or self.window, max(context - SINK, SINK))
        lanes = lanes or min(max(size // self.lane_bytes, 1), self.most_lanes)
        return TokenPreset(self.bytewise, lanes, max(window // 16, 1) * 16)


def _deep(number: int, kind: str, bare: bool = False) -> "DeepPreset":
    # Compiled code of levels 4 to 6 takes a tenth of a second to load, and `--help` imports this module.
    from squeeze.codecs.deep.presets import preset

    return preset(number, kind, bare)


@dataclass(frozen=True)
class Looks:
    """Questions about an input: its kind of content, and whether it is data of some kind. Each takes a while."""

    kind: Callable[[], str]
    unpredicted: Callable[[], bool] = lambda: False
    repetitive: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Fallback:
    """Another level at which small inputs are also coded; the smaller result is written.

    Fewer models learn faster, level 4 is better on data that the byte network predicts badly, and level 1 has too few
    contexts for what repeats in long pieces.
    """

    level: int
    below: int  # raw bytes
    least: int = 0  # raw bytes
    kinds: tuple[str, ...] = ()  # kinds of content; empty: every kind
    unpredicted: bool = False  # only data that the byte network predicts badly
    repetitive: bool = False  # only data that mostly repeat

    def serves(self, size: int, looks: Looks) -> bool:
        if not self.least <= size < self.below or (self.kinds and looks.kind() not in self.kinds):
            return False
        return (not self.unpredicted or looks.unpredicted()) and (not self.repetitive or looks.repetitive())


@dataclass(frozen=True)
class Level:
    """All parameters of a level.

    `models` returns those of a kind of content: "text", "lines", "executable", "table", "cells" or "other".
    """

    number: int
    name: str
    bytes_a_second: int  # raw bytes coded by one thread on a slow machine of 2026, for estimates only
    models: Callable[..., "Preset | DeepPreset"]
    takes_dictionary: bool = False
    text: TextModel | None = None  # None without a language model
    fallback: Fallback | None = None
    bare: bool = False  # without built-in weights and byte network

    @property
    def needs_language_model(self) -> bool:
        return self.text is not None


_IF_UNPREDICTED = Fallback(4, 1 << 18, kinds=("text", "other"), unpredicted=True)
_ROWS = (
    Level(
        *(1, "context mixing, small", 550_000, partial(presets.preset, 1)),
        fallback=Fallback(2, 1 << 15, kinds=("other",), repetitive=True),
    ),
    Level(
        *(2, "context mixing, medium", 400_000, partial(presets.preset, 2)),
        fallback=Fallback(1, 1 << 17, 1 << 16, ("other",)),
    ),
    Level(3, "context mixing, large", 300_000, partial(presets.preset, 3), fallback=Fallback(2, 1 << 16)),
    Level(4, "deep context mixing, few contexts", 100_000, partial(_deep, 4), True, fallback=Fallback(3, 1 << 18)),
    Level(5, "deep context mixing and a pretrained network", 25_000, partial(_deep, 5), True, fallback=_IF_UNPREDICTED),
    Level(
        6,
        "deep context mixing, more, and a pretrained network",
        15_000,
        partial(_deep, 6),
        True,
        fallback=_IF_UNPREDICTED,
    ),
    Level(7, "language model, short window", 1_600, partial(_deep, 6), text=TextModel(512, 64, 1 << 13, 16)),
    Level(8, "language model", 1_400, partial(_deep, 6), text=TextModel(1024, 16, 1 << 14, 4)),
    Level(9, "language model, long window", 700, partial(_deep, 6), text=TextModel(4096, 4, 1 << 18, 1)),
)
LEVELS = {row.number: row for row in _ROWS}


def has_built_in(row: Level, kind: str) -> bool:
    """Return whether models of a kind of content start with built-in weights, at a level without a language model."""
    return row.text is None and bool(row.models(kind).warm_start)


def has_network(row: Level | None, kind: str) -> bool:
    """Return whether the models of a kind of content include the byte network; None, for stored blocks, has none."""
    models = row.models(kind) if row else None
    return models is not None and not isinstance(models, Preset) and models.network


def bare(row: Level) -> Level:
    """Return the row of the same level without built-in weights and without the byte network.

    Raises:
        LevelError: if the level has a language model.
    """
    if row.text is not None:
        raise LevelError(f"levels {language_model_levels()} always use what is built in: use a level from 1 to 6")
    return replace(row, models=partial(row.models, bare=True), takes_dictionary=False, bare=True)


def level(number: int) -> Level:
    """Return the row of a level.

    Raises:
        LevelError: if there is no such level.
    """
    if isinstance(number, bool) or not isinstance(number, Integral):
        raise LevelError(
            f"level must be a whole number from {min(LEVELS)} to {max(LEVELS)}, got {printable(repr(number))}"
        )
    if number not in LEVELS:
        raise LevelError(f"level {number} does not exist: use a level from {min(LEVELS)} to {max(LEVELS)}")
    return LEVELS[number]


def candidate_levels(row: Level, size: int, looks: Looks) -> list[Level]:
    """Return the levels at which to code an input: the requested one and its fallbacks. Those of a bare row are bare.

    Args:
        row: the requested level.
        size: raw bytes.
        looks: what may be asked of the input.
    """
    rows = [row]
    while (fallback := rows[-1].fallback) and fallback.serves(size, looks):
        other = level(fallback.level)
        rows.append(bare(other) if row.bare else other)
    return rows


def without_language_model() -> Level:
    """Return the highest level without a language model."""
    return max((row for row in _ROWS if not row.needs_language_model), key=lambda row: row.number)


def language_model_levels() -> str:
    """Return the range of levels with a language model for messages: "7 to 9"."""
    numbers = [number for number, row in LEVELS.items() if row.needs_language_model]
    return f"{min(numbers)} to {max(numbers)}"


def estimate_seconds(number: int, size: int, threads: int | None = None, verify: bool = True) -> float:
    """Estimate the seconds of compression; blocks are spread over the threads.

    Args:
        number: the level.
        size: raw bytes.
        threads: number of threads.
        verify: whether blocks are decoded again.
    """
    row = level(number)
    blocks = 2 if row.needs_language_model else max(1, -(-size // DEFAULT_BLOCK))
    most_threads = threads or (2 if row.needs_language_model else 1)
    return size * (2 if verify else 1) / row.bytes_a_second / min(most_threads, blocks)
