"""Quantised checkpoints on disk, read module by module, as QuantizedTensors or as dense weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.config_json import unguarded
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.checkpoint.stored import dtype_named
from squeeze.checkpoint.weight_files import own_files
from squeeze.errors import FormatError
from squeeze.packing import folder as packed_folder
from squeeze.packing.load import load
from squeeze.quant.formats.registry import Format, format_of
from squeeze.quant.formats.spec import QuantizationSpec
from squeeze.system.documents import read_object

__all__ = ["QuantizedCheckpoint", "read", "summary"]


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """A quantised checkpoint: its format, its description, all stored tensors, and the names of the quantised
    modules."""

    format: Format
    spec: QuantizationSpec
    tensors: Mapping[str, torch.Tensor]
    modules: tuple[str, ...]

    def weight(self, module: str) -> QuantizedTensor:
        """Return the weight of a quantised module. Raises FormatError if its tensors are inconsistent."""
        names = [f"{module}.{leaf}" for leaf in self.format.leaves]
        present = {name: self.tensors[name] for name in names if name in self.tensors}
        return self.format.weight(module, present, self.spec)

    def bits(self, module: str) -> int:
        """Return the bits of a code of a quantised module."""
        return self.spec.of(module).bits

    def weights(self) -> Iterator[tuple[str, QuantizedTensor]]:
        """Yield the name and weight of every quantised module."""
        for module in self.modules:
            yield module, self.weight(module)

    @property
    def unquantised_names(self) -> list[str]:
        """The names of the tensors that belong to no quantised weight."""
        quantised = {f"{module}.{leaf}" for module in self.modules for leaf in self.format.leaves}
        return [name for name in self.tensors if name not in quantised]

    def dense(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all tensors of the dequantised checkpoint, weights as [O, I] in `dtype` (default: that of the
        description)."""
        for module, weight in self.weights():
            yield f"{module}.weight", weight.dequantize(dtype or self.spec.dtype)
        for name in self.unquantised_names:
            yield name, self.tensors[name]


def summary(folder: Path) -> dict[str, object] | None:
    """Return format, modules, codes, bytes and bits per weight of a quantised folder; None if `read` does not read it.

    Bytes include scales, zero points and all other tensors of a weight; codes include padding of the last words. Raises
    FormatError if the description of a module is invalid.
    """
    try:
        checkpoint = read(folder)
    except FormatError:
        return None
    codes = stored = 0
    for module in checkpoint.modules:
        tensors = [checkpoint.tensors.get(f"{module}.{leaf}") for leaf in checkpoint.format.leaves]
        stored += sum(tensor.nbytes for tensor in tensors if tensor is not None)
        codes += _codes(checkpoint, module)
    return {
        "format": checkpoint.format.name,
        "modules": len(checkpoint.modules),
        "codes": codes,
        "bytes": stored,
        "bits_per_weight": 8 * stored / max(codes, 1),
    }


def _codes(checkpoint: QuantizedCheckpoint, module: str) -> int:
    """Return the number of codes of a module's weight: one for each value if codes are not packed into words."""
    leaves = ("weight", "weight_packed", checkpoint.format.leaves[0])
    name = next(name for leaf in leaves if (name := f"{module}.{leaf}") in checkpoint.tensors)
    tensor = checkpoint.tensors[name]
    packed = not name.endswith(".weight") or tensor.dtype == torch.uint8
    return 8 * tensor.nbytes // checkpoint.bits(module) if packed else tensor.numel()


def read(folder: Path | str) -> QuantizedCheckpoint:
    """Open a quantised checkpoint of any of FORMATS, packed or not. Tensors are read when they are needed.

    Raises FormatError if the folder is not a quantised checkpoint, DamagedError if its files are damaged.

    >>> for name, weight in read("my-model-w4").weights():  # doctest: +SKIP ...     print(name, weight.bits,
    weight.dequantize().norm())
    """
    folder = Path(folder)
    config = _config(folder)
    described = config["quantization_config"]
    format = format_of(described)
    spec = format.spec(described)
    spec = replace(spec, dtype=dtype_named(config.get("dtype") or config.get("torch_dtype"), spec.dtype))
    tensors: Mapping[str, torch.Tensor]
    if packed_folder.has_packed(folder):
        tensors = load(folder)
    else:
        tensors = _Files(folder)
    mark = "." + format.leaves[0]
    modules = tuple(sorted(name.removesuffix(mark) for name in tensors if name.endswith(mark)))
    return QuantizedCheckpoint(format, spec, tensors, modules)


def _config(folder: Path) -> dict[str, Any]:
    """Return the folder's config.json, which must have a quantization_config."""
    path = folder / "config.json"
    try:
        config = read_object(path)
    except FileNotFoundError:
        raise FormatError(f"{folder}: not a checkpoint: it has no config.json") from None
    if not isinstance(config.get("quantization_config"), dict):
        raise FormatError(f"{folder}: not quantised: config.json has no quantization_config")
    return {**config, "quantization_config": unguarded(config["quantization_config"])}


class _Files(Mapping[str, torch.Tensor]):
    """The tensors of a folder's safetensors files, each read when it is needed."""

    def __init__(self, folder: Path):
        names = packed_folder.files_to_take(folder)
        paths = [folder / name for name in names if name.endswith(packed_folder.SUFFIX)]
        self._where = own_files(
            {path: tensorfile.read(path).by_name for path in paths}, packed_folder.indexes_in(folder, names)
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        return tensorfile.load(self._where[name], [name])[name]

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
