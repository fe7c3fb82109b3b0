"""Checkpoints with the interface of the package safetensors, packed or not, for loaders that are written for it.

An unpacked file on disk is opened by safetensors itself. At a URL, a tensor or the rows of a slice are fetched on
demand. In a packed file, a tensor is decoded on demand, and for a slice only the segments with its rows, if the coding
has segments.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, named
from squeeze.errors import SqueezeError, printable
from squeeze.packing import container
from squeeze.packing.base import Base
from squeeze.packing.chain import checkpoint_of
from squeeze.packing.codings import STORED
from squeeze.packing.others import Others
from squeeze.packing.record import Record, naming
from squeeze.packing.tensors.content import Content, InFile, InMemory
from squeeze.system.binary import Positional
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of, remote

__all__ = ["OpenError", "PackedSlice", "SafeOpen", "safe_open"]

_TORCH, _NUMPY = ("pt", "torch", "pytorch"), ("np", "numpy")
_NUMPY_TYPES = {
    **{"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32"},
    **{"U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"},
}


class OpenError(SqueezeError, safetensors.SafetensorError):
    """A tensor of a packed or remote checkpoint is missing, damaged, cannot be fetched, or has no type in the
    framework.

    It is also a SafetensorError, which loaders written for safetensors expect.
    """


def safe_open(
    filename: str | PathLike[str], framework: str, device: Any = "cpu", *, limits: Limits | None = None, **options: Any
) -> Any:
    """Open a file as `safetensors.safe_open` does, packed or not, on disk or at a URL of fsspec.

    A difference finds its base in its own folder, or in that of the packed folder that it belongs to. At a URL the
    header is fetched, and each tensor on demand. In a packed file `get_tensor` compares a checksum; a slice decodes
    only the rows that it needs, which have no checksum.

    Args:
        filename: the file.
        framework: "pt" or "np".
        device: where tensors of torch go.
        limits: bounds of memory for a packed file.
        options: other options of safetensors, which packed files ignore.

    Returns:
        A context manager with `keys`, `offset_keys`, `metadata`, `get_tensor`, `get_tensors` and `get_slice`.

    Raises:
        OpenError: if a packed or remote file is damaged or cut off, or its base or a tensor is missing. It is a
            SqueezeError and a SafetensorError.
        FileNotFoundError: or whatever else safetensors raises for other files.

    >>> with squeeze.safe_open("my-model-packed/model.safetensors", framework="pt") as file:  # doctest: +SKIP
    ...     rows = file.get_slice("lm_head.weight")[:100]
    """
    path = path_of(filename)
    if not remote(path):
        with safetensors.safe_open(path, framework="np") as file:  # type: ignore[no-untyped-call]
            is_packed = container.describes(file.metadata())
        if not is_packed:
            return safetensors.safe_open(path, framework=framework, device=device, **options)  # type: ignore[no-untyped-call]
    try:
        return SafeOpen(path, framework, device, limits or Limits())
    except SqueezeError as error:
        text = str(error)
        is_named = text.startswith((f"{path}: ", str(checkpoint_of(path))))  # as for a missing base
        raise OpenError(text if is_named else f"{filename}: {text}") from error


class SafeOpen:
    """An open packed or remote file, which `safe_open` returns."""

    def __init__(self, path: Path, framework: str, device: Any, limits: Limits):
        if framework not in _TORCH + _NUMPY:
            raise OpenError(f"framework must be pt or np for packed files, got {printable(framework)}")
        if framework in _NUMPY and str(device) != "cpu":
            raise OpenError(f"device must be cpu for framework np, got {printable(device)}")
        file = tensorfile.read(path, limits)
        packed = container.describe(file, limits) if container.is_packed(file) else None
        original, self._is_packed = packed.original if packed else file, packed is not None
        file = packed.file if packed else file
        self._metadata, self._order = original.metadata, [tensor.name for tensor in original.tensors]
        self._packed, self._path, self._limits = packed, path, limits
        if packed:
            container.check_limits(packed, limits)
            if packed.description.base:
                Base.of(checkpoint_of(path), limits)  # if it is missing, that is said at once
        self._device = device if framework in _TORCH else None
        records = packed.description.records if packed else map(_as_it_is, file.tensors)
        pairs = zip(file.tensors, records, strict=True)
        self._records = {tensor.name: (tensor, record) for tensor, record in pairs}
        self._file: BinaryIO | None = path.open("rb")
        self._reading = Positional(self._file)

    @cached_property
    def _others(self) -> Others | None:
        """Find what tensors of a packed file need, when the first of them is read: that may take a request at a URL."""
        packed, limits = self._packed, self._limits
        if packed is None:
            return None
        needs_base = packed.description.base or Others(packed, None, limits).bases()
        return Others(packed, Base.of(checkpoint_of(self._path), limits) if needs_base else None, limits)

    def __enter__(self) -> "SafeOpen":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def keys(self) -> list[str]:
        """Return the names in alphabetical order."""
        return sorted(self._order)

    def offset_keys(self) -> list[str]:
        """Return the names in the order of the tensors' bytes in the original."""
        return list(self._order)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata of the original."""
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        """Return a tensor after comparing its checksum."""
        tensor, record = self._entry(name)
        make, shape = self._maker(name, record)
        return make(self._whole(tensor, record), shape)

    def get_tensors(self) -> dict[str, Any]:
        return {name: self.get_tensor(name) for name in self._order}

    def get_slice(self, name: str) -> "PackedSlice":
        tensor, record = self._entry(name)
        return PackedSlice(self, tensor, record)

    def _entry(self, name: str) -> tuple[Tensor, Record]:
        if self._file is None:
            raise OpenError("File is closed")
        if name not in self._records:
            raise OpenError(f"File does not contain {named(name)}")
        return self._records[name]

    def _payload(self, tensor: Tensor) -> Content:
        if self._file is None:
            raise OpenError("File is closed")
        return InFile(self._reading, tensor.begin, tensor.size)

    def _whole(self, tensor: Tensor, record: Record) -> Bytes:
        """Return all bytes of a tensor, in an array of their own."""
        payload = self._payload(tensor)
        needs = record.coding.is_shared or record.coding.is_difference
        try:
            if record.coding.is_member:  # the bundle is read once for all of them
                with ExitStack() as opened:
                    others = self._others if needs else None
                    base = others.content_for(record, tensor.name, "", opened) if others else None
                    return record.restore_content(tensor.name, payload, base, 1)
            data = np.empty(tensor.size, np.uint8)
            with naming(tensor.name):
                payload.fill(0, data)  # one request at a URL
            if not self._is_packed:
                return data
            other = self._others.for_record(tensor.name, record) if needs and self._others else None
            return record.restore(tensor.name, data, other, 1)
        except SqueezeError as error:
            raise OpenError(str(error)) from error

    def _in_parts(self, tensor: Tensor, record: Record) -> Content:
        """Return the bytes of a tensor, decoded as they are read, or all at once if its coding has no segments."""
        if not record.coding.in_segments:
            return InMemory(self._whole(tensor, record))
        return record.decode_parts(self._payload(tensor), None, 1)

    def _maker(self, name: str, record: Record) -> tuple[Callable[[Bytes, tuple[int, ...]], Any], tuple[int, ...]]:
        """Return a function that makes a tensor from bytes and a shape, and the whole tensor's shape in the framework.

        Raises OpenError if the framework has no such type.
        """
        if self._device is None:
            kind = numpy_type(name, record.dtype)
            return (lambda data, shape: data.view(kind).reshape(shape)), record.shape
        import torch

        from squeeze.packing.weights import torch_dtype, torch_shape

        try:
            dtype = torch_dtype(record.dtype, name)
            whole = torch_shape(record)
        except SqueezeError as error:
            raise OpenError(str(error)) from error

        def make(data: Bytes, shape: tuple[int, ...]) -> torch.Tensor:
            if not data.size:  # torch cannot view nothing as another type
                return torch.empty(shape, dtype=dtype, device=self._device)
            return torch.from_numpy(data).view(dtype).view(shape).to(self._device)

        return make, whole


def _as_it_is(tensor: Tensor) -> Record:
    """Return the record of a tensor that is not packed, without a checksum."""
    return Record.of(tensor, STORED)


def numpy_type(name: str, dtype: str) -> "np.dtype[Any]":
    """Return numpy's type of a safetensors dtype. Raises OpenError if it has none; bfloat16 needs a package that adds
    it.
    """
    try:
        return np.dtype(_NUMPY_TYPES.get(dtype, {"BF16": "bfloat16"}.get(dtype, "")))
    except TypeError:
        raise OpenError(f"{named(name)}: numpy has no type for {dtype}: open the file with framework pt") from None


class PackedSlice:
    """A tensor of which parts can be taken: `part[first:last, ...]`, indexed as in the framework."""

    def __init__(self, file: SafeOpen, tensor: Tensor, record: Record):
        self._file, self._tensor, self._record = file, tensor, record
        self._content: Content | None = None

    def get_shape(self) -> list[int]:
        return list(self._record.shape)

    def get_dtype(self) -> str:
        """Return the dtype's name in safetensors."""
        return self._record.dtype

    def __getitem__(self, index: Any) -> Any:
        make, shape = self._file._maker(self._tensor.name, self._record)
        first, last, rest = rows_of(index, shape)
        row = self._record.size // max(shape[0], 1) if shape else self._record.size
        values = make(self._bytes(first * row, last * row), (last - first, *shape[1:]) if shape else ())
        try:
            return np.asarray(values[rest]) if isinstance(values, np.ndarray) else values[rest]
        except IndexError as error:
            raise (OpenError(str(error)) if isinstance(values, np.ndarray) else error) from None

    def _bytes(self, begin: int, end: int) -> Bytes:
        """Return bytes begin to end of the tensor, in an array of their own."""
        self._file._payload(self._tensor)  # raises if the file is closed
        out = np.empty(end - begin, np.uint8)
        try:
            if self._content is None:
                self._content = self._file._in_parts(self._tensor, self._record)
            if out.size:  # else a segment would be decoded in vain
                self._content.fill(begin, out)
        except OpenError:
            raise
        except SqueezeError as error:
            raise OpenError(f"{named(self._tensor.name)}: {error}") from error
        return out


def rows_of(index: Any, shape: tuple[int, ...]) -> tuple[int, int, Any]:
    """Return the first and the last row that an index takes, and the index relative to these rows.

    All rows are taken unless the index begins with a number or a slice with a positive step.
    """
    every = (0, shape[0] if shape else 1, index)
    leading, others = (index[0], index[1:]) if isinstance(index, tuple) and index else (index, ())
    if not shape or isinstance(leading, bool):
        return every
    if isinstance(leading, int | np.integer):
        row = int(leading) + (shape[0] if leading < 0 else 0)
        return (row, row + 1, (0, *others)) if 0 <= row < shape[0] else every
    if isinstance(leading, slice):
        try:
            first, last, step = leading.indices(shape[0])
        except (TypeError, ValueError):
            return every
        return (first, max(first, last), (slice(None, None, step), *others)) if step > 0 else every
    return every
