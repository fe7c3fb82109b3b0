"""The language model of a stream: which one it is, where it is found, and how it codes a block of text."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from squeeze.codecs.bytewise.presets import TokenPreset
from squeeze.codecs.stream.container import MAX_BLOCK
from squeeze.codecs.stream.levels import DEFAULT_BLOCK, TextModel
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.codecs.tokenwise import drafts, lanes, mixing
from squeeze.codecs.tokenwise.layout import MAX_LANES, MAX_POSITIONS, TAIL, LaneLayout
from squeeze.errors import DamagedError, DeviceError, LevelError, printable
from squeeze.lm import devices, llamacpp, models
from squeeze.lm.arrays import SINK
from squeeze.lm.devices import Pool
from squeeze.lm.language_model import LanguageModel
from squeeze.lm.llamacpp import LlamaCpp
from squeeze.lm.llamacpp_engine import Setup
from squeeze.numerics.bitmodels.meter import Recorder
from squeeze.system import machine
from squeeze.system.limits import Limits

Progress = Callable[[int], None] | None
_MAX_WINDOW = 1 << 17
_SPARE_POSITIONS = 48  # positions of a lane outside its window: the first ones, and those that left the window


@dataclass(frozen=True)
class NamedModel:
    """The language model that a header names."""

    name: str
    weights: str  # first digits of its identity
    setup: Setup | None  # set-up of llama.cpp, if that ran it

    @classmethod
    def from_header(cls, fields: dict[str, Any]) -> "NamedModel":
        """Read the model's name, identity and llama.cpp set-up from a header's fields.

        Raises:
            FormatError: if the set-up is of another version.
            DamagedError: if the set-up is impossible.
        """
        setup = Setup.from_json(fields["llamacpp"]) if "llamacpp" in fields else None
        return cls(printable(fields.get("model", "")), fields["weights"], setup)


@dataclass(frozen=True)
class Language:
    """A language model that a user chose or a header names. It is loaded at its first use."""

    text: TextModel
    threads: int | None = None
    options: LanguageOptions = field(default_factory=LanguageOptions)
    named: NamedModel | None = None
    limits: Limits | None = None  # for untrusted files

    def __post_init__(self) -> None:
        """Check the device.

        Raises:
            DeviceError: if the model cannot run on it.
        """
        chosen = self.options.device
        if chosen != devices.AUTO and devices.torch_devices(chosen) and self.bound:
            raise DeviceError("llama.cpp runs on the processor here: leave out the device, or the backend")

    @property
    def bound(self) -> bool:
        """True if llama.cpp runs the model, whose numbers are those of one kind of machine."""
        return bool(self.named.setup) if self.named else self.options.backend == "llamacpp"

    @cached_property
    def at_once(self) -> int:
        """Number of texts that are coded in parallel: one for each GPU."""
        return 1 if self.bound else max(1, len(devices.torch_devices(self.options.device)))

    @property
    def model(self) -> LanguageModel:
        """The loaded model.

        Raises:
            ModelError: if it is missing or another one.
            DeviceError: if it cannot run on the device.
        """
        return self._models[0]

    @cached_property
    def _pool(self) -> Pool:
        return Pool(self._models)

    @cached_property
    def _models(self) -> list[LanguageModel]:
        """The loaded model on every device that runs it."""
        if self.bound:
            return [self._llamacpp]
        named, chosen = self.named, self.options
        if named is None:
            loaded = models.find(chosen.model, chosen.adapter)
        else:
            loaded = models.for_identity(named.name, named.weights, chosen.model, chosen.adapter)
        return devices.load_on_devices(loaded, chosen.device)

    @cached_property
    def _llamacpp(self) -> LlamaCpp:
        if self.named is not None and self.named.setup is not None:
            return llamacpp.for_identity(
                self.named.name, self.named.weights, self.options.path, self.named.setup, self.limits
            )
        chosen, threads = self.options, self.threads or machine.available_cores()
        window = self.text.preset(0, _MAX_WINDOW + SINK, chosen.lanes, chosen.window).window
        return llamacpp.find(chosen.path, threads, chosen.lanes or self.text.batch, window)

    def to_header(self, digits: int) -> dict[str, Any]:
        """Return the header fields that name the model, with the first `digits` digits of its identity."""
        header: dict[str, Any] = {"model": self.model.name, "weights": self.model.identity[:digits]}
        if self.bound:
            header["llamacpp"] = self._llamacpp.setup.to_json()
        return header

    def preset(self, size: int) -> TokenPreset:
        """Return the parameters for compressing a text of `size` bytes."""
        options = self.options
        return self.text.preset(size, self.model.context, options.lanes, options.window)

    def memory(self, size: int) -> int:
        """Estimate the bytes of memory for compressing texts of `size` bytes, as many as are coded in parallel."""
        size = min(size, DEFAULT_BLOCK)
        return len(self._models) * lanes.memory(self.model, self.preset(size), size)

    def encode(self, data: np.ndarray, threads: int, progress: Progress) -> bytes | None:
        """Return the lane layout and coded form of a text, or None if they are no shorter.

        Args:
            data: uint8 [n], the text.
            threads: number of threads.
            progress: is called with the number of raw bytes done since its last call.
        """
        preset = self.preset(data.size)
        with self._pool.borrowed() as model:
            coded = lanes.encode(data.tobytes(), model, preset, threads, progress)
        return None if coded is None else coded[0].to_bytes() + coded[1]

    def decode(
        self,
        payload: io.BytesIO,
        length: int,
        threads: int,
        progress: Progress,
        guessed: np.ndarray | None = None,
        recorder: Recorder | None = None,
    ) -> np.ndarray:
        """Decode a text to uint8 [length].

        Args:
            payload: lane layout and coded form.
            length: raw bytes.
            threads: number of threads.
            progress: is called with the number of raw bytes done since its last call.
            guessed: uint8 [length], the expected bytes, which make decoding faster.
            recorder: measures the cost of every token, if given.

        Raises:
            DamagedError: if the payload is invalid.
            LimitError: if it takes too much memory.
        """
        layout = LaneLayout.read(payload, length)
        if layout.repeats and self.bound:
            raise DamagedError("a block coded with llama.cpp leaves tokens out of the model: the file is damaged")
        preset = self.text.preset(length, layout.window, layout.lanes, layout.window)
        needed, fits = memory_to_restore(self.model, layout, preset), None
        if self.limits:
            subject = f"a text in {layout.lanes} lanes that look back {layout.used_window} tokens"
            self.limits.need_memory(needed, subject)
            fits = self.limits.allows_memory
        guesses = None if guessed is None else guessed.tobytes()
        with self._pool.borrowed(needed, fits) as model:
            return lanes.decode(payload.read(), layout, model, preset, threads, progress, guesses, recorder)


def memory_to_restore(model: LanguageModel, layout: LaneLayout, preset: TokenPreset) -> int:
    """Estimate the bytes of memory for decoding a text: model, key-value cache, frequencies and mixers.

    Args:
        model: the language model.
        layout: lanes of the text.
        preset: contexts, lanes and window.
    """
    size, leaves = sum(layout.lengths), model.leaves.size
    rows = 2 * max(layout.lanes, drafts.ROWS)
    tails = layout.lanes * TAIL if layout.repeats else 0
    cache = (layout.lanes * (layout.used_window + _SPARE_POSITIONS) + rows + 2 * tails) * model.size_of_position
    frequencies = (rows + 16) * leaves * 12
    mixers = mixing.memory(model, preset, size)
    return model.size + cache + frequencies + mixers + size + 4 * layout.entries


def resolve_language(text: TextModel, threads: int | None, options: LanguageOptions) -> Language:
    """Return the language model that a user's options choose.

    Args:
        text: the level's parameters.
        threads: number of threads.
        options: the user's.

    Raises:
        LevelError: if lanes or window are out of range.
        ModelError: if the model is missing.
        DeviceError: if the device is missing.
    """
    if options.lanes is not None and not 1 <= options.lanes <= MAX_LANES:
        raise LevelError(f"lanes must be from 1 to {MAX_LANES}, got {options.lanes}")
    if options.window is not None and not 16 <= options.window <= _MAX_WINDOW:
        raise LevelError(f"window must be from 16 to {_MAX_WINDOW} tokens, got {options.window}")
    language = Language(text, threads, options)
    most = language.preset(MAX_BLOCK)
    if most.lanes * most.window > MAX_POSITIONS:
        raise LevelError(
            f"{most.lanes} lanes that look back {most.window} tokens need too much memory: "
            "use fewer lanes or a shorter window"
        )
    return language
