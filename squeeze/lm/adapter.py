"""Adapters: low-rank changes of a model's matrices, and other norms (LoRA: Hu et al. 2021, arXiv:2106.09685).

An adapter is added to the weights before they are quantised, so it costs nothing at run time, and the model's identity
covers it. A matrix W [outputs, inputs] becomes W + sum over r of scale[r] * b[:, r] a[r], with int8 a and b. Every term
is elementwise IEEE arithmetic, and terms are added in order, so the result is the same on every machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xxhash

from squeeze.errors import ModelError
from squeeze.lm.sources import READ_ERRORS, Source, Tensor
from squeeze.lm.tensor_files import MappedFile, write
from squeeze.numerics.jit import kernel

__all__ = ["Adapter", "LowRank", "add_adapter", "load", "round_factors", "save"]

_KIND = {"squeeze": "adapter 1"}
_TOP = 127
_MOST = 1e15  # largest norm or scale; products of larger ones overflow


@dataclass(frozen=True)
class LowRank:
    """A change of a matrix: a int8 [rank, inputs], b int8 [outputs, rank], scale float32 [rank]."""

    a: np.ndarray
    b: np.ndarray
    scale: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows of the change, float32."""
        b = self.b[start:stop]
        total = np.zeros((len(b), self.a.shape[1]), np.float32)
        _add_terms(total, self.a, b, self.scale)
        return total


@kernel
def _add_terms(total, a, b, scale):
    """Add scale[r] * b[:, r] a[r] for each r in turn to float32 total [outputs, inputs]."""
    for row in range(total.shape[0]):
        for r in range(a.shape[0]):
            factor = np.float32(b[row, r]) * scale[r]
            for i in range(total.shape[1]):
                total[row, i] += factor * np.float32(a[r, i])


@dataclass(frozen=True)
class Adapter:
    """Changes of matrices and values of norms, by names as in `Source.tensors`: 0.query, final_norm."""

    changes: Mapping[str, LowRank]
    norms: Mapping[str, np.ndarray]
    digest: str  # XXH3-128 of the file


def round_factors(a: np.ndarray, b: np.ndarray) -> LowRank:
    """Quantise the change b @ a, float32 factors [rank, inputs] and [outputs, rank], to 8 bits."""
    tops = [np.maximum(np.abs(a).max(axis=1), 1e-20), np.maximum(np.abs(b).max(axis=0), 1e-20)]
    scale = (tops[0] / _TOP * (tops[1] / _TOP)).astype(np.float32)
    rounded = np.rint(a / tops[0][:, None] * _TOP), np.rint(b / tops[1] * _TOP)
    return LowRank(rounded[0].astype(np.int8), rounded[1].astype(np.int8), scale)


def save(path: Path, changes: Mapping[str, LowRank], norms: Mapping[str, np.ndarray]) -> None:
    """Write an adapter as a safetensors file, completely or not at all.

    Args:
        path: the file.
        changes: changes of matrices by name.
        norms: values of norms by name, float32.
    """
    tensors = dict(norms)
    for name, change in changes.items():
        tensors |= {f"{name}.a": change.a, f"{name}.b": change.b, f"{name}.scale": change.scale}
    write(path, tensors, _KIND)


def load(path: Path) -> Adapter:
    """Read an adapter.

    Raises:
        ModelError: if the file is missing, damaged, or not an adapter.
    """
    try:
        file = MappedFile(path)
        if not (_KIND.items() <= file.metadata.items()):
            raise ModelError(f"{path}: not an adapter that `squeeze train --adapter` wrote")
        if not file.is_sound():
            raise ModelError(f"{path}: the adapter is damaged: its checksum differs")
        names = [name for name in file.tensors if not name.startswith("padding.")]
        changes = {
            name[:-2]: LowRank(file.raw(name), file.raw(f"{name[:-2]}.b"), file.raw(f"{name[:-2]}.scale"))
            for name in names
            if name.endswith(".a")
        }
        if not all(_is_low_rank(change) for change in changes.values()):
            raise ModelError(f"{path}: not an adapter that `squeeze train --adapter` wrote")
    except OSError as error:
        raise ModelError(f"{path}: the adapter cannot be read: {error.strerror or error}") from error
    except READ_ERRORS as error:
        raise ModelError(f"{path}: not an adapter that `squeeze train --adapter` wrote") from error
    norms = {name: file.raw(name) for name in names if name.rpartition(".")[0] not in changes}
    if not all(norm.dtype == np.float32 and norm.ndim == 1 for norm in norms.values()):
        raise ModelError(f"{path}: not an adapter that `squeeze train --adapter` wrote")
    floats = [*norms.values(), *(change.scale for change in changes.values())]
    if not all((np.abs(values) < _MOST).all() for values in floats):  # also false for NaN
        raise ModelError(f"{path}: the adapter is damaged: it holds a number that is not finite or too large")
    return Adapter(changes, norms, xxhash.xxh3_128_hexdigest(file.data.data))


def _is_low_rank(change: LowRank) -> bool:
    a, b, scale = change.a, change.b, change.scale
    kinds = a.dtype == np.int8 == b.dtype and scale.dtype == np.float32
    return kinds and a.ndim == b.ndim == 2 and scale.shape == (len(a),) == b.shape[1:]


def add_adapter(source: Source, adapter: Adapter) -> Source:
    """Return the source with an adapter added.

    Raises:
        ModelError: if the adapter belongs to a model of another shape.
    """
    tensors = dict(source.tensors)
    for name, change in adapter.changes.items():
        tensors[name] = _changed(_of_shape(source, name, change.shape), _in_order(source, name, change))
    for name, norm in adapter.norms.items():
        _of_shape(source, name, norm.shape)
        tensors[name] = _replaced(norm)
    return replace(source, tensors=tensors)


def _of_shape(source: Source, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = source.tensors.get(name)
    if tensor is None or tensor.shape != shape:
        there = "none" if tensor is None else str(list(tensor.shape))
        raise ModelError(
            f"{source.name}: the adapter is for another model: {name} is {list(shape)} in it, {there} here"
        )
    return tensor


def _in_order(source: Source, name: str, change: LowRank) -> LowRank:
    """Return the change with its outputs in the order of the source, whose rotary pairs may be interleaved."""
    if not source.interleaved or name.rpartition(".")[2] not in ("query", "key"):
        return change
    size = source.config.head_size
    order = np.arange(len(change.b)).reshape(-1, 2, size // 2).swapaxes(1, 2).reshape(-1)
    return replace(change, b=change.b[order])


def _changed(tensor: Tensor, change: LowRank) -> Tensor:
    def rows(start: int, stop: int) -> np.ndarray:
        before = tensor.rows(start, stop)
        changed: np.ndarray = before + change.rows(start, start + len(before))
        return changed

    return Tensor(tensor.shape, rows)


def _replaced(values: np.ndarray) -> Tensor:
    return Tensor(values.shape, lambda start, stop: np.array(values[start:stop]))
