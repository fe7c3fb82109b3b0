"""Checkpoints as folders of safetensors: tensors by name, shards with an index, few tensors in memory at a time.

The meaning of tensors for a network is in engine/network.py. A View is a tensor that no file has, made of stored
tensors whenever it is loaded.
"""

import errno
import os
import re
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.architectures import EMBEDDING, HEAD
from squeeze.checkpoint.config_json import CONFIG, check_layers, read_config
from squeeze.checkpoint.safetensors import ELEMENT_BITS, Tensor
from squeeze.checkpoint.weight_files import MANIFEST, absent, names_of, own_files, read_index, stem_of, weight_files
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system.storage import local_path

__all__ = ["DTYPES", "MAX_SHARD", "TORCH_DTYPES", "Checkpoint", "View", "disk_errors", "saved"]

DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
# torch's dtype for safetensors' names. An element of torch's F4 is two numbers.
TORCH_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F4": torch.float4_e2m1fn_x2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class View:
    """A tensor made of stored ones when it is loaded.

    Attributes:
        name: of the tensor.
        dtype: safetensors' name.
        shape: of the tensor.
        read: read(None) returns its values; read(index) returns one entry of the first dimension, without the others in
            memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int | None], torch.Tensor]

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        size = prod(self.shape) * ELEMENT_BITS[self.dtype] // 8
        return {self.name: Tensor(self.name, self.dtype, self.shape, 0, size)}


MAX_SHARD = 4 << 30  # bytes
_LONGEST_NAME = 1000  # characters
_FLOATS = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)|inline_container|file write failed")


@dataclass(frozen=True)
class Checkpoint:
    """A model's folder, whose headers have all been checked.

    `files` has the file of each tensor by name, or the View that makes it.
    """

    folder: Path
    files: Mapping[str, tensorfile.TensorFile | View]

    @classmethod
    def open(cls, folder: Path | str) -> "Checkpoint":
        """Open a folder. Raises FormatError if it is not a whole checkpoint in safetensors."""
        folder = local_path(folder)
        if not folder.exists():
            raise FormatError(f"{folder}: {absent(folder)}")
        if not folder.is_dir():
            raise FormatError(f"{folder}: not a model folder; `squeeze import` converts a GGUF file to one")
        config = read_config(folder)
        by_path: dict[Path, tensorfile.TensorFile] = {}
        for path in weight_files(folder):
            try:
                file = tensorfile.read(path)
                tensorfile.check_known(file.tensors)
            except FormatError as error:
                raise type(error)(f"{path}: {error}") from None
            by_path[path] = file
        index = folder / names_of(stem_of(folder))[1]
        own = own_files({path: file.by_name for path, file in by_path.items()}, [index] if index.is_file() else ())
        files = {name: by_path[path] for name, path in own.items()}
        is_packed = (folder / MANIFEST).is_file()  # whose headers do not name all tensors: small ones are in bundles
        if not is_packed and index.is_file() and (missing := set(read_index(index)) - set(files)):
            raise FormatError(f"{index}: tensor {printable(repr(min(missing)))} is in no shard")
        _check_names(folder, files)
        try:
            if not is_packed:
                check_layers(config, len(files))
        except FormatError as error:
            raise FormatError(f"{folder / CONFIG}: {error}") from None
        return cls(folder, files)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The config.json of the tensors as they are loaded: without a quantization_config if views dequantise them."""
        config = read_config(self.folder)
        if any(isinstance(file, View) for file in self.files.values()):
            config.pop("quantization_config", None)
        return config

    def showing(self, views: Mapping[str, View], hidden: Container[str] = ()) -> "Checkpoint":
        """Return a checkpoint with additional views, and without the tensors whose names are in `hidden`."""
        others = {name: file for name, file in self.files.items() if name not in hidden}
        return replace(self, files={**others, **views})

    def info(self, name: str) -> tensorfile.Tensor:
        return self.files[name].by_name[name]

    @cached_property
    def has_own_head(self) -> bool:
        """True if the checkpoint stores an output head that differs from the embedding.

        The weights decide, as in transformers, not what config.json says of tied ones.
        """
        embedding, head = f"{EMBEDDING}.weight", f"{HEAD}.weight"
        if head not in self.files or embedding not in self.files or self.config.get("tie_word_embeddings") is False:
            return head in self.files
        if self.info(embedding).shape != self.info(head).shape:
            return True
        loaded = self.load([embedding, head], strict=False)
        return not torch.equal(loaded[embedding], loaded[head])

    def hadamard_size(self, module: str) -> int:
        """Return the Hadamard block size by which the network rotates a module's inputs; 1 if it does not."""
        return 1

    def bytes_of(self, names: Iterable[str]) -> int:
        return sum(self.info(name).size for name in names)

    def float_type(self) -> torch.dtype:
        """Return the dtype of most of the weights. Raises SqueezeError if that is not a float dtype."""
        sizes: dict[str, int] = {}
        for name in self.files:
            info = self.info(name)
            sizes[info.dtype] = sizes.get(info.dtype, 0) + info.size
        main_type = _FLOATS.get(max(sizes, key=lambda dtype: sizes[dtype]))
        if main_type is None:
            raise SqueezeError(f"{self.folder}: expected weights of bf16, fp16 or fp32, most are of other dtypes")
        return main_type

    def load(
        self, names: Iterable[str], device: torch.device | str = "cpu", strict: bool = True
    ) -> dict[str, torch.Tensor]:
        """Return tensors in their own dtypes.

        Args:
            names: of the tensors.
            device: where to load them.
            strict: raise FormatError if a tensor is not of floats, or not finite.
        """
        loaded: dict[str, torch.Tensor] = {}
        by_file: dict[Path, list[str]] = {}
        for name in names:
            if strict and (dtype := self.info(name).dtype) not in _FLOATS:
                raise FormatError(
                    f"{self.folder}: tensor {printable(repr(name))} is of type {dtype}; bf16, fp16 and fp32 are taken"
                )
            file = self.files[name]
            if isinstance(file, View):
                loaded[name] = file.read(None).to(device)
            else:
                by_file.setdefault(file.path, []).append(name)
        for path, names_in_file in by_file.items():
            loaded |= tensorfile.load(path, names_in_file, str(device))
        for name, tensor in loaded.items() if strict else ():
            if not torch.isfinite(tensor).all():
                raise FormatError(f"{self.folder}: tensor {printable(repr(name))} has values that are not finite")
        return loaded

    def entry(self, name: str, index: int) -> torch.Tensor:
        """Return one entry of a tensor's first dimension, without the others in memory and without a check of its
        values."""
        file = self.files[name]
        return file.read(index) if isinstance(file, View) else tensorfile.load_entry(file.path, name, index)


def _check_names(folder: Path, names: Iterable[str]) -> None:
    """Raise FormatError if there are no tensors, or a name cannot be written."""
    names = list(names)
    if not names:
        raise FormatError(f"{folder}: expected weights, found no tensors")
    for name in names:
        if not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise FormatError(f"{folder}: {printable(repr(name))} is not a valid name of a tensor")


@contextmanager
def saved(model: nn.Module, beside: Path) -> Iterator[Path]:
    """Save a model of transformers to a temporary folder on the disk of `beside`, for the `with` block."""
    with tempfile.TemporaryDirectory(dir=beside.absolute().parent) as folder:
        with disk_errors(Path(folder)):
            model.save_pretrained(folder)  # type: ignore[operator]
        yield Path(folder)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, which safetensors and torch report in words, into an OSError."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        match = _SYSTEM_ERROR.search(str(error))
        if match is None:
            raise
        number = int(match[1]) if match[1] else errno.ENOSPC
        raise OSError(number, os.strerror(number), str(path)) from error
