"""Estimates of the memory and time that compressing and restoring take."""

from typing import BinaryIO

from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.levels import Level
from squeeze.codecs.stream.memory import models_memory
from squeeze.codecs.stream.resources import LanguageOptions, Resources
from squeeze.codecs.stream.settings import Settings, choose, from_header

_SLOW = 60  # seconds of estimated work from which a word is due


def block_memory(settings: Settings, kind: int, length: int, payload: int) -> int:
    """Bytes for a block of `length` raw bytes and so many coded ones. What a language model takes is not among them."""
    if kind == container.STORED or settings.level is None:
        return 0
    if kind == container.TOKENWISE:
        return length + 3 * payload
    if kind == container.SPLIT:
        parts = (block_memory(settings, one, length, payload) for one in (container.TOKENWISE, container.BYTEWISE))
        return 4 * length + sum(parts)
    number, text = settings.level.number, settings.dictionary.text.size if settings.dictionary else 0
    learned = models_memory(number, text) + text + length if text else 0
    return models_memory(number, text + length) + length + 3 * payload + learned


def check_block_memory(settings: Settings, kind: int, length: int, payload: int) -> int:
    """As `block_memory`. Raises LimitError where the settings' limits do not allow it."""
    needed = block_memory(settings, kind, length, payload)
    if settings.limits and settings.level:
        settings.limits.need_memory(needed, f"a block of {length:,} bytes at level {settings.level.number}")
    return needed


def time_message(level: Level, size: int, threads: int | None, verify: bool) -> str | None:
    """For `size` bytes that take more than a minute."""
    seconds = levels.estimate_seconds(level.number, size, threads, verify)
    if seconds <= _SLOW:
        return None
    first = min(levels.LEVELS)
    fastest = levels.estimate_seconds(first, size, threads, verify)
    other = f"; -{first} would take about {fastest:.0f} s" if level.number != first else ""
    return f"Level {level.number} will take about {seconds:.0f} s{other}."


def memory_message(level: Level, size: int | None, threads: int | None, asked: LanguageOptions) -> str | None:
    """For the largest file, of `size` bytes or unknown, at a level with a language model."""
    if not level.needs_language_model:
        return None
    size = levels.DEFAULT_BLOCK if size is None else min(size, levels.DEFAULT_BLOCK)
    return (
        f"Level {level.number} will take about {memory_to_compress(level, size, threads, asked) >> 20} MiB of memory."
    )


def memory_to_compress(level: Level, block: int | None, threads: int | None, asked: LanguageOptions) -> int:
    """Bytes of memory that compressing takes, by as many blocks at a time as there are threads. block: raw bytes of one
    at most, None for what blocks have."""
    settings = choose(level, threads, None, asked) if level.needs_language_model else Settings(level, threads)
    return _of(settings, levels.DEFAULT_BLOCK if block is None else block)


def memory_to_restore(file: BinaryIO, resources: Resources) -> tuple[int | None, int]:
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
    of_bytes = models_memory(settings.level.number, block) + 4 * block
    if settings.language:
        return max(settings.language.memory(block), of_bytes)
    return (settings.threads or 1) * of_bytes
