"""Quantised checkpoints on disk, read module by module: as QuantizedTensors, or as the dense weights they stand for."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from squeeze.errors import FormatError
from squeeze.packing import folder as packed_folder
from squeeze.packing import tensorfile
from squeeze.packing.load import load
from squeeze.quant.formats import Format, format_of
from squeeze.quant.formats.spec import QuantizationSpec
from squeeze.quant.tensor import QuantizedTensor

__all__ = ["Checkpoint", "open_checkpoint"]


@dataclass(frozen=True)
class Checkpoint:
    """A quantised checkpoint. `modules` are the names of those that are quantised, `tensors` all that is stored."""

    format: Format
    spec: QuantizationSpec
    tensors: Mapping[str, torch.Tensor]
    modules: tuple[str, ...]

    def weight(self, module: str) -> QuantizedTensor:
        """The weight of one of `modules`. Raises FormatError where its tensors contradict each other."""
        names = [f"{module}.{leaf}" for leaf in self.format.leaves]
        present = {name: self.tensors[name] for name in names if name in self.tensors}
        return self.format.weight(module, present, self.spec)

    def weights(self) -> Iterator[tuple[str, QuantizedTensor]]:
        """Every quantised module's name and weight."""
        for module in self.modules:
            yield module, self.weight(module)

    @property
    def others(self) -> list[str]:
        """Names of the tensors that belong to no quantised weight."""
        quantised = {f"{module}.{leaf}" for module in self.modules for leaf in self.format.leaves}
        return [name for name in self.tensors if name not in quantised]

    def dense(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors of the checkpoint before it was quantised, the weights as [O, I] in `dtype` (the spec's)."""
        for module, weight in self.weights():
            yield f"{module}.weight", weight.dequantize(dtype or self.spec.dtype)
        for name in self.others:
            yield name, self.tensors[name]


def open_checkpoint(folder: Path) -> Checkpoint:
    """As formats.read."""
    config = _config(folder)
    format = format_of(config)
    spec = format.spec(config)
    tensors: Mapping[str, torch.Tensor]
    if packed_folder.has_packed(folder):
        tensors = load(folder)
    else:
        tensors = _Files(folder)
    mark = "." + format.leaves[0]
    modules = tuple(sorted(name.removesuffix(mark) for name in tensors if name.endswith(mark)))
    return Checkpoint(format, spec, tensors, modules)


def _config(folder: Path) -> Mapping[str, object]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{folder}: not a checkpoint: it has no config.json") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: is not JSON") from None
    found = config.get("quantization_config") if isinstance(config, dict) else None
    if not isinstance(found, dict):
        raise FormatError(f"{folder}: is not quantised: its config.json has no quantization_config")
    return found


class _Files(Mapping[str, torch.Tensor]):
    """The tensors of a folder's safetensors files, each read when it is asked for."""

    def __init__(self, folder: Path):
        self._where: dict[str, Path] = {}
        for name in packed_folder.files_to_take(folder):
            if name.endswith(packed_folder.SUFFIX):
                self._where |= dict.fromkeys(tensorfile.read(folder / name).by_name, folder / name)

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._where[name], framework="pt") as file:
            return file.get_tensor(name)  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)
