"""Decoding a block, by its kind."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import xxhash

from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.bytewise.presets import Preset
from squeeze.codecs.content import Content
from squeeze.codecs.stream import blocks, container, media, opened, repeats, runs, split
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.copies import Copies, Literals
from squeeze.codecs.stream.estimates import check_block_memory
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels.meter import Recorder
from squeeze.system.binary import read_exactly
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset


Progress = Callable[[int], None] | None


def decode_block(
    coded: Coded,
    length: int,
    settings: Settings,
    progress: Progress = None,
    guessed: np.ndarray | None = None,
    recorder: Recorder | None = None,
) -> np.ndarray:
    """Decode a block to uint8 [length].

    Args:
        coded: the block.
        length: its raw bytes.
        settings: those of its stream.
        progress: is called with the number of raw bytes done since its last call.
        guessed: uint8 [length], the expected bytes, which make decoding faster; of a block with opened wrappers, the
            opened bytes.
        recorder: measures the cost of every byte, if given.

    Raises:
        DamagedError: if the payload is invalid.
    """
    if coded.kind == container.STORED:
        report(progress, length)
        return np.frombuffer(coded.payload, np.uint8)
    if settings.level is None:
        raise DamagedError("the header names no level, but a block is coded: the file is damaged")
    if has_runs(coded, settings):
        found, inner = rest_of(coded, length)
        known = None if guessed is None else found.rest(guessed)
        rest = decode_block(inner, length - found.removed, settings, progress, known, recorder)
        report(progress, found.removed)
        return found.expand(rest)
    if coded.kind == container.OPENED:
        return _decode_opened(coded, length, settings, progress, guessed)
    if medium := media.of_block(coded.kind):
        _share_evenly(coded, medium.kind, length, recorder)
        return medium.decode(coded.payload, length, progress)
    payload = io.BytesIO(coded.payload)
    content = _read_content(coded.kind, payload, settings)
    if coded.kind in container.BY_LANGUAGE and settings.language is None:
        raise DamagedError("a block needs a language model, and the header names none: the file is damaged")
    if coded.kind == container.SPLIT:
        return _decode_split(coded, length, settings, progress, guessed)
    if settings.language and coded.kind == container.TOKENWISE:
        return settings.language.decode(payload, length, settings.allotment.per_text, progress, guessed, recorder)
    preset = settings.level.models(content.kind)
    if guessed is not None and content.is_filtered:
        guessed = guessed.copy()
        blocks.calls_to_absolute(guessed)
    data = _decode_bytes(payload.read(), length, preset, content, settings, progress, guessed, recorder)
    if content.is_filtered:
        blocks.calls_to_relative(data)
    return data


def _read_content(kind: int, payload: io.BytesIO, settings: Settings) -> Content:
    """Return the content of a block of a kind, and leave its payload after it."""
    if kind == container.REPEATS:
        raise repeats.impossible()  # it is in a block, and only those of a stream repeat others: see `decode_repeats`
    if settings.names_content:
        assert settings.dictionary
        return settings.dictionary.content
    return container.read_content(payload)[0]


def decode_repeats(
    coded: Coded, length: int, settings: Settings, progress: Progress = None
) -> tuple[Copies, np.ndarray]:
    """Decode what a block with repeats codes itself: return its copies, and its other bytes, uint8.

    Args:
        coded: the block.
        length: its raw bytes.
        settings: those of its stream.
        progress: is called with the number of raw bytes done since its last call.

    Raises:
        DamagedError: if the payload is invalid.
        LimitError: if it takes too much memory.
    """
    limits = settings.limits or Limits()
    found = repeats.read(
        coded.payload, length, lambda memory: limits.need_memory(memory, "the list of a block's repeats")
    )
    if found.ranges and found.ranges[0][0] < -settings.window:
        raise DamagedError("a block repeats bytes that are too far back: the file is damaged")
    check_block_memory(settings, found.rest.kind, found.rest_size, len(found.rest.payload))
    rest = decode_block(found.rest, found.rest_size, settings, scaled(progress, length, max(found.rest_size, 1)))
    if not found.rest_size:
        report(progress, length)
    return found.copies, rest


def load_block(file: BinaryIO, block: container.BlockHeader, begin: int, settings: Settings) -> Literals:
    """Read what a block codes itself. If it has copies, only the checksums of blocks that repeat it prove it.

    Args:
        file: at the block's payload.
        block: its header.
        begin: its offset in the raw bytes of the stream.
        settings: those of its stream.

    Raises:
        DamagedError: if the payload is invalid.
        LimitError: if it takes too much memory.
    """
    check_block_memory(settings, block.kind, block.raw_length, block.payload_length)
    if block.kind == container.STORED and settings.limits:
        settings.limits.need_memory(block.raw_length, "a stored block that another repeats")
    coded, copies = container.Coded(block.kind, read_exactly(file, block.payload_length)), None
    if block.kind == container.REPEATS:
        copies, data = decode_repeats(coded, block.raw_length, settings)
    else:
        data = decode_block(coded, block.raw_length, settings)
        check_raw(data, block.checksum)
    return Literals(begin, block.raw_length, data, copies)


def _decode_split(
    coded: Coded, length: int, settings: Settings, progress: Progress, guessed: np.ndarray | None
) -> np.ndarray:
    data = np.empty(length, np.uint8)
    for part in parts_of(coded, length):
        known = None if guessed is None else guessed[part.places]
        data[part.places] = decode_block(part.coded, part.size, settings, progress, known)
    return data


def _decode_opened(
    coded: Coded, length: int, settings: Settings, progress: Progress, guessed: np.ndarray | None
) -> np.ndarray:
    parts = opened_parts(coded, length, settings)
    tick = scaled(progress, length, parts.size)

    def decode_part(part: Coded, size: int, known: np.ndarray | None) -> np.ndarray:
        check_block_memory(settings, part.kind, size, len(part.payload))
        return decode_block(part, size, settings, tick, known)

    return opened.decode(parts, length, decode_part, guessed)


def opened_parts(coded: Coded, length: int, settings: Settings) -> opened.Parts:
    """Return the parts of a block with opened wrappers of `length` raw bytes.

    Raises:
        DamagedError: if the payload is invalid.
        LimitError: if the opened bytes take too much memory.
    """
    parts = opened.read(coded.payload, length)
    if settings.limits:
        settings.limits.need_memory(parts.memory, f"a block with {parts.size:,} opened bytes")
    return parts


def _share_evenly(coded: Coded, part: str, length: int, recorder: Recorder | None) -> None:
    """Give every byte of a block the same share of its cost."""
    if recorder:
        recorder.start(length, [[part]]).bits[:] = 8 * len(coded.payload) / max(length, 1)


def has_runs(coded: Coded, settings: Settings) -> bool:
    """Return whether runs were removed from a block."""
    return coded.kind in container.WITH_RUNS and coded.payload[:1] == container.RUNS and not settings.names_content


def rest_of(coded: Coded, length: int) -> tuple[runs.Runs, Coded]:
    """Return the runs of a block, and the rest of it as a block.

    Args:
        coded: a block from which runs were removed.
        length: its raw bytes.

    Raises:
        DamagedError: if the payload is invalid.
    """
    found, payload = runs.read(coded.payload[1:], length)
    size = length - found.removed
    if payload[:1] == container.RAW and coded.kind == container.BYTEWISE and len(payload) == 1 + size:
        return found, Coded(container.STORED, payload[1:])
    if payload[:1] in (container.RUNS, container.RAW) or not 1 <= len(payload) <= size:
        raise DamagedError("the rest of a block without its runs is impossible: the file is damaged")
    return found, Coded(coded.kind, payload)


@dataclass(frozen=True)
class Part:
    """The texts or the rest of a split block."""

    coded: Coded
    places: np.ndarray  # bool [raw bytes of the block]: bytes of this part

    @property
    def size(self) -> int:
        """Raw bytes of the part."""
        return int(np.count_nonzero(self.places))


def parts_of(coded: Coded, length: int) -> tuple[Part, Part]:
    """Return the texts and the rest of a split block of `length` raw bytes.

    Raises:
        DamagedError: if the payload is invalid.
    """
    payload = io.BytesIO(coded.payload)
    content, _ = container.read_content(payload)
    of_text, text, rest = split.read(payload, length)
    size = length - int(np.count_nonzero(of_text))
    if len(rest) > size:
        raise DamagedError("a block's lengths are impossible: the file is damaged")
    other = Coded(container.STORED, rest)
    if len(rest) < size:
        other = Coded(container.BYTEWISE, container.content_bytes(content) + rest)
    return Part(Coded(container.TOKENWISE, text), of_text), Part(other, ~of_text)


def _decode_bytes(
    payload: bytes,
    length: int,
    preset: "Preset | DeepPreset",
    content: Content,
    settings: Settings,
    progress: Progress,
    guessed: np.ndarray | None,
    recorder: Recorder | None,
) -> np.ndarray:
    if not isinstance(preset, Preset):
        start, threads = settings.start(content, preset), settings.per_block
        data: np.ndarray = deep().decode(
            payload, length, preset, content.record, progress, start, recorder, guessed, threads
        )
        return data
    return bytewise.decode(payload, length, preset, content.record, progress, recorder)


def deep() -> ModuleType:
    """Import the coder of levels 4 to 6, which takes a tenth of a second that other levels do not need."""
    from squeeze.codecs.deep import coder

    return coder


def check_raw(data: np.ndarray, checksum: int, short: bool = False) -> None:
    """Compare the checksum of raw bytes with that of their block header.

    Args:
        data: uint8 [n], the raw bytes.
        checksum: that of the header.
        short: whether it is of a short stream.

    Raises:
        DamagedError: if they differ.
    """
    if not container.matches_checksum(xxhash.xxh3_64_intdigest(data.data), checksum, short):
        raise DamagedError("a block's checksum differs: the file is damaged (`salvage=True` restores the other blocks)")


def report(progress: Progress, count: int) -> None:
    if progress:
        progress(count)


def scaled(progress: Progress, size: int, total: int) -> Progress:
    """Return a function that takes `total` bytes of work as progress of `size` bytes."""
    done = 0

    def tick(count: int) -> None:
        nonlocal done
        before, done = done, done + count
        report(progress, size * done // total - size * before // total)

    return tick
