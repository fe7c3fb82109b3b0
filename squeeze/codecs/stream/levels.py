"""Levels: what -1 to -9 mean. A level and a kind of content name every parameter of the models.

The tables here are part of the format: a change to them changes the coded
bytes, so it needs a new numerics version.
"""

from typing import TYPE_CHECKING

from squeeze.codecs import presets
from squeeze.codecs.presets import Preset
from squeeze.codecs.tokenwise.presets import BYTEWISE, TokenPreset
from squeeze.errors import LevelError
from squeeze.lm.config import SINK

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset

AVAILABLE = (1, 2, 3, 4, 5, 6, 7, 8, 9)
DEEP = (4, 5, 6)  # many contexts, and a state-space model trained on the way
BESIDE = (5, 6)  # that model may be trained in a second thread
TOKENWISE = (7, 8, 9)  # text goes through a language model
DEFAULT = 3

# Raw bytes a second that one thread codes, on a slow machine of today: for estimates only.
_SPEED = {1: 550_000, 2: 400_000, 3: 300_000, 4: 100_000, 5: 25_000, 6: 15_000, 7: 1_200, 8: 1_100, 9: 500}
DEFAULT_BLOCK = 1 << 24


def preset(level: int, kind: str) -> "Preset | DeepPreset":
    """The models of a level for a kind of content ("text", "executable", "table" or "other")."""
    if level in DEEP:
        from squeeze.codecs.deep import presets as deeplevels

        return deeplevels.preset(level, kind)
    return presets.preset(min(level, 3), kind)


_WINDOWS = {7: 512, 8: 1024, 9: 4096}
_LANES = {7: (64, 1 << 13), 8: (16, 1 << 14), 9: (4, 1 << 18)}  # at most so many, and one for so many bytes


def token_preset(level: int, size: int, context: int, lanes: int | None, window: int | None) -> TokenPreset:
    """The models of a level for a text of `size` bytes and a language model trained on `context` positions."""
    most, share = _LANES[level]
    window = min(window or _WINDOWS[level], max(context - SINK, SINK))
    return TokenPreset(BYTEWISE, lanes or min(max(size // share, 1), most), max(window // 16, 1) * 16)


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
