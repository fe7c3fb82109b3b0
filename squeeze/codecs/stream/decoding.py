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
from squeeze.codecs.stream import blocks, container, memory, runs, split
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
_SAMPLE = 1 << 16  # raw bytes of a block that are coded in two ways, to choose one
SMALL = 1 << 12  # raw bytes below which a dictionary is used whatever the block seems to hold


@dataclass(frozen=True)
class Coded:
    """The kind and payload of a coded block."""

    kind: int
    payload: bytes


def encode_block(
    data: np.ndarray, content: Content, settings: Settings, verify: bool = True, progress: Progress = None
) -> Coded | None:
    """A coded block, or None where storing `data` is no larger."""
    if settings.dictionary and data.size < SMALL and not blocks.is_packed(content):
        content = settings.dictionary.content
    found = None if settings.names_content else runs.find(data, content.record)
    if found:
        coded: Coded | None = _encode_rest(data, found, content, settings, progress)
    else:
        coded = _encode_whole(data, content, settings, progress)
    if coded is None:
        report(progress, data.size if verify else 0)
        return None
    if verify or settings.bound:
        _verify(coded, data, settings, progress)
    return coded if len(coded.payload) + (_SHORT_COST if settings.short else _HEADER_COST) <= data.size else None


def _encode_rest(data: np.ndarray, found: runs.Runs, content: Content, settings: Settings, progress: Progress) -> Coded:
    """A block without its runs, which are written before it."""
    rest = found.rest(data)
    if found.taken > rest.size:
        content = blocks.content(rest)
    coded = _encode_whole(rest, content, settings, progress)
    report(progress, found.taken)
    begin = container.RUNS + found.to_bytes()
    if coded is None or len(coded.payload) > rest.size:
        return Coded(container.BYTEWISE, begin + container.RAW + rest.tobytes())
    return Coded(coded.kind, begin + coded.payload)


