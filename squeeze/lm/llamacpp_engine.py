"""A GGUF file opened by llama.cpp, and lanes of it in one set-up."""

import ctypes
import hashlib
import json
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from squeeze.errors import DamagedError, FormatError, ModelError
from squeeze.lm import vocabulary
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.llamacpp_library import ON_GPU, library, model_parameters, not_null, reason, system
from squeeze.lm.sources import READ_ERRORS, damage_as_model_error
from squeeze.lm.tokenizer import Tokenizer
from squeeze.numerics import exact, frequencies
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.trie import Trie, build

IDENTITY_TAG = b"squeeze llama.cpp gguf 1\n"
MAX_LANES = 256  # llama.cpp's own limit
MAX_POSITIONS = 1 << 20
_BATCH = 512  # tokens at once if a window is fed again
_PROMPT, _PROMPT_STEPS = 8, 4  # tokens of the fingerprint: fed as after a full window, then step by step
_FINGERPRINT = "canary"  # its name in a header
_FINGERPRINT_DIGITS = 16


@dataclass(frozen=True)
class Setup:
    """All that llama.cpp's results depend on besides the model, as far as it is known."""

    build: str  # version of llama-cpp-python, which contains llama.cpp
    system: str  # processor features and devices that the build uses
    threads: int
    lanes: int  # lanes of a batch
    window: int  # positions of a lane
    gpu_layers: int
    fingerprint: str = ""

    @classmethod
    def here(cls, threads: int, lanes: int, window: int) -> "Setup":
        """Return the set-up of this machine.

        Args:
            threads: number of threads.
            lanes: lanes of a batch.
            window: positions of a lane.
        """
        llama = library()
        layers = model_parameters(llama).n_gpu_layers
        return cls(llama.__version__, system(llama), threads, lanes, window, layers)

    @classmethod
    def from_json(cls, values: Any) -> "Setup":
        """Read a header's values.

        Raises:
            FormatError: if they are of another version.
            DamagedError: if they are impossible.
        """
        kinds = {name: type(value) for name, value in cls("", "", 0, 0, 0, 0).to_json().items()}
        if not isinstance(values, Mapping) or {name: type(value) for name, value in values.items()} != kinds:
            raise FormatError("the file was written with another kind of llama.cpp set-up: use a newer squeeze")
        settings = dict(values)
        setup = cls(fingerprint=settings.pop(_FINGERPRINT), **settings)
        sane = 1 <= setup.threads <= 1024 and 1 <= setup.lanes <= MAX_LANES and 0 <= setup.gpu_layers <= ON_GPU
        if not sane or setup.window < 16 or setup.window % 16 or setup.window * setup.lanes > MAX_POSITIONS:
            raise DamagedError("the header's llama.cpp set-up is impossible: the file is damaged")
        return setup

    def to_json(self) -> dict[str, int | str]:
        values = asdict(self)
        values[_FINGERPRINT] = values.pop("fingerprint")
        return values

    def difference(self, here: "Setup") -> str:
        """Describe why the results of `here` differ from those of this set-up."""
        reasons = []
        if self.build != here.build:
            reasons.append(f"llama-cpp-python {self.build} wrote it and {here.build} is installed")
        if self.system != here.system:
            reasons.append(f"it was built for '{self.system}' and here for '{here.system}'")
        if self.gpu_layers != here.gpu_layers:
            reasons.append("one of the two uses a graphics processor and the other does not")
        if not reasons:
            reasons.append("build and features are the same, so the processor, its threads or the header differ")
        return "; ".join(reasons)


