"""Any GGUF model through llama.cpp (llama-cpp-python): more architectures, but files bound to one kind of machine.

llama.cpp adds floats in an order that depends on its build, the processor, threads, and the number of tokens at once.
So its results are repeatable only if all of these are. A file's header records a `Setup`. Both directions run lanes in
lockstep, one token of each in every batch, with dummy tokens if a text has fewer lanes than the batch. The set-up ends
in a *fingerprint*, a hash of the integer frequencies after a fixed prompt. A decoder with another fingerprint refuses
to decode.

If a lane's window is full, its last half is fed again at the first positions, after the start token. Llama.cpp could
also shift its cache, which is faster, but works only for some architectures. Feeding again works for all, including
recurrent ones and sliding windows.
"""

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np

from squeeze.errors import DamagedError, ModelError
from squeeze.lm import models
from squeeze.lm.arrays import SINK
from squeeze.lm.llamacpp_engine import MAX_LANES, MAX_POSITIONS, Engine, LlamaCppLanes, Setup
from squeeze.lm.llamacpp_library import library
from squeeze.numerics.team import Team
from squeeze.numerics.trie import Trie
from squeeze.system.limits import Limits


def find(path: Path | None, threads: int, lanes: int, window: int) -> "LlamaCpp":
    """Return a model for compression.

    Args:
        path: a GGUF file, or None for the bundled model.
        threads: number of threads.
        lanes: lanes of a batch.
        window: positions of a lane; at most what the model was trained on.

    Raises:
        ModelError: if there is no such model, or it has too many lanes or positions.
    """
    engine = _engine(path or _bundled())
    window = min(window, max(engine.context // 16 * 16, 16))
    if lanes > MAX_LANES:
        raise ModelError(f"llama.cpp runs at most {MAX_LANES} lanes: use fewer")
    if lanes * window > MAX_POSITIONS:
        raise ModelError(f"{lanes} lanes of {window} tokens are too many for llama.cpp: use fewer lanes")
    setup = Setup.here(threads, lanes, window)
    return LlamaCpp(engine, replace(setup, fingerprint=engine.fingerprint(setup)))


def for_identity(name: str, identity: str, path: Path | None, setup: Setup, limits: Limits | None = None) -> "LlamaCpp":
    """Return the model and set-up that a file was written with.

    Args:
        name: of the model, for errors.
        identity: first digits of its identity.
        path: a GGUF file, or None for the bundled model.
        setup: that of the header.
        limits: of memory.

    Raises:
        ModelError: if the model is missing or another one, or gives other results on this machine.
        LimitError: if its lanes take too much memory.
    """
    needed_model = f"'{name}' ({identity[:12]})"
    if path is None and models.bundled_path() is None:
        raise ModelError(f"the file needs the language model {needed_model}: name its GGUF file with `model`")
    engine = _engine(path or _bundled())
    if not engine.identity.startswith(identity):
        if path is None:
            raise ModelError(f"the file needs the language model {needed_model}: name its GGUF file with `model`")
        raise ModelError(
            f"the file needs the language model {needed_model}, and {path} is '{engine.name}' ({engine.identity[:12]})"
        )
    if limits:
        needed = engine.size + setup.lanes * (setup.window + SINK) * engine.size_of_position
        limits.need_memory(needed, f"llama.cpp with {setup.lanes} lanes of {setup.window} tokens")
    here = Setup.here(setup.threads, setup.lanes, setup.window)
    if here.gpu_layers != setup.gpu_layers or engine.fingerprint(setup) != setup.fingerprint:
        raise ModelError(
            "llama.cpp computes other numbers here than where the file was written, so it cannot be restored here: "
            + setup.difference(here)
        )
    return LlamaCpp(engine, setup)


class LlamaCpp:
    """A model in one set-up: a LanguageModel."""

    longest_prefill = 1

    def __init__(self, engine: Engine, setup: Setup):
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

    def session(self, lanes: int, window: int, rows: int, team: Team) -> LlamaCppLanes:
        """Return new lanes. Threads are those of the set-up; `team` is not used."""
        if lanes > self.setup.lanes or window > self.setup.window:
            raise DamagedError("a block's lanes or window are not those of the header: the file is damaged")
        return LlamaCppLanes(self.engine, self.setup)


def _bundled() -> Path:
    path = models.bundled_path()
    if path is None:
        raise ModelError(f"the language model {models.BUNDLED} is not installed: {models.HELP}")
    return path


def _engine(path: Path) -> Engine:
    library()
    if not path.is_file():
        raise ModelError(f"{path}: no such model; the backend llamacpp takes a .gguf file")
    status = path.stat()
    return _opened(path.absolute(), (status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=1)
def _opened(path: Path, stamp: tuple[int, int]) -> Engine:
    return Engine(path)
