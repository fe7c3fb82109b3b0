"""Any GGUF model through llama.cpp (llama-cpp-python): more architectures, files bound to one kind of machine.

llama.cpp adds floating-point numbers in an order that depends on its build, on the processor, on threads and on how
many tokens go through at once, so its numbers are repeated only where all of these are. A file's header
therefore records a `Setup`: both directions run lanes in lockstep, one token of each in every batch, with dummy
tokens where a text has fewer lanes than the batch. The setup ends in a *canary*, a hash of the integer
frequencies after a fixed prompt: a decoder that computes another one refuses before it decodes.

Where a lane's window is full, its latest half is fed again at the first positions, behind the start token. llama.cpp
could also move what it has cached, which is faster, but only for some architectures; feeding again works for
all, recurrent ones and sliding windows of their own included.
"""

import ctypes
import functools
import hashlib
import json
import struct
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from squeeze.errors import DamagedError, FormatError, ModelError
from squeeze.lm import models, vocabulary
from squeeze.lm.config import SINK
from squeeze.lm.gguffile import GgufFile
from squeeze.lm.tokenizer import Tokenizer
from squeeze.numerics import exact
from squeeze.numerics.team import Team
from squeeze.numerics.trie import Trie, build

IDENTITY_TAG = b"squeeze llama.cpp gguf 1\n"
BATCHES = {7: 16, 8: 4, 9: 1}  # lanes of a level: each costs time, also in a text that needs fewer
MAX_LANES = 256  # llama.cpp's own limit
_MAX_POSITIONS = 1 << 20
_BATCH = 512  # tokens that go through at once where a window is fed again
_PROMPT, _PROMPT_STEPS = 8, 4  # the canary's tokens: fed as after a full window, then step by step
_CANARY_DIGITS = 16
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, NotImplementedError, struct.error)
_HELP = "install it with `pip install squeeze[llamacpp]`"


@dataclass(frozen=True)
class Setup:
    """All that llama.cpp's numbers depend on, besides the model, as far as it can be told."""

    build: str  # version of llama-cpp-python, which contains llama.cpp
    system: str  # processor features and devices that the build uses
    threads: int
    lanes: int  # of a batch
    window: int  # positions of a lane
    gpu_layers: int
    canary: str = ""

    @classmethod
    def here(cls, threads: int, lanes: int, window: int) -> "Setup":
        library = _library()
        everything_on_gpu = 999 if library.llama_supports_gpu_offload() else 0
        return cls(library.__version__, _system(library), threads, lanes, window, everything_on_gpu)

    @classmethod
    def from_json(cls, values: Any) -> "Setup":
        """Raises FormatError where a header's values are none that this version writes."""
        kinds = {name: type(value) for name, value in asdict(cls("", "", 0, 0, 0, 0)).items()}
        if not isinstance(values, Mapping) or {name: type(value) for name, value in values.items()} != kinds:
            raise FormatError("the file was written with another kind of llama.cpp set-up: use a newer squeeze")
        setup = cls(**values)
        sane = 1 <= setup.threads <= 1024 and 1 <= setup.lanes <= MAX_LANES and 0 <= setup.gpu_layers <= 999
        if not sane or setup.window < 16 or setup.window % 16 or setup.window * setup.lanes > _MAX_POSITIONS:
            raise DamagedError("the header's llama.cpp set-up is impossible: the file is damaged")
        return setup

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)

    def difference(self, here: "Setup") -> str:
        """Why the numbers of `here` are not those of this setup."""
        parts = []
        if self.build != here.build:
            parts.append(f"llama-cpp-python {self.build} wrote it and {here.build} is installed")
        if self.system != here.system:
            parts.append(f"it was built for '{self.system}' and here for '{here.system}'")
        if self.gpu_layers != here.gpu_layers:
            parts.append("one of the two uses a graphics processor and the other does not")
        if not parts:
            parts.append("build and features are the same, so the processor, its threads or the header differ")
        return "; ".join(parts)


