"""How one block is coded: filters, models, and the proof that it decodes again."""

import io
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from squeeze.codecs.bitmodels.meter import Recorder
from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.presets import LARGE, Preset
from squeeze.codecs.stream import blocks, container, memory
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError, VerifyError

if TYPE_CHECKING:
    from squeeze.codecs.deep.presets import DeepPreset


Progress = Callable[[int], None] | None
_HEADER_COST = 80  # bytes that a coded block must save, so that it pays for headers and index entries around it
_IDENTITY_COST = 4  # bytes that name the language model in a short stream
_SHORT_COST = 2  # the same in a short stream, so that it pays for its payload's length
# From so many raw bytes of text on, what a language model makes of them is taken at once where it is less than this
# share of what level 3 does: level 6 made 0.69 of that, or more, of the large texts and sources of bench public.
_LARGE, _FAR_SMALLER = 1 << 19, 0.55
_SMALL = 1 << 12  # raw bytes below which a dictionary is used whatever the block seems to hold


@dataclass(frozen=True)
class Coded:
    """The kind and payload of a coded block."""

    kind: int
    payload: bytes


def encode_block(
    data: np.ndarray, content: Content, settings: Settings, verify: bool = True, progress: Progress = None
) -> Coded | None:
    """A coded block, or None where storing `data` is no larger."""
    if settings.dictionary and data.size < _SMALL and not blocks.is_packed(content):
        content = settings.dictionary.content
    if blocks.is_packed(content) or data.size == 0:
        report(progress, data.size * (2 if verify else 1))
        return None
    coded = None
    if content.kind == "text" and settings.language:
        coded = _encode_language(data, content, settings, progress)
    else:
        coded = _encode_bytewise(data, content, settings, progress)
    if coded is None:
        return None
    if verify or settings.bound:
        _verify(coded, data, settings, progress)
    return coded if len(coded.payload) + (_SHORT_COST if settings.short else _HEADER_COST) <= data.size else None


def _verify(coded: Coded, data: np.ndarray, settings: Settings, progress: Progress) -> None:
    try:
        same = np.array_equal(decode_block(coded, data.size, settings, progress, data), data)
    except DamagedError:
        same = False
    if not same and settings.bound:
        raise VerifyError("llama.cpp did not compute the same numbers twice: use the backend exact, or other lanes")
    if not same:
        raise VerifyError("the coded data did not decode to the input: this machine's memory or processor is faulty")


def decode_block(
    coded: Coded,
    length: int,
    settings: Settings,
    progress: Progress = None,
    guessed: np.ndarray | None = None,
    recorder: Recorder | None = None,
) -> np.ndarray:
    """The `length` raw bytes of a coded block, as uint8; with a language model faster where they are as guessed. A
    recorder measures what they cost."""
    if settings.level is None:
        raise DamagedError("the header names no level, but a block is coded: the file is damaged")
    payload = io.BytesIO(coded.payload)
    if settings.names_content:
        assert settings.dictionary
        content = settings.dictionary.content
    else:
        content, _ = container.read_content(payload)
    if coded.kind == container.TOKENWISE:
        if settings.language is None:
            raise DamagedError("a block needs a language model, and the header names none: the file is damaged")
        return settings.language.decode(payload, length, settings.allotment.per_text, progress, guessed, recorder)
    preset = settings.level.models(content.kind)
    data = _decode_bytes(payload.read(), length, preset, content, settings, progress, recorder)
    if content.kind == "executable":
        blocks.calls_to_relative(data)
    return data


def memory_of(settings: Settings, kind: int, length: int, payload: int) -> int:
    """Bytes for a block of `length` raw bytes and so many coded ones. What a language model takes is not among them."""
    if kind == container.STORED or settings.level is None:
        return 0
    if kind == container.TOKENWISE:
        return length + 3 * payload
    number, text = settings.level.number, settings.dictionary.text.size if settings.dictionary else 0
    learned = memory.of_models(number, text) + text + length if text else 0
    return memory.of_models(number, text + length) + length + 3 * payload + learned