def _encode_whole(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
    texts = split.find(data) if settings.language and not settings.short else None
    if data.size == 0 or (blocks.is_packed(content) and texts is None):
        report(progress, data.size)
        return None
    if texts is not None:
        return _encode_split(data, content, texts, settings, progress)
    if content.kind == "text" and settings.language:
        return _encode_language(data, content, settings, progress)
    return _encode_bytewise(data, content, settings, progress)


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
    """The `length` raw bytes of a coded block, as uint8; faster where they are as guessed. A recorder measures what
    they cost."""
    if coded.kind == container.STORED:
        report(progress, length)
        return np.frombuffer(coded.payload, np.uint8)
    if settings.level is None:
        raise DamagedError("the header names no level, but a block is coded: the file is damaged")
    if has_runs(coded, settings):
        found, inner = rest_of(coded, length)
        known = None if guessed is None else found.rest(guessed)
        rest = decode_block(inner, length - found.taken, settings, progress, known, recorder)
        report(progress, found.taken)
        return found.expand(rest)
    payload = io.BytesIO(coded.payload)
    if settings.names_content:
        assert settings.dictionary
        content = settings.dictionary.content
    else:
        content, _ = container.read_content(payload)
    if coded.kind in container.BY_LANGUAGE and settings.language is None:
        raise DamagedError("a block needs a language model, and the header names none: the file is damaged")
    if coded.kind == container.SPLIT:
        data = np.empty(length, np.uint8)
        for part in parts_of(coded, length):
            known = None if guessed is None else guessed[part.places]
            data[part.places] = decode_block(part.coded, part.size, settings, progress, known)
        return data
    if settings.language and coded.kind == container.TOKENWISE:
        return settings.language.decode(payload, length, settings.allotment.per_text, progress, guessed, recorder)
    preset = settings.level.models(content.kind)
    if guessed is not None and content.kind == "executable":
        guessed = guessed.copy()
        blocks.calls_to_absolute(guessed)
    data = _decode_bytes(payload.read(), length, preset, content, settings, progress, guessed, recorder)
    if content.kind == "executable":
        blocks.calls_to_relative(data)
    return data


def has_runs(coded: Coded, settings: Settings) -> bool:
    """Whether runs were taken out of a block."""
    return coded.kind != container.STORED and coded.payload[:1] == container.RUNS and not settings.names_content


def rest_of(coded: Coded, length: int) -> tuple[runs.Runs, Coded]:
    """Return the runs of a block of `length` raw bytes from which runs were taken, and the rest of it as a block.
    Raises DamagedError."""
    found, payload = runs.read(coded.payload[1:], length)
    size = length - found.taken
    if payload[:1] == container.RAW and coded.kind == container.BYTEWISE and len(payload) == 1 + size:
        return found, Coded(container.STORED, payload[1:])
    if payload[:1] in (container.RUNS, container.RAW) or not 1 <= len(payload) <= size:
        raise DamagedError("what a block holds beside its runs is impossible: the file is damaged")
    return found, Coded(coded.kind, payload)


@dataclass(frozen=True)
class Part:
    """Of a split block, the texts or the rest."""

    coded: Coded
    places: np.ndarray  # bool [raw bytes of the block]: those that are its own

    @property
    def size(self) -> int:
        """Its raw bytes."""
        return int(np.count_nonzero(self.places))


def parts_of(coded: Coded, length: int) -> tuple[Part, Part]:
    """The texts and the rest of a split block of `length` raw bytes. Raises DamagedError."""
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


def memory_of(settings: Settings, kind: int, length: int, payload: int) -> int:
    """Bytes for a block of `length` raw bytes and so many coded ones. What a language model takes is not among them."""
    if kind == container.STORED or settings.level is None:
        return 0
    if kind == container.TOKENWISE:
        return length + 3 * payload
    if kind == container.SPLIT:
        parts = (memory_of(settings, one, length, payload) for one in (container.TOKENWISE, container.BYTEWISE))
        return 4 * length + sum(parts)
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
    """Without a language model; text that the pretrained network does not read as what is no text, where that is
    smaller."""
    if content.kind != "text" or not unread(data, settings):
        return _encode_as(data, content, settings, progress)
    begin = max(data.size - _SAMPLE, 0) // 2
    sample, other = data[begin : begin + _SAMPLE], Content("other")
    whole = sample.size == data.size
    as_text = _encode_as(sample, content, settings, progress if whole else None)
    as_other = _encode_as(sample, other, settings, None)
    is_other = _length_of(as_other, sample.size) < _length_of(as_text, sample.size)
    if whole:
        return as_other if is_other else as_text
    return _encode_as(data, other if is_other else content, settings, progress)


def unread(data: np.ndarray, settings: Settings) -> bool:
    """Whether a pretrained network is beside the models of text, and does not read what `data` holds; where no
    dictionary says what blocks hold."""
    assert settings.level
    if settings.dictionary or settings.content:
        return False
    models = settings.level.models("text")
    if isinstance(models, Preset) or not models.network:
        return False
    from squeeze.codecs.deep import reading  # start-up, as in levels.py

    return not reading.reads(data)


def _length_of(coded: Coded | None, size: int) -> int:
    return size if coded is None else len(coded.payload)


def _encode_as(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
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


def _encode_split(
    data: np.ndarray, content: Content, of_text: np.ndarray, settings: Settings, progress: Progress
) -> Coded | None:
    """Texts by the language model and the rest without it, or all of it without where that is no larger."""
    rest = data[~of_text]
    coded = _encode_text(data[of_text], Content("text"), settings, progress)
    whole = None if blocks.is_packed(content) else _encode_bytewise(data, content, settings, None)
    if coded is None:
        report(progress, rest.size)
        return whole
    payload = _join(of_text, coded, rest, settings, progress)
    return whole if whole and len(whole.payload) <= len(payload) else Coded(container.SPLIT, payload)


def _join(of_text: np.ndarray, text: Coded, rest: np.ndarray, settings: Settings, progress: Progress) -> bytes:
    """The payload of a split block whose texts are coded."""
    content, other = blocks.content(rest), None
    if blocks.is_packed(content):
        content = Content("other")
        report(progress, rest.size)
    else:
        other = _encode_bytewise(rest, content, settings, progress)
    kind = container.content_bytes(content)
    coded = other.payload.removeprefix(kind) if other else b""
    return kind + split.join(of_text, text.payload, coded if other and len(coded) < rest.size else rest.tobytes())


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
        start = settings.start(content, preset)
        coded: bytes | None = _deep().encode(data, preset, content.record, progress, start, settings.per_block)
        return coded
    return bytewise.encode(data, preset, content.record, progress)


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
        data: np.ndarray = _deep().decode(
            payload, length, preset, content.record, progress, start, recorder, guessed, threads
        )
        return data
    return bytewise.decode(payload, length, preset, content.record, progress, recorder)


def _deep() -> ModuleType:
    from squeeze.codecs.deep import coder  # start-up, as in levels.py

    return coder


def check_raw(data: np.ndarray, checksum: int, short: bool = False) -> None:
    """Raise DamagedError where raw bytes are not those that a block header tells of."""
    if not container.is_checksum(xxhash.xxh3_64_intdigest(data.data), checksum, short):
        raise DamagedError("a block's checksum differs: the file is damaged (`salvage=True` restores the other blocks)")


def report(progress: Progress, count: int) -> None:
    if progress:
        progress(count)