def find(path: Path | None, threads: int, lanes: int, window: int) -> "LlamaCpp":
    """A GGUF file (None: the bundled model) to compress with. `window` is cut to what the model was trained on."""
    engine = _engine(path or _bundled())
    window = min(window, max(engine.context // 16 * 16, 16))
    if lanes > MAX_LANES:
        raise ModelError(f"llama.cpp runs at most {MAX_LANES} lanes: use fewer")
    if lanes * window > _MAX_POSITIONS:
        raise ModelError(f"{lanes} lanes of {window} tokens are too many for llama.cpp: use fewer lanes")
    setup = Setup.here(threads, lanes, window)
    return LlamaCpp(engine, replace(setup, canary=engine.canary(setup)))


def for_identity(name: str, identity: str, path: Path | None, setup: Setup) -> "LlamaCpp":
    """The model and setup that a file was written with.

    Raises ModelError where the model is missing or another, or where it gives other numbers here.
    """
    wanted = f"'{name}' ({identity[:12]})"
    if path is None and models.bundled_path() is None:
        raise ModelError(f"the file needs the language model {wanted}: name its GGUF file with --model PATH")
    engine = _engine(path or _bundled())
    if not engine.identity.startswith(identity):
        if path is None:
            raise ModelError(f"the file needs the language model {wanted}: name its GGUF file with --model PATH")
        raise ModelError(
            f"the file needs the language model {wanted}, and {path} is '{engine.name}' ({engine.identity[:12]})"
        )
    here = Setup.here(setup.threads, setup.lanes, setup.window)
    if here.gpu_layers != setup.gpu_layers or engine.canary(setup) != setup.canary:
        raise ModelError(
            "llama.cpp computes other numbers here than where the file was written, so it cannot be restored here: "
            + setup.difference(here)
        )
    return LlamaCpp(engine, setup)


class LlamaCpp:
    """A model in one setup: a `LanguageModel` of codecs/tokenwise/lanes.py."""

    longest_prefill = 1

    def __init__(self, engine: "Engine", setup: Setup):
        self.engine, self.setup = engine, setup
        self.name, self.identity, self.lockstep = engine.name, engine.identity, setup.lanes
        self.context = setup.window + SINK  # no more than this setup has
        self.start_token, self.leaves = engine.start_token, engine.leaves
        self.size, self.size_of_position = engine.size, engine.size_of_position

    @property
    def trie(self) -> Trie:
        return self.engine.trie

    def encode(self, data: bytes) -> np.ndarray:
        return self.engine.tokenizer.encode(data)

    def session(self, lanes: int, window: int, rows: int, team: Team) -> "Session":
        """Threads are those of the setup; `team` is not used."""
        if lanes > self.setup.lanes or window > self.setup.window:
            raise DamagedError("a block's lanes or window are not those of the header: the file is damaged")
        return Session(self.engine, self.setup)


class Engine:
    """A GGUF file opened by llama.cpp, and its vocabulary."""

    def __init__(self, path: Path):
        self._library = library = _library()
        self._path = path
        try:
            with path.open("rb") as file:
                if file.read(4) != b"GGUF":
                    raise ModelError(f"{path}: not a GGUF file, which the backend llamacpp needs")
                file.seek(0)
                self.identity = _digest(file)
            fields = GgufFile(path).fields
        except OSError as error:
            raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
        except _DAMAGE as error:
            raise ModelError(f"{path}: the model is damaged or incomplete: {error}") from error
        self.name = str(fields.get("general.name") or path.stem)
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 999 if library.llama_supports_gpu_offload() else 0
        self.handle = _needed(library.llama_model_load_from_file(bytes(path), parameters), path)
        weakref.finalize(self, library.llama_model_free, self.handle)
        if library.llama_model_has_encoder(self.handle) or not library.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path}: a model with an encoder predicts no text token by token")
        self._vocabulary = vocab = library.llama_model_get_vocab(self.handle)
        self.vocabulary_size = int(library.llama_vocab_n_tokens(vocab))
        self.context = int(library.llama_model_n_ctx_train(self.handle))
        self.size = int(library.llama_model_size(self.handle))
        layers, width, heads, kv_heads = (
            int(getattr(library, f"llama_model_{what}")(self.handle))
            for what in ("n_layer", "n_embd", "n_head", "n_head_kv")
        )
        self.size_of_position = 2 * 2 * layers * width * kv_heads // max(heads, 1)  # keys and values, two bytes each
        starts = (int(library.llama_vocab_bos(vocab)), int(library.llama_vocab_eos(vocab)), 0)
        self.start_token = next(token for token in starts if token >= 0)
        try:
            description = vocabulary.from_gguf(self.name, fields)
            self.tokens, self.leaves = vocabulary.spell(json.loads(description), self.vocabulary_size)
            self.tokenizer = Tokenizer(self.tokens, self.leaves, description)
        except (ModelError, *_DAMAGE):  # a kind that only llama.cpp knows
            self.tokens = tuple(map(self._piece, range(self.vocabulary_size)))
            self.leaves = vocabulary.leaves(self.tokens)
            self.tokenizer = Tokenizer(self.tokens, self.leaves, self._propose)
        if not len(self.leaves):
            raise ModelError(f"{path}: the model has no tokens that spell text")
        self._canaries: dict[Setup, str] = {}

    @cached_property
    def trie(self) -> Trie:
        return build([self.tokens[i] for i in self.leaves])

    def canary(self, setup: Setup) -> str:
        """A hash of the setup and of the frequencies of all lanes after a fixed prompt."""
        setup = replace(setup, canary="")
        if setup not in self._canaries:
            session = Session(self, setup)
            length = _PROMPT + _PROMPT_STEPS
            prompt = np.arange(setup.lanes * length).reshape(setup.lanes, length) * 7919 % self.vocabulary_size
            digest = hashlib.sha256(repr((setup.threads, setup.lanes, setup.window, setup.gpu_layers)).encode())
            session.prefill(prompt[:, :_PROMPT])
            unbiased = np.zeros(self.leaves.size, np.float32)
            for step in range(_PROMPT, length):
                session.forward(prompt[:, step : step + 1])
                digest.update(session.count(np.arange(setup.lanes), unbiased).astype("<u8").data)
            self._canaries[setup] = digest.hexdigest()[:_CANARY_DIGITS]
        return self._canaries[setup]

    def _piece(self, token: int) -> bytes:
        """What a token spells by llama.cpp; nothing for those that are not text."""
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


class Session:
    """Lanes in lockstep: every batch has one token of each lane of the setup."""

    def __init__(self, engine: Engine, setup: Setup):
        self._library, self._engine, self._setup = _library(), engine, setup
        parameters = self._library.llama_context_default_params()
        parameters.n_ctx = setup.lanes * setup.window
        parameters.n_batch = parameters.n_ubatch = max(_BATCH, setup.lanes)
        parameters.n_seq_max = setup.lanes
        parameters.n_threads = parameters.n_threads_batch = setup.threads
        parameters.kv_unified = False
        parameters.flash_attn_type = self._library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.no_perf = True
        self._context = _needed(self._library.llama_init_from_model(engine.handle, parameters), engine.name)
        weakref.finalize(self, self._library.llama_free, self._context)
        self._batch = self._library.llama_batch_init(max(_BATCH, setup.lanes), 0, 1)
        weakref.finalize(self, self._library.llama_batch_free, self._batch)
        self._history = np.zeros((setup.lanes, setup.window), np.int32)
        self._position = 0
        leaves = engine.leaves.size
        self._picked = np.zeros(leaves, np.float32)
        self._counts = np.zeros((setup.lanes, leaves + 1), np.uint64)

    def forward(self, tokens: np.ndarray) -> None:
        """Feed int64 [lanes, 1]: a token of each of the first lanes; the other lanes get a dummy."""
        fed = np.full((self._setup.lanes, 1), self._engine.start_token, np.int32)
        fed[: tokens.shape[0]] = tokens
        if self._position == self._setup.window:
            self._halve()
        self._decode(fed, True)

    def prefill(self, tokens: np.ndarray) -> None:
        """Feed int [all lanes, n], of which no frequencies are wanted."""
        step = max(1, _BATCH // self._setup.lanes)
        for first in range(0, tokens.shape[1], step):
            self._decode(tokens[:, first : first + step], False)

    def count(self, rows: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Cumulative frequencies uint64 [R, leaves + 1] of the given lanes after the last `forward`.

        bias: float32 [leaves], added to the logits.
        """
        counts = self._counts[: rows.size]
        for i, lane in enumerate(rows.tolist()):
            pointer = self._library.llama_get_logits_ith(self._context, lane)
            if not pointer:
                raise ModelError(f"{self._engine.name}: llama.cpp gives no logits for this model")
            logits = np.ctypeslib.as_array(pointer, (1, self._engine.vocabulary_size))
            exact.cumulate_rows(logits, self._engine.leaves, bias, self._picked, counts[i : i + 1])
        return counts

    def _halve(self) -> None:
        """Forget all but the latest half of every lane, and feed that again."""
        kept = self._history[:, -(self._setup.window // 2) :].copy()
        kept[:, 0] = self._engine.start_token
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)
        self._position = 0
        self.prefill(kept)

    def _decode(self, tokens: np.ndarray, wanted: bool) -> None:
        lanes, n = tokens.shape
        size, batch, first = lanes * n, self._batch, self._position
        batch.n_tokens = size
        as_array = np.ctypeslib.as_array
        as_array(batch.token, (size,))[:] = tokens.ravel()
        as_array(batch.pos, (size,))[:] = np.tile(np.arange(first, first + n), lanes)
        as_array(batch.n_seq_id, (size,))[:] = 1
        as_array(batch.logits, (size,))[:] = wanted
        for i in range(size):
            batch.seq_id[i][0] = i // n
        status = self._library.llama_decode(self._context, batch)
        if status:
            raise ModelError(f"{self._engine.name}: llama.cpp cannot run the model: error {status}{_reason()}")
        self._history[:, first : first + n] = tokens
        self._position += n


_said: list[str] = []  # the latest errors of llama.cpp, which would go to standard error


@functools.cache
def _library() -> Any:
    """The module llama_cpp, silenced."""
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ModelError(f"the backend llamacpp needs llama-cpp-python ({error}): {_HELP}") from error

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
    def listen(level: int, text: bytes, data: object) -> None:
        if level == 4:
            _said[:] = [text.decode("utf-8", "replace").strip()]

    llama_cpp.llama_log_set(listen, ctypes.c_void_p(0))
    _kept.append(listen)
    llama_cpp.llama_backend_init()
    return llama_cpp


_kept: list[object] = []  # what C code points to


def _reason() -> str:
    return f": {_said[-1]}" if _said else ""


def _needed(pointer: Any, what: object) -> Any:
    if not pointer:
        raise ModelError(f"{what}: llama.cpp cannot load the model{_reason()}")
    return pointer


def _system(library: Any) -> str:
    """Features of the build, those that are off left out: 'CPU: AVX AVX2 F16C'."""
    text = library.llama_print_system_info().decode("utf-8", "replace")
    parts = (part.strip().removesuffix("= 1").strip() for part in text.split("|") if not part.strip().endswith("= 0"))
    return " ".join(part.replace(" : ", ": ") for part in parts if part)


def _digest(file: Any) -> str:
    digest = hashlib.sha256(IDENTITY_TAG)
    while piece := file.read(1 << 22):
        digest.update(piece)
    return digest.hexdigest()


def _bundled() -> Path:
    path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    return path


def _engine(path: Path) -> Engine:
    _library()
    if not path.is_file():
        raise ModelError(f"{path}: no such model; the backend llamacpp takes a .gguf file")
    status = path.stat()
    return _opened(path.absolute(), (status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=1)
def _opened(path: Path, stamp: tuple[int, int]) -> Engine:
    return Engine(path)
