"""Restoring of packed files that transformers would misread: pickled torch files, and tensors in other tools' formats.

They are restored to scratch files while a model is loaded, and transformers or its own quantizer reads those. packed.py
loads all other packed folders.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import torch
from transformers import modeling_utils
from transformers.quantizers.base import HfQuantizer

from squeeze.checkpoint import safetensors as tensorfile, torch_file, weight_files
from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.errors import FormatError, LimitError, SqueezeError, escaped
from squeeze.integrations.bundled import has_bundles, write_members
from squeeze.packing import container
from squeeze.packing.sources import SUFFIX
from squeeze.packing.unpack import unpack
from squeeze.packing.weights import torch_shape

__all__ = ["register", "restored", "scratch_folder", "within_folder"]

_PREFIX = "squeeze-"  # of scratch folders


@contextmanager
def restored(folder: Path, base: Path | str | None = None) -> Iterator[Path]:
    """Restore a packed folder to a scratch folder. Errors name the packed one.

    Args:
        folder: The packed folder.
        base: Base of a difference; by default it is searched next to the folder.
    """
    with scratch_folder() as scratch:
        plain = scratch / "model"
        unpack(folder, plain, base=base, threads=torch.get_num_threads())
        try:
            yield plain
        except SqueezeError as error:
            raise type(error)(str(error).replace(str(plain), str(folder))) from None


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a scratch folder that is deleted after use; mapped files stay readable, and on Windows stay on disk."""
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        yield Path(name)


def register() -> None:
    """Patch transformers to read packed torch files, and its quantizers to read packed folders of their formats.

    Indexes may then name files of their folder alone. Everything else is passed on unchanged.
    """
    shards = modeling_utils.get_checkpoint_shard_files  # type: ignore[attr-defined]
    modeling_utils.get_checkpoint_shard_files = within_folder(shards)  # type: ignore[attr-defined]
    modeling_utils.load_state_dict = _restoring(modeling_utils.load_state_dict)
    HfQuantizer.preprocess_model = _given_restored(HfQuantizer.preprocess_model)  # type: ignore[method-assign]
    HfQuantizer.postprocess_model = _then_freed(HfQuantizer.postprocess_model)  # type: ignore[method-assign]


def within_folder(original: Any) -> Any:
    """Wrap a function that finds the shards of an index, so that it refuses names that lead out of the folder."""

    @wraps(original)
    def get_checkpoint_shard_files(name: Any, index_filename: str | PathLike[str], *args: Any, **options: Any) -> Any:
        index = Path(fspath(index_filename))
        for shard in set(weight_files.read_index(index).values()) if index.is_file() else ():
            weight_files.place_of_shard(index.parent, shard)
        return original(name, index_filename, *args, **options)

    return get_checkpoint_shard_files


def _restoring(original: Any) -> Any:
    """Wrap a function that reads all tensors of a file, so that it also reads packed files."""

    @wraps(original)
    def load_state_dict(file: str | PathLike[str], map_location: Any = "cpu", *args: Any, **options: Any) -> Any:
        path = Path(fspath(file))
        if path.suffix == SUFFIX and str(map_location) == "meta" and _is_packed(path):
            return _described(path)
        if path.suffix not in torch_file.SUFFIXES or not _is_packed(path):
            return original(file, map_location, *args, **options)
        with scratch_folder() as scratch:
            return original(str(_unpacked(path, scratch)), map_location, *args, **options)

    return load_state_dict


def _given_restored(original: Any) -> Any:
    """Wrap a quantizer's step before loading, so that it and all later steps get restored files."""

    @wraps(original)
    def preprocess_model(self: Any, model: Any, dtype: Any = None, **options: Any) -> None:
        files = options.get("checkpoint_files") or []
        packed = [path for path in files if path.endswith(SUFFIX) and _is_packed(Path(path))]
        if packed and getattr(self, "takes_payloads", False):
            opened = [container.read(Path(path)) for path in packed]
            if any(map(has_bundles, opened)):
                target = _scratch(self) / f"members{SUFFIX}"
                finds = getattr(self, "find_base", None)  # of differences, which name their base
                write_members(opened, target, finds(Path(packed[0]).parent).base if finds else None)
                files.append(str(target))
        elif packed:
            scratch = _scratch(self)
            files[:] = [str(_unpacked(Path(path), scratch)) if path in packed else path for path in files]
        original(self, model, dtype, **options)

    return preprocess_model


def _scratch(quantizer: Any) -> Path:
    """Create a scratch folder that is deleted after loading."""
    scratch = Path(mkdtemp(prefix=_PREFIX))
    quantizer.squeeze_scratch = weakref.finalize(quantizer, shutil.rmtree, scratch, ignore_errors=True)
    return scratch


def _then_freed(original: Any) -> Any:
    """Wrap a quantizer's last step, so that scratch files are deleted after it."""

    @wraps(original)
    def postprocess_model(self: Any, model: Any, **options: Any) -> Any:
        result = original(self, model, **options)
        if scratch := self.__dict__.pop("squeeze_scratch", None):
            scratch()
        return result

    return postprocess_model


def _unpacked(path: Path, scratch: Path) -> Path:
    """Unpack a file into the scratch folder; raises SqueezeError for a difference, whose base cannot be found from one
    file.
    """
    if container.read(path).description.base:
        raise SqueezeError(f"{escaped(str(path))}: is packed as a difference: use `squeeze unpack` first")
    unpack(path, scratch / path.name, threads=torch.get_num_threads())
    return scratch / path.name


def _is_packed(path: Path) -> bool:
    try:
        return container.is_packed(tensorfile.read(path))
    except (FormatError, LimitError):
        return False


def _described(path: Path) -> dict[str, torch.Tensor]:
    """Return the packed tensors of a file without values, except dtypes that torch does not have."""
    packed = container.read(path)
    pairs = zip(packed.file.tensors, packed.description.records, strict=True)
    return {
        tensor.name: torch.empty(torch_shape(record), dtype=TORCH_DTYPES[record.dtype], device="meta")
        for tensor, record in pairs
        if record.dtype in TORCH_DTYPES
    }