class Engine:
    """A GGUF file opened by llama.cpp, and its vocabulary."""

    def __init__(self, path: Path):
        self._library = llama = library()
        self._path = path
        self.identity, fields = _identity_and_fields(path)
        self.name = str(fields.get("general.name") or path.stem)
        self.handle = not_null(llama.llama_model_load_from_file(bytes(path), model_parameters(llama)), path)
        weakref.finalize(self, llama.llama_model_free, self.handle)
        if llama.llama_model_has_encoder(self.handle) or not llama.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path}: models with an encoder are not supported")
        self._vocabulary = vocab = llama.llama_model_get_vocab(self.handle)
        self.vocabulary_size = int(llama.llama_vocab_n_tokens(vocab))
        self.context = int(llama.llama_model_n_ctx_train(self.handle))
        self.size = int(llama.llama_model_size(self.handle))
        layers, width, heads, kv_heads = (
            int(getattr(llama, f"llama_model_{what}")(self.handle))
            for what in ("n_layer", "n_embd", "n_head", "n_head_kv")
        )
        self.size_of_position = 2 * 2 * layers * width * kv_heads // max(heads, 1)  # keys and values, two bytes each
        starts = (int(llama.llama_vocab_bos(vocab)), int(llama.llama_vocab_eos(vocab)), 0)
        self.start_token = next(token for token in starts if token >= 0)
        self._read_vocabulary(fields)
        self._fingerprints: dict[Setup, str] = {}

    def _read_vocabulary(self, fields: Mapping[str, Any]) -> None:
        try:
            description = vocabulary.from_gguf(self.name, fields)
            self.tokens, self.leaves = vocabulary.spell(json.loads(description), self.vocabulary_size)
            self.tokenizer = Tokenizer(self.tokens, self.leaves, description)
        except (ModelError, *READ_ERRORS):  # a tokenizer that only llama.cpp knows
            self.tokens = tuple(map(self._piece, range(self.vocabulary_size)))
            self.leaves = vocabulary.leaves(self.tokens)
            self.tokenizer = Tokenizer(self.tokens, self.leaves, self._propose)
        if not len(self.leaves):
            raise ModelError(f"{self._path}: the model has no tokens that spell text")

    @cached_property
    def trie(self) -> Trie:
        return build([self.tokens[i] for i in self.leaves])

    def fingerprint(self, setup: Setup) -> str:
        """Return a hash of the set-up and of the frequencies of all lanes after a fixed prompt."""
        setup = replace(setup, fingerprint="")
        if setup not in self._fingerprints:
            session = LlamaCppLanes(self, setup)
            length = _PROMPT + _PROMPT_STEPS
            prompt = np.arange(setup.lanes * length).reshape(setup.lanes, length) * 7919 % self.vocabulary_size
            digest = hashlib.sha256(repr((setup.threads, setup.lanes, setup.window, setup.gpu_layers)).encode())
            session.prefill(prompt[:, :_PROMPT])
            unbiased, lanes = np.zeros(self.leaves.size, np.float32), np.arange(setup.lanes)
            cdf = frequencies.allocate(setup.lanes, self.leaves.size)
            for step in range(_PROMPT, length):
                session.forward(prompt[:, step : step + 1])
                session.cdf(lanes, unbiased, cdf, lanes)
                digest.update(frequencies.cumulative(cdf).astype("<u8").data)
            self._fingerprints[setup] = digest.hexdigest()[:_FINGERPRINT_DIGITS]
        return self._fingerprints[setup]

    def _piece(self, token: int) -> bytes:
        """Return the bytes that a token spells by llama.cpp; none for tokens that are not text."""
        buffer = ctypes.create_string_buffer(256)
        size = self._library.llama_token_to_piece(self._vocabulary, token, buffer, 256, 0, False)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = self._library.llama_token_to_piece(self._vocabulary, token, buffer, -size, 0, False)
        return buffer.raw[: max(size, 0)]

    def _propose(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (ctypes.c_int32 * (len(data) + 8))()
        count = self._library.llama_tokenize(self._vocabulary, data, len(data), tokens, len(tokens), False, False)
        return list(tokens[: max(count, 0)])


class LlamaCppLanes:
    """Lanes in lockstep: every batch has one token of each lane of the set-up."""

    def __init__(self, engine: Engine, setup: Setup):
        self._library, self._engine, self._setup = library(), engine, setup
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = setup.lanes * setup.window
        parameters.n_batch = parameters.n_ubatch = max(_BATCH, setup.lanes)
        parameters.n_seq_max = setup.lanes
        parameters.n_threads = parameters.n_threads_batch = setup.threads
        parameters.kv_unified = False
        parameters.flash_attn_type = self._library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.no_perf = True
        self._context = not_null(self._library.llama_init_from_model(engine.handle, parameters), engine.name)
        weakref.finalize(self, self._library.llama_free, self._context)
        self._batch = self._library.llama_batch_init(max(_BATCH, setup.lanes), 0, 1)
        weakref.finalize(self, self._library.llama_batch_free, self._batch)
        self._history = np.zeros((setup.lanes, setup.window), np.int32)
        self._position = 0
        leaves = engine.leaves.size
        self._picked = np.zeros(leaves, np.float32)

    def forward(self, tokens: np.ndarray) -> None:
        """Feed int64 [lanes, 1], a token of each of the first lanes; other lanes get a dummy."""
        fed = np.full((self._setup.lanes, 1), self._engine.start_token, np.int32)
        fed[: tokens.shape[0]] = tokens
        if self._position == self._setup.window:
            self._halve()
        self._decode(fed, True)

    def prefill(self, tokens: np.ndarray) -> None:
        """Feed int [all lanes, n] without computing frequencies."""
        step = max(1, _BATCH // self._setup.lanes)
        for first in range(0, tokens.shape[1], step):
            self._decode(tokens[:, first : first + step], False)

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: Cdf, places: np.ndarray) -> None:
        """Write frequencies of the leaves of some lanes after the last `forward`.

        Args:
            rows: int64 [R], lanes.
            bias: float32 [leaves], added to the logits.
            out: the output.
            places: int64 [R], rows of `out`.
        """
        for place, lane in zip(places.tolist(), rows.tolist(), strict=True):
            pointer = self._library.llama_get_logits_ith(self._context, lane)
            if not pointer:
                raise ModelError(f"{self._engine.name}: llama.cpp gives no logits for this model")
            logits = np.ctypeslib.as_array(pointer, (self._engine.vocabulary_size,))
            exact.cumulate_row(logits, self._engine.leaves, bias, self._picked, out, place)

    def _halve(self) -> None:
        """Forget all but the last half of every lane, and feed that again."""
        recent = self._history[:, -(self._setup.window // 2) :].copy()
        recent[:, 0] = self._engine.start_token
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        self._position = 0
        self.prefill(recent)

    def _decode(self, tokens: np.ndarray, with_logits: bool) -> None:
        lanes, n = tokens.shape
        size, batch, first = lanes * n, self._batch, self._position
        batch.n_tokens = size
        as_array = np.ctypeslib.as_array
        as_array(batch.token, (size,))[:] = tokens.ravel()
        as_array(batch.pos, (size,))[:] = np.tile(np.arange(first, first + n), lanes)
        as_array(batch.n_seq_id, (size,))[:] = 1
        as_array(batch.logits, (size,))[:] = with_logits
        for i in range(size):
            batch.seq_id[i][0] = i // n
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise ModelError(f"{self._engine.name}: llama.cpp cannot run the model: error {status}{reason()}")
        self._history[:, first : first + n] = tokens
        self._position += n


def _identity_and_fields(path: Path) -> tuple[str, Mapping[str, Any]]:
    """Return the identity of a GGUF file, and its metadata.

    Raises:
        ModelError: if the file is missing or damaged.
    """
    with damage_as_model_error(path):
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelError(f"{path}: not a GGUF file, which the backend llamacpp needs")
            file.seek(0)
            identity = _digest(file)
        return identity, GgufFile(path).fields


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256(IDENTITY_TAG)
    while piece := file.read(1 << 22):
        digest.update(piece)
    return digest.hexdigest()