def need_memory(settings: Settings, kind: int, length: int, payload: int) -> int:
    """As `memory_of`. Raises LimitError where the settings' limits do not allow it."""
    needed = memory_of(settings, kind, length, payload)
    if settings.limits and settings.level:
        settings.limits.need_memory(needed, f"a block of {length:,} bytes at level {settings.level.number}")
    return needed


def _encode_bytewise(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
    filtered = data
    if content.kind == "executable":
        filtered = data.copy()
        blocks.calls_to_absolute(filtered)
    assert settings.level
    coded = _encode_bytes(filtered, settings.level.models(content.kind), content, settings, progress)
    if coded is None:
        return None
    return Coded(container.BYTEWISE, (b"" if settings.names_content else container.content_bytes(content)) + coded)


def _encode_language(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
    """By the language model, or without it where that is no larger."""
    with ExitStack() as stack:
        size = _size_of_fast(data, settings.allotment.per_text, stack) if data.size >= _LARGE else None
        coded = _encode_text(data, content, settings, progress)
        if coded and size and len(coded.payload) < _FAR_SMALLER * (size() or 0):
            return coded
    other = _encode_bytewise(data, content, settings, None)
    named = _IDENTITY_COST if settings.short else 0
    return other if coded is None or (other and len(other.payload) <= len(coded.payload) + named) else coded


def _size_of_fast(data: np.ndarray, threads: int, stack: ExitStack) -> Callable[[], int | None]:
    """The coded size of a text at level 3, which one of some threads finds out meanwhile, and a single one when it is
    asked for; None where it is no shorter."""
    if threads == 1:
        return lambda: _length(bytewise.encode(data, LARGE["text"]))
    ended = Event()

    def go_on(_: int) -> None:
        if ended.is_set():
            raise CancelledError

    pool = stack.enter_context(ThreadPoolExecutor(1))
    stack.callback(ended.set)
    found = pool.submit(bytewise.encode, data, LARGE["text"], 0, go_on)
    return lambda: _length(found.result())


def _length(coded: bytes | None) -> int | None:
    return None if coded is None else len(coded)


def _encode_text(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
    assert settings.language
    coded = settings.language.encode(data, settings.allotment.per_text, progress)
    return None if coded is None else Coded(container.TOKENWISE, container.content_bytes(content) + coded)


def _encode_bytes(
    data: np.ndarray, preset: "Preset | DeepPreset", content: Content, settings: Settings, progress: Progress
) -> bytes | None:
    """The coded form by the coder of the preset's kind, or None where it would not be shorter."""
    if not isinstance(preset, Preset):
        coded: bytes | None = _deep().encode(data, preset, content.record, progress, settings.start(content, preset))
        return coded
    return bytewise.encode(data, preset, content.record, progress)


def _decode_bytes(
    payload: bytes,
    length: int,
    preset: "Preset | DeepPreset",
    content: Content,
    settings: Settings,
    progress: Progress,
    recorder: Recorder | None,
) -> np.ndarray:
    if not isinstance(preset, Preset):
        start = settings.start(content, preset)
        data: np.ndarray = _deep().decode(payload, length, preset, content.record, progress, start, recorder)
        return data
    return bytewise.decode(payload, length, preset, content.record, progress, recorder)


def _deep() -> ModuleType:
    from squeeze.codecs.deep import coder  # start-up, as in levels.py

    return coder


def check_raw(data: np.ndarray, checksum: int, short: bool = False) -> None:
    """Raise DamagedError where raw bytes are not those that a block header tells of."""
    if not container.is_checksum(xxhash.xxh3_64_intdigest(data.data), checksum, short):
        raise DamagedError("a block's checksum differs: the file is damaged (--salvage restores the other blocks)")


def report(progress: Progress, count: int) -> None:
    if progress:
        progress(count)
