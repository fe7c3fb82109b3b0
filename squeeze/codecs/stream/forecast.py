"""What compressing and restoring will take: in words for whoever waits for it, in bytes for whoever places it."""

from typing import BinaryIO

from squeeze.codecs.stream import container, levels, memory as taken
from squeeze.codecs.stream.header import from_header
from squeeze.codecs.stream.levels import Level
from squeeze.codecs.stream.resources import LanguageOptions, Resources
from squeeze.codecs.stream.settings import Settings, choose

__all__ = ["memory", "needed", "slowness", "to_restore"]

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


def memory(level: Level, size: int | None, threads: int | None, asked: LanguageOptions) -> str | None:
    """For the largest file, of `size` bytes or unknown, at a level with a language model."""
    if not level.needs_language_model:
        return None
    size = levels.DEFAULT_BLOCK if size is None else min(size, levels.DEFAULT_BLOCK)
    return f"Level {level.number} will take about {needed(level, size, threads, asked) >> 20} MiB of memory."


def needed(level: Level, block: int | None, threads: int | None, asked: LanguageOptions) -> int:
    """Bytes of memory that compressing takes, by as many blocks at a time as there are threads. block: raw bytes of one
    at most, None for what blocks have."""
    settings = choose(level, threads, None, asked) if level.needs_language_model else Settings(level, threads)
    return _of(settings, levels.DEFAULT_BLOCK if block is None else block)


def to_restore(file: BinaryIO, resources: Resources) -> tuple[int | None, int]:
    """The level of a .sqz file, and the bytes of memory that restoring it takes, as its first bytes tell: those of
    other streams and longer blocks behind them are not looked at. The level is None where all is stored.

    Raises as `from_header` does.
    """
    header = container.read_header(file)
    settings = from_header(header, resources) if header else Settings()
    if header is None or settings.level is None:
        return None, 0
    block = None if header.short else container.read_block_header(file)
    length = block.raw_length if block and block.kind != container.STORED else 0
    return settings.level.number, _of(settings, max(length, levels.DEFAULT_BLOCK))


def _of(settings: Settings, block: int) -> int:
    assert settings.level
    of_bytes = taken.of_models(settings.level.number, block) + 4 * block
    if settings.language:
        return max(settings.language.memory(block), of_bytes)
    return (settings.threads or 1) * of_bytes
