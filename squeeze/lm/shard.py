"""A safetensors file of a model that is converted: tensors as float32, a few rows at a time."""

import math
from pathlib import Path

import numpy as np

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.system.unchanged import UnchangedFile

__all__ = ["Shard"]

_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}  # bytes


class Shard:
    """`shapes`: of its tensors, by name. Raises FormatError where the file is not a sound safetensors file."""

    def __init__(self, path: Path) -> None:
        self._file = UnchangedFile(path)
        self._tensors = tensorfile.read(path).by_name
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def float_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """float32 rows of the first dimension. Raises ValueError where they are of another type than floats, or the
        file has changed since it was opened."""
        tensor = self._tensors[name]
        if tensor.dtype not in _WIDTHS:
            raise ValueError(f"tensor {name} has type {tensor.dtype}, which is not supported")
        first, last, _ = slice(start, stop).indices(tensor.shape[0])
        row = math.prod(tensor.shape[1:]) * _WIDTHS[tensor.dtype]
        data = self._file.read(tensor.begin + first * row, max(last - first, 0) * row)
        shape = (-1, *tensor.shape[1:])
        if tensor.dtype == "BF16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
        return data.view(np.float16 if tensor.dtype == "F16" else np.float32).astype(np.float32).reshape(shape)
