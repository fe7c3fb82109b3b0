"""The base of a fine-tune: how it is found, and its weights, one copy in memory for all models that differ from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.config_json import CONFIG, read_config
from squeeze.checkpoint.safetensors import named
from squeeze.errors import DamagedError, FormatError, ModelError, SqueezeError, escaped, printable
from squeeze.packing.base import Base
from squeeze.packing.chain import Hashes
from squeeze.packing.weights import shaped, torch_dtype
from squeeze.system import storage
from squeeze.system.limits import Limits

__all__ = ["BaseWeights", "is_transposed"]

_shared: "WeakValueDictionary[tuple[Hashes, str, torch.dtype, torch.device], torch.Tensor]" = WeakValueDictionary()


@dataclass(frozen=True)
class BaseWeights:
    """The tensors of a base, packed or not, by name."""

    base: Base

    @classmethod
    def open(cls, path: Path | str) -> "BaseWeights":
        """Open a base, which is read once for its hash. Raises FormatError if it has no safetensors file."""
        base = Base.open(path)
        if not base.weights:
            raise FormatError(f"{escaped(str(path))}: expected a base with safetensors files, found none")
        return cls(base)

    @classmethod
    def of(cls, folder: Path, described: Mapping[str, Any], base: Path | str | None = None) -> "BaseWeights":
        """Open the base that a folder's `quantization_config` names.

        Args:
            folder: of the difference.
            described: its `quantization_config`.
            base: path of the base. By default it is looked for next to the folder: the checkpoint of the same name, or
                a packed one with the same hash.

        Raises:
            SqueezeError: there is no base, or its hash differs.
        """
        name, hashes = _named(folder, described)
        beside = folder.resolve().parent / name
        if base is None and not beside.exists():
            packed = Base.among_siblings(folder, {hashes}, Limits())
            if packed is None:
                raise SqueezeError(
                    f"{escaped(str(folder))}: is the difference from a base, {name}, which is not next to it: put it "
                    "there, or name it with `base_folder`"
                )
            return cls(packed)
        found = cls.open(beside if base is None else base)
        found.base.check(hashes)
        return found

    @property
    def path(self) -> Path:
        return self.base.path

    @property
    def names(self) -> set[str]:
        return {name for scope, name in self.base.tensors if not scope}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor; None if there is no tensor of this name."""
        record = self.base.record(name)
        return record.shape if record else None

    def load(self, name: str) -> torch.Tensor:
        """Return a tensor in its own dtype. Raises FormatError if it does not exist, DamagedError if it is damaged."""
        record = self.base.record(name)
        if record is None:
            raise FormatError(f"the base {escaped(str(self.path))} has no {named(name)}")
        return shaped(torch.from_numpy(self.base.tensor(name, record)), record, torch_dtype(record.dtype, name))

    def matrix(self, module: str, described: Mapping[str, Any]) -> torch.Tensor:
        """Return the weight [O, I] of a linear module, in its own dtype.

        `described` is the `quantization_config` of the difference, which says which modules are transposed.
        """
        weight = self.load(f"{module}.weight")
        return weight.T if is_transposed(module, described) else weight

    def shared(self, name: str, dtype: torch.dtype, device: torch.device, transposed: bool = False) -> torch.Tensor:
        """Return a tensor for running models: they share its memory as long as one of them holds it. It must not be
        written to.

        Args:
            name: of the tensor.
            dtype: of the result.
            device: of the result.
            transposed: return the transpose.
        """
        key = self.base.weights, name, dtype, device
        tensor = _shared.get(key)
        if tensor is None:
            with torch.inference_mode(False):  # others may ask for gradients
                tensor = self.load(name).to(device, dtype)
                _shared[key] = tensor = tensor.T if transposed else tensor
        return tensor

    def check_alike(self, tuned: Checkpoint) -> None:
        """Check that a checkpoint has the base's architecture and shapes.

        Raises:
            ModelError: the architecture differs.
            FormatError: a tensor is missing in the base, or has another shape.
        """
        if (self.path / CONFIG).is_file():
            kinds = [config.get("model_type") for config in (tuned.config, read_config(self.path))]
            if kinds[0] != kinds[1]:
                delta_kind, base_kind = map(printable, kinds)
                raise ModelError(
                    f"{tuned.folder}: expected the base's architecture {base_kind} ({self.path}), got {delta_kind}"
                )
        for name in tuned.files:
            shape, other = tuned.info(name).shape, self.shape(name)
            if other is None:
                raise FormatError(f"{tuned.folder}: the base {self.path} has no {named(name)}")
            if shape != other:
                raise FormatError(
                    f"{tuned.folder}: {named(name)}: expected shape {list(other)} of the base {self.path}, "
                    f"got {list(shape)}"
                )


def is_transposed(module: str, described: Mapping[str, Any]) -> bool:
    """Return whether a module's weight is stored as [I, O]."""
    return module in (described.get("transposed") or ())


def _named(folder: Path, described: Mapping[str, Any]) -> tuple[str, Hashes]:
    """Return the name and hashes of the base. Raises DamagedError if they are invalid."""
    base = described.get("base")
    name, hashes = (base.get("name"), base.get("sha256")) if isinstance(base, dict) else (None, None)
    if not isinstance(hashes, list) or not hashes or not all(isinstance(one, str) for one in hashes):
        raise DamagedError(f"{folder / CONFIG}: does not name the base of the difference")
    try:
        return storage.component(name), tuple(hashes)
    except FormatError as error:
        raise DamagedError(f"{folder / CONFIG}: does not name the base of the difference: {error}") from None
