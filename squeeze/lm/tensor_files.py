"""Safetensors files of models: mapped, so that every tensor is a view of the file, or read a few rows at a time.

Files written here align each tensor to 64 bytes, by tensors named padding.N between them, so they are valid everywhere.
Their metadata has a checksum of header and data.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import FormatError
from squeeze.system.cache import replace
from squeeze.system.unchanged import UnchangedFile

_ALIGNMENT = 64
_DTYPES = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "F16": np.float16, "BF16": np.uint16, "F32": np.float32}
_NAMES = {np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype(np.int32): "I32", np.dtype(np.float32): "F32"}


class MappedFile:
    """A mapped safetensors file: `metadata`, and `tensors`, the entries of checkpoint/safetensors.py by name.

    Raises ValueError if the file is not a valid safetensors file.
    """

    def __init__(self, path: Path) -> None:
        try:
            file = tensorfile.read(path)
        except FormatError as error:
            raise ValueError(str(error)) from None
        self.data = np.memmap(path, np.uint8, "c")  # private: writes stay in memory
        self.metadata, self.tensors = file.metadata or {}, file.by_name
        self._start = len(file.header)

    def raw(self, name: str) -> np.ndarray:
        """Return a tensor as stored; bfloat16 as uint16."""
        tensor = self.tensors[name]
        if tensor.dtype not in _DTYPES:
            raise ValueError(f"tensor {name} has type {tensor.dtype}, which is not supported")
        return self.data[tensor.begin : tensor.end].view(np.ndarray).view(_DTYPES[tensor.dtype]).reshape(tensor.shape)

    def is_sound(self) -> bool:
        """Return whether the checksum of a file written by `write` is right."""
        metadata = {**self.metadata}
        checksum = metadata.pop("checksum", None)
        header = {
            tensor.name: _entry(tensor.dtype, tensor.shape, tensor.begin - self._start, tensor.end - self._start)
            for tensor in self.tensors.values()
        }
        return checksum == _checksum(header, metadata, [self.data[self._start :]])


def _entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _checksum(header: Mapping[str, Any], metadata: Mapping[str, str], data: list[np.ndarray]) -> str:
    digest = xxhash.xxh3_128(json.dumps([header, metadata], sort_keys=True).encode())
    for array in data:
        digest.update(array.data)
    return digest.hexdigest()


def write(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a file completely or not at all.

    Args:
        path: the file.
        tensors: by name.
        metadata: texts by name.

    Raises:
        OSError: if the folder or disk does not allow it.
    """
    header: dict[str, Any] = {}
    chunks: list[np.ndarray] = []
    offset = 0

    def add(name: str, array: np.ndarray) -> None:
        nonlocal offset
        header[name] = _entry(_NAMES[array.dtype], array.shape, offset, offset + array.nbytes)
        chunks.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        offset += array.nbytes

    for name, array in tensors.items():
        add(name, array)
        if offset % _ALIGNMENT:
            add(f"padding.{len(chunks)}", np.zeros(-offset % _ALIGNMENT, np.uint8))
    checked = {**metadata, "checksum": _checksum(header, metadata, chunks)}
    text = json.dumps({"__metadata__": checked, **header}, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    replace(path, [np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8), *chunks])


_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}  # bytes


class Shard:
    """A safetensors file of a model to convert, with the `shapes` of its tensors. Raises FormatError if it is
    invalid."""

    def __init__(self, path: Path) -> None:
        self._file = UnchangedFile(path)
        self._tensors = tensorfile.read(path).by_name
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}

    def float_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of a tensor as float32.

        Args:
            name: of the tensor.
            start: first row.
            stop: the row after the last.

        Raises:
            ValueError: if the tensor's type is not a float, or the file has changed since it was opened.
        """
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
