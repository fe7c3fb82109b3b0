"""Loading for inference servers (vLLM, SGLang): options, places of weights, and the stream of tensors.

Both servers have a `DefaultModelLoader` whose method `_get_weights_iterator` takes a source, with `model_or_path` and
`revision`, and returns names and tensors. `loader_class` derives from it a loader that decodes packed weights.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from squeeze.errors import FormatError, OptionError, escaped, printable
from squeeze.packing.dense import DenseTensors, dense
from squeeze.packing.manifest import CONVERTED, MANIFEST, METHOD
from squeeze.system.hub import local_copy, snapshot
from squeeze.system.machine import available_cores
from squeeze.system.storage import is_url, path_of

__all__ = ["FORMAT", "LoaderOptions", "folder_of", "loader_class", "original_quantization", "restore_config"]

FORMAT = "squeeze"  # the load format
FILES = ("*.safetensors", "*.safetensors.index.json", MANIFEST)  # what is downloaded of a repository
_METHOD = "quant_method"


@dataclass(frozen=True)
class LoaderOptions:
    """The options of `--model-loader-extra-config`.

    Attributes:
        base: the checkpoint that a difference needs.
        store: the folder of a store with the weights.
        model: the model's name in the store.
        threads: threads of a process that decode; 0 is its share of the machine's cores.
    """

    base: str | None = None
    store: str | None = None
    model: str | None = None
    threads: int = 0

    @classmethod
    def of(cls, extra: Any) -> LoaderOptions:
        """Check options. Raises OptionError if one is unknown or invalid."""
        if not isinstance(extra, dict):
            raise OptionError(f"model_loader_extra_config must be an object, got {printable(repr(extra))}")
        known = {field.name: field.type for field in fields(cls)}
        for key, value in extra.items():
            if key not in known:
                raise OptionError(f"{printable(key)} is no option of the loader: it has {', '.join(known)}")
            kind: type = int if key == "threads" else str
            if type(value) is not kind or (isinstance(value, int) and value < 0):
                raise OptionError(f"expected {key} to be {kind.__name__}, got {printable(repr(value))}")
        found = cls(**extra)
        if (found.store is None) != (found.model is None) or (found.store and found.base):
            raise OptionError("expected store together with model, or base alone")
        return found

    def tensors(self, folder: Path, processes: int = 1) -> DenseTensors:
        """Open the weights. processes: processes of this machine that load at once."""
        threads = self.threads or max(available_cores() // max(processes, 1), 1)
        if self.store:
            return dense(self.store, model=self.model, threads=threads)
        return dense(folder, base=self.base, threads=threads)


def folder_of(model: str, revision: str | None, config: Any, subfolder: str | None = None) -> Path:
    """Return the folder of a model, which is downloaded if it is a repository of the hub.

    Args:
        model: a folder, a URL, or OWNER/MODEL.
        revision: branch, tag or commit of the repository.
        config: the server's LoadConfig, for download_dir and ignore_patterns.
        subfolder: a folder in the repository.
    """
    if is_url(model):
        found = local_copy(path_of(model))
    elif Path(model).is_dir():
        found = Path(model)
    else:
        for name in ("VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"):
            if os.environ.get(name, "").lower() in ("1", "true"):
                raise OptionError(f"{name} is set: download the model first, and name its folder")
        prefix = f"{subfolder}/" if subfolder else ""
        wanted = [f"{prefix}{pattern}" for pattern in FILES]
        found = snapshot(model, revision, cache=config.download_dir, allow=wanted, ignore=config.ignore_patterns)
    return found / subfolder if subfolder else found


def loader_class(base: type[Any], skips: Callable[[Any, str], bool], processes: Callable[[], int]) -> type[Any]:
    """Return a model loader that decodes packed weights.

    Args:
        base: the server's DefaultModelLoader.
        skips: whether a loader's process needs a tensor not, such as an expert of another process.
        processes: how many processes of this machine load at once.
    """

    class SqueezeModelLoader(base):  # type: ignore[misc]
        """A loader that decodes packed folders, differences and models of stores."""

        def __init__(self, load_config: Any):
            self.options = LoaderOptions.of(load_config.model_loader_extra_config or {})
            strategy = getattr(load_config, "safetensors_load_strategy", None)
            if strategy not in (None, "lazy"):
                raise OptionError(
                    f"leave out safetensors_load_strategy={printable(strategy)}: packed weights are decoded"
                )
            plain = copy.copy(load_config)
            plain.model_loader_extra_config = {}
            super().__init__(plain)
            self.load_config = load_config

        def download_model(self, model_config: Any) -> None:
            """Download a repository, so that loading needs no network."""
            model = getattr(model_config, "model_path", None) or model_config.model
            if not self.options.store:
                folder_of(model, model_config.revision, self.load_config)

        def _get_weights_iterator(self, source: Any, **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
            if getattr(source, "allow_patterns_overrides", None):
                patterns = ", ".join(source.allow_patterns_overrides)
                raise FormatError(f"this model reads the files {printable(patterns)}: unpack it, and load it as it is")
            subfolder = getattr(source, "subfolder", None)
            folder = folder_of(source.model_or_path, source.revision, self.load_config, subfolder)
            unused = getattr(source, "is_unused_weight", None)

            def wanted(name: str) -> bool:
                return not (skips(self, name) or (unused is not None and unused(name)))

            if not getattr(self, "counter_before_loading_weights", 0.0):
                self.counter_before_loading_weights = time.perf_counter()
            tensors = self.options.tensors(folder, processes())
            total = sum(map(wanted, tensors))
            stream = tqdm(tensors.stream(wanted), FORMAT, total, unit=" tensors", disable=not self._shows_progress())
            if (draft := getattr(self.load_config, "draft_model_idx", None)) is not None:
                return self._filter_mtp_weights(stream, source.prefix, draft)  # type: ignore[no-any-return]
            return ((source.prefix + name, tensor) for name, tensor in stream)

        def _shows_progress(self) -> bool:
            """Return whether this process shows a bar, of which there is one for a group."""
            is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
            return is_first and getattr(self.load_config, "use_tqdm_on_load", True)

    return SqueezeModelLoader


def original_quantization(described: Any) -> dict[str, Any] | None:
    """Return `quantization_config` as it was before packing, None if there was none.

    Raises FormatError for a form that `pack` does not write.
    """
    method = described.get(_METHOD) if isinstance(described, dict) else None
    if method == METHOD:
        return None
    before = described.get("quantization") if isinstance(described, dict) else None
    if isinstance(before, dict) and before.get(_METHOD) in CONVERTED and method == f"{METHOD}+{before[_METHOD]}":
        return before
    raise FormatError(f"expected the quantization_config of a packed folder, got {escaped(repr(described))[:80]}")


def restore_config(config: Any) -> bool:
    """Undo what `pack` changed in a configuration of transformers, or in a dict of it; return whether it was packed."""
    is_dict = isinstance(config, dict)
    described = config.get("quantization_config") if is_dict else getattr(config, "quantization_config", None)
    method = str(described.get(_METHOD)) if isinstance(described, dict) else ""
    if method.partition("+")[0] != METHOD:
        return False
    before = original_quantization(described)
    if is_dict:
        config.pop("quantization_config")
        config.update({"quantization_config": before} if before else {})
    elif before:
        config.quantization_config = before
    else:
        del config.quantization_config
    return True
