"""What compressing will take, in words for whoever waits for it."""

from squeeze.codecs.stream import levels, memory as taken
from squeeze.codecs.stream.levels import Level
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.stream.settings import choose
from squeeze.numerics.jit import is_compiled

__all__ = ["compiling", "memory", "needed", "slowness"]

_SLOW = 60  # seconds of estimated work from which a word is due


def slowness(level: Level, size: int, threads: int | None, verify: bool) -> str | None:
    """For `size` bytes that take more than a minute."""
    seconds = levels.estimate_seconds(level.number, size, threads, verify)
    if seconds <= _SLOW:
        return None
    first = min(levels.LEVELS)
    fastest = levels.estimate_seconds(first, size, threads, verify)
    other = f"; -{first} would take about {fastest:.0f} s" if level.number != first else ""
    return f"Level {level.number} will take about {seconds:.0f} s{other}."


def compiling(level: Level) -> str | None:
    """Where the level's kernels were not compiled on this machine before, and that takes long."""
    if not level.needs_language_model or is_compiled("squeeze.codecs.tokenwise.model", "code_steps"):
        return None
    return "The first run at this level compiles it for this processor, which takes about a minute."


def memory(level: Level, size: int | None, threads: int | None, asked: LanguageOptions) -> str | None:
    """For the largest file, of `size` bytes or unknown, at a level with a language model."""
    if not level.needs_language_model:
        return None
    return f"Level {level.number} will take about {needed(level, size, threads, asked) >> 20} MiB of memory."


def needed(level: Level, size: int | None, threads: int | None, asked: LanguageOptions) -> int:
    """Bytes of memory for a file, or for blocks of `size` bytes or of what they have at most."""
    size = levels.DEFAULT_BLOCK if size is None else size
    language = choose(level, threads, None, asked).language if level.needs_language_model else None
    if language:
        return language.memory(size)
    size = min(size, levels.DEFAULT_BLOCK)
    return (threads or 1) * (taken.of_models(level.number, size) + 4 * size)
