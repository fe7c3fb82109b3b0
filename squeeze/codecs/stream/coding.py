"""How one block is coded: filters, models, and the proof that it decodes again."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.deep import coder as deep
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.presets import Preset
from squeeze.codecs.stream import blocks, container, levels
from squeeze.codecs.stream.container import Content
from squeeze.codecs.varint import read_varint, varint
from squeeze.errors import DamagedError, FormatError, LevelError, PriorError, VerifyError
from squeeze.lm.config import SINK
from squeeze.system import cores

if TYPE_CHECKING:
    from squeeze.codecs.deep.learned import Start
    from squeeze.codecs.stream.prior import Prior
    from squeeze.codecs.tokenwise.lanes import LanguageModel, Layout
    from squeeze.lm.llamacpp import LlamaCpp, Setup

Progress = Callable[[int], None] | None
_HEADER_COST = 80  # bytes that a coded block must save, so that it pays for headers and index entries around it
BACKENDS = ("exact", "llamacpp")  # what runs the language model
_MAX_WINDOW = 1 << 17
_WEIGHTS_DIGITS = 32  # of the SHA-256 of a model or a prior that a header holds
_SMALL = 1 << 12  # raw bytes below which a prior is used whatever the block seems to hold
PriorSource: TypeAlias = "Prior | str | os.PathLike | None"


@dataclass(frozen=True)
class Coded:
    """The kind and payload of a coded block."""

    kind: int
    payload: bytes


@dataclass(frozen=True)
class Coding:
    """What a stream's header names, and with how many threads to go about it. The model is loaded when needed."""

    level: int | None  # None where all blocks are stored
    threads: int | None = None
    model: Path | None = None  # where the language model lies, if that is known
    name: str | None = None  # of the model that a header names
    weights: str | None = None
    lanes: int | None = None
    window: int | None = None
    backend: str = "exact"
    setup: "Setup | None" = None  # of llama.cpp, that a header names
    prior: "Prior | None" = None
    short: bool = False  # a short stream, whose one block the prior codes

    @classmethod
    def chosen(
        cls,
        level: int,
        threads: int | None,
        model: Path | None,
        lanes: int | None,
        window: int | None,
        backend: str | None = None,
        prior: "PriorSource" = None,
    ) -> "Coding":
        """For compressing. Raises LevelError, ModelError or PriorError."""
        if backend not in (None, *BACKENDS):
            raise LevelError(f"there is no backend {backend!r}: use {' or '.join(BACKENDS)}")
        known = as_prior(prior)
        if known and known.level != level:
            raise LevelError(f"the prior was trained for level {known.level}: leave the level out, or train another")
        coding = cls(level, threads, model, None, None, lanes, window, backend or "exact", prior=known)
        if level in levels.TOKENWISE:
            if lanes is not None and not 1 <= lanes <= _limits().MAX_LANES:
                raise LevelError(f"a text is cut into 1 to {_limits().MAX_LANES} lanes")
            if window is not None and not 16 <= window <= _MAX_WINDOW:
                raise LevelError(f"a window has 16 to {_MAX_WINDOW} tokens")
            most = levels.token_preset(level, container.MAX_BLOCK, coding.language_model.context, lanes, window)
            if most.lanes * most.window > _limits().MAX_POSITIONS:
                raise LevelError(
                    f"{most.lanes} lanes that look back {most.window} tokens need too much memory: "
                    "use fewer lanes or a shorter window"
                )
        elif (model, lanes, window, backend) != (None, None, None, None):
            raise LevelError("a language model, its backend, lanes and a window belong to levels 7 to 9")
        return coding

    @classmethod
    def named(
        cls,
        header: dict,
        threads: int | None = None,
        model: Path | None = None,
        prior: "PriorSource" = None,
        short: bool = False,
    ) -> "Coding":
        """For decompressing what has this header. Raises FormatError where this version cannot decode it, ModelError
        where `model` is given and is not the one that the file needs, and PriorError where `prior` is not."""
        if short:
            needed = _needed(header["prior"], prior)
            return cls(needed.level, threads, prior=needed, short=True)
        if not header:
            return cls(None, threads)
        level = header.get("level")
        if type(level) is not int or level not in levels.AVAILABLE:
            raise FormatError(_LACKS)
        if level not in levels.TOKENWISE:
            wanted = header.get("prior")
            if set(header) - {"prior"} != {"level", "numerics"}:
                raise FormatError(_LACKS)
            if "prior" not in header:
                return cls(level, threads)
            if not isinstance(wanted, str) or len(wanted) != _WEIGHTS_DIGITS:
                raise FormatError(_LACKS)
            return cls(level, threads, prior=_needed(wanted, prior))
        name, weights = header.get("model"), header.get("weights")
        known = set(header) - {"llamacpp"} == {"level", "numerics", "model", "weights"}
        if not known or not isinstance(name, str) or not isinstance(weights, str) or len(weights) != _WEIGHTS_DIGITS:
            raise FormatError(_LACKS)
        coding = cls(level, threads, model, name, weights)
        if "llamacpp" in header:
            from squeeze.lm.llamacpp import Setup

            coding = replace(coding, backend="llamacpp", setup=Setup.from_json(header["llamacpp"]))
        if model is not None:
            _ = coding.language_model  # refuses a wrong one before anything is decoded
        return coding

    @property
    def blocks_at_a_time(self) -> int:
        """With a language model the threads work on one block together, with a state-space model two of them do."""
        threads = 1 if self.level in levels.TOKENWISE else self.threads or 1
        return max(threads // 2, 1) if self.level in levels.BESIDE else threads

    @property
    def threads_of_a_block(self) -> int:
        return self.threads or cores.available()

    @property
    def threads_of_bytes(self) -> int:
        """Threads that work on one bytewise block."""
        return min(self.threads or 1, 2) if self.level in levels.BESIDE else 1

    def start(self, content: Content) -> "Start | None":
        """What the models of a block begin with: a prior knows one kind of content."""
        return self.prior.start if self.prior and self.prior.content == content else None

    def memory(self, size: int) -> int:
        """About how many bytes compressing `size` bytes of text takes at a level with a language model."""
        from squeeze.codecs.tokenwise import lanes

        size = min(size, levels.DEFAULT_BLOCK)
        model = self.language_model
        token_preset = levels.token_preset(self.level or 0, size, model.context, self.lanes, self.window)
        return lanes.memory(model, token_preset, size)

    @property
    def bound(self) -> bool:
        """Whether the file opens only on machines like this one, so that every block is verified."""
        return self.backend == "llamacpp"

    def header(self) -> dict:
        header: dict = {"level": self.level or 0, "numerics": container.NUMERICS_VERSION}
        if self.level in levels.TOKENWISE:
            model = self.language_model
            header |= {"model": model.name, "weights": model.identity[:_WEIGHTS_DIGITS]}
            if self.bound:
                header["llamacpp"] = self._llamacpp.setup.to_json()
        if self.prior:
            header["prior"] = self.prior.identity[:_WEIGHTS_DIGITS]
        return header

    @cached_property
    def language_model(self) -> "LanguageModel":
        from squeeze.lm import models

        if self.bound:
            return self._llamacpp
        if self.weights is None:
            return models.find(self.model).network
        return models.for_identity(self.name or "", self.weights, self.model).network

    @cached_property
    def _llamacpp(self) -> "LlamaCpp":
        from squeeze.lm import llamacpp

        if self.weights is not None and self.setup is not None:
            return llamacpp.for_identity(self.name or "", self.weights, self.model, self.setup)
        level = self.level or 0
        window = levels.token_preset(level, 0, _MAX_WINDOW + SINK, self.lanes, self.window).window
        return llamacpp.find(self.model, self.threads_of_a_block, self.lanes or llamacpp.BATCHES[level], window)


def as_prior(source: "PriorSource") -> "Prior | None":
    """The prior that a user named, by itself or by the path of its file. Raises PriorError."""
    if source is None:
        return None
    from squeeze.codecs.stream.prior import Prior

    return source if isinstance(source, Prior) else Prior.read(source)


def _needed(identity: str, source: "PriorSource") -> "Prior":
    """The prior of a file whose header names one that begins with these digits."""
    if source is None:
        raise PriorError(f"the file needs the prior {identity[:8]}: name it with --prior")
    prior = as_prior(source)
    assert prior
    if not prior.identity.startswith(identity):
        raise PriorError(f"the file needs the prior {identity[:8]}, and this is {prior.identity[:8]}")
    return prior


_LACKS = "the file uses a level or parameter that this version lacks: use a newer squeeze"


def _limits():
    from squeeze.codecs.tokenwise import lanes

    return lanes


def encode_block(
    data: np.ndarray, content: Content, coding: Coding, verify: bool = True, progress: Progress = None
) -> Coded | None:
    """A coded block, or None where storing `data` is no larger."""
    if coding.prior and data.size < _SMALL and not blocks.is_packed(content):
        content = coding.prior.content
    if blocks.is_packed(content) or data.size == 0:
        report(progress, data.size * (2 if verify else 1))
        return None
    coded = None
    if content.kind == "text" and coding.level in levels.TOKENWISE:
        coded = _encode_tokenwise(data, content, coding, progress)
        other = _encode_bytewise(data, content, coding, None)
        if coded is None or (other and len(other.payload) <= len(coded.payload)):
            coded = other
    else:
        coded = _encode_bytewise(data, content, coding, progress)
    if coded is None:
        return None
    if verify or coding.bound:
        _verify(coded, data, coding, progress)
    return coded if len(coded.payload) + (0 if coding.short else _HEADER_COST) <= data.size else None


def _verify(coded: Coded, data: np.ndarray, coding: Coding, progress: Progress) -> None:
    try:
        same = np.array_equal(decode_block(coded, data.size, coding, progress), data)
    except DamagedError:
        same = False
    if not same and coding.bound:
        raise VerifyError("llama.cpp did not compute the same numbers twice: use the backend exact, or other lanes")
    if not same:
        raise VerifyError("the coded data did not decode to the input: this machine's memory or processor is faulty")


def decode_block(coded: Coded, length: int, coding: Coding, progress: Progress = None) -> np.ndarray:
    """The `length` raw bytes of a coded block, as uint8."""
    if coding.level is None:
        raise DamagedError("the header names no level, but a block is coded: the file is damaged")
    payload = io.BytesIO(coded.payload)
    if coding.short and coding.prior:
        content = coding.prior.content
    else:
        content, _ = container.read_content(payload)
    if coded.kind == container.TOKENWISE:
        return _decode_tokenwise(payload, length, coding, progress)
    preset = levels.preset(coding.level, content.kind)
    data = _decode_bytes(payload.read(), length, preset, content, coding, progress)
    if content.kind == "executable":
        blocks.calls_to_relative(data)
    return data


def _encode_bytewise(data: np.ndarray, content: Content, coding: Coding, progress: Progress) -> Coded | None:
    filtered = data
    if content.kind == "executable":
        filtered = data.copy()
        blocks.calls_to_absolute(filtered)
    preset = levels.preset(coding.level or 0, content.kind)
    coded = _encode_bytes(filtered, preset, content, coding, progress)
    if coded is None:
        return None
    return Coded(container.BYTEWISE, (b"" if coding.short else container.content_bytes(content)) + coded)


def _encode_bytes(
    data: np.ndarray, preset: Preset | DeepPreset, content: Content, coding: Coding, progress: Progress
) -> bytes | None:
    """The coded form by the coder of the preset's kind, or None where it would not be shorter."""
    if isinstance(preset, DeepPreset):
        return deep.encode(data, preset, content.record, progress, coding.threads_of_bytes, coding.start(content))
    return bytewise.encode(data, preset, content.record, progress)


def _decode_bytes(
    payload: bytes, length: int, preset: Preset | DeepPreset, content: Content, coding: Coding, progress: Progress
) -> np.ndarray:
    if isinstance(preset, DeepPreset):
        threads, start = coding.threads_of_bytes, coding.start(content)
        return deep.decode(payload, length, preset, content.record, progress, threads, start)
    return bytewise.decode(payload, length, preset, content.record, progress)


def _encode_tokenwise(data: np.ndarray, content: Content, coding: Coding, progress: Progress) -> Coded | None:
    from squeeze.codecs.tokenwise import lanes

    model = coding.language_model
    preset = levels.token_preset(coding.level or 0, data.size, model.context, coding.lanes, coding.window)
    coded = lanes.encode(data.tobytes(), model, preset, coding.threads_of_a_block, progress)
    if coded is None:
        return None
    return Coded(container.TOKENWISE, container.content_bytes(content) + _layout_bytes(coded[0]) + coded[1])


def _decode_tokenwise(payload: io.BytesIO, length: int, coding: Coding, progress: Progress) -> np.ndarray:
    from squeeze.codecs.tokenwise import lanes

    if coding.level not in levels.TOKENWISE:
        raise DamagedError("a block needs a language model, and the header names none: the file is damaged")
    layout = _read_layout(payload, length)
    preset = levels.token_preset(coding.level or 0, length, layout.window, layout.lanes, layout.window)
    return lanes.decode(payload.read(), layout, coding.language_model, preset, coding.threads_of_a_block, progress)


def _layout_bytes(layout: "Layout") -> bytes:
    numbers = (layout.entries, layout.lanes, layout.window // 16, *layout.lengths[:-1])
    return b"".join(map(varint, numbers))


def _read_layout(payload: io.BytesIO, length: int) -> "Layout":
    from squeeze.codecs.tokenwise.lanes import MAX_LANES, MAX_POSITIONS, Layout

    entries, count, window = (read_varint(payload)[0] for _ in range(3))
    if not 1 <= count <= min(MAX_LANES, entries) or entries > length or not 1 <= window * 16 * count <= MAX_POSITIONS:
        raise DamagedError("a block's lanes are impossible: the file is damaged")
    lengths = [read_varint(payload)[0] for _ in range(count - 1)]
    lengths.append(length - sum(lengths))
    if min(lengths) < 1:
        raise DamagedError("a block's lanes are impossible: the file is damaged")
    return Layout(entries, count, window * 16, tuple(lengths))


def report(progress: Progress, count: int) -> None:
    if progress:
        progress(count)
