"""Estimates of the memory and time that compression and decompression take."""

from typing import BinaryIO

from squeeze.codecs.parse import sizes
from squeeze.codecs.stream import container, levels, media, opened
from squeeze.codecs.stream.levels import Level
from squeeze.codecs.stream.memory import models_memory
from squeeze.codecs.stream.resources import LanguageOptions, Resources
from squeeze.codecs.stream.settings import Settings, from_header, settings_for_level
from squeeze.system.binary import read_exactly

_SLOW = 60  # seconds of estimated work from which there is a warning


def block_memory(settings: Settings, kind: int, length: int, payload: int) -> int:
    """Estimate the memory of coding or decoding a block in bytes, without that of a language model.

    Args:
        settings: those of the stream.
        kind: of the block, in container.CODECS.
        length: raw bytes.
        payload: coded bytes.
    """
    if kind == container.STORED or settings.level is None:
        return 0
    if medium := media.of_block(kind):
        return medium.memory(length) + length + payload
    if kind == container.TOKENWISE:
        return length + 3 * payload
    if kind == container.REPEATS:
        return length + block_memory(settings, container.BYTEWISE, length, payload)  # what is in it says more
    if kind == container.SPLIT:
        parts = (block_memory(settings, one, length, payload) for one in (container.TOKENWISE, container.BYTEWISE))
        return 4 * length + sum(parts)
    number, text = settings.level.number, settings.dictionary.text.size if settings.dictionary else 0
    learned = models_memory(number, text) + text + length if text else 0
    return models_memory(number, text + length) + length + 3 * payload + learned


def check_block_memory(settings: Settings, kind: int, length: int, payload: int) -> int:
    """Estimate the memory of a block as `block_memory` does, and check it against the limits.

    Raises:
        LimitError: if it is too much.
    """
    needed = block_memory(settings, kind, length, payload)
    if settings.limits and settings.level:
        settings.limits.need_memory(needed, f"a block of {length:,} bytes at level {settings.level.number}")
    return needed


def time_message(level: Level, size: int, threads: int | None, verify: bool) -> str | None:
    """Return a warning if compression will take more than a minute, else None.

    Args:
        level: row of the level.
        size: raw bytes.
        threads: number of threads.
        verify: whether blocks are decoded again.
    """
    seconds = levels.estimate_seconds(level.number, size, threads, verify)
    if seconds <= _SLOW:
        return None
    first = min(levels.LEVELS)
    fastest = levels.estimate_seconds(first, size, threads, verify)
    other = f"; -{first} would take about {fastest:.0f} s" if level.number != first else ""
    return f"Level {level.number} will take about {seconds:.0f} s{other}."


def memory_message(level: Level, size: int | None, threads: int | None, options: LanguageOptions) -> str | None:
    """Return a note on the memory that a level with a language model takes, or None for others.

    Args:
        level: row of the level.
        size: raw bytes of the largest file, or None if unknown.
        threads: number of threads.
        options: options of the language model.
    """
    if not level.needs_language_model:
        return None
    size = levels.DEFAULT_BLOCK if size is None else min(size, levels.DEFAULT_BLOCK)
    return (
        f"Level {level.number} will take about {memory_to_compress(level, size, threads, options) >> 20} MiB of memory."
    )


def memory_to_compress(level: Level, block: int | None, threads: int | None, options: LanguageOptions) -> int:
    """Estimate the memory of compression in bytes, with as many blocks at once as threads.

    Args:
        level: row of the level.
        block: most raw bytes of a block, or None for the default.
        threads: number of threads.
        options: options of the language model.
    """
    settings = (
        settings_for_level(level, threads, None, options) if level.needs_language_model else Settings(level, threads)
    )
    return _memory_of(settings, levels.DEFAULT_BLOCK if block is None else block)


def memory_to_restore(file: BinaryIO, resources: Resources) -> tuple[int | None, int]:
    """Return the level of a .sqz file, or None if all is stored, and the memory of decompression in bytes.

    Only the first stream's header and first block are looked at. What that block opens counts, and all that later ones
    may repeat.

    Args:
        file: at its start.
        resources: dictionary and language model.

    Raises:
        FormatError: if the header is invalid; other errors as `from_header`.
    """
    header = container.read_header(file)
    settings = from_header(header, resources) if header else Settings()
    if header is None or settings.level is None:
        return None, 0
    block = None if header.short else container.read_block_header(file)
    length = block.raw_length if block and block.kind != container.STORED else 0
    more = 0
    if block and block.kind == container.OPENED:
        parts = opened.read(read_exactly(file, block.payload_length), length)
        length, more = max([length, *parts.sizes]), parts.memory
    return settings.level.number, _memory_of(settings, max(length, levels.DEFAULT_BLOCK)) + more + settings.window


def work_of(file: BinaryIO, size: int) -> int:
    """Estimate the bytes that are coded of a file whose wrappers are opened; a file that has any is coded closed, too.

    Args:
        file: seekable, at its start.
        size: its bytes.
    """
    found = sizes.opened_size(file, size)
    return found + size if found > size and size < levels.DEFAULT_BLOCK else found


def _memory_of(settings: Settings, block: int) -> int:
    assert settings.level
    of_bytes = models_memory(settings.level.number, block) + 4 * block
    if settings.language:
        return max(settings.language.memory(block), of_bytes)
    return (settings.threads or 1) * of_bytes
