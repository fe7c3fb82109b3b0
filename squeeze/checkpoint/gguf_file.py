"""Reading of GGUF files: the places of their tensors. The other bytes of a file are its `header`.

Every length is checked against the file before it is used. The format: github.com/ggml-org/ggml, docs/gguf.md.
"""

import struct
from math import prod
from pathlib import Path
from typing import BinaryIO

from squeeze.checkpoint.ggml_types import PLAIN, TYPES
from squeeze.checkpoint.safetensors import ELEMENT_BITS, Tensor, TensorFile
from squeeze.checkpoint.torch_file import gap_bytes, tiled
from squeeze.errors import FormatError, TruncatedError
from squeeze.system import files
from squeeze.system.limits import Limits

__all__ = ["SUFFIX", "read"]

SUFFIX = ".gguf"
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of a value, by its type
_STRING, _ARRAY = 8, 9
_ALIGNMENT, _DEFAULT = b"general.alignment", 32
_MAX_NAME, _MAX_RANK, _MAX_DEPTH = 1000, 8, 4
_LEAST_TENSOR = 8 + 4 + 4 + 8  # bytes of the entry of a tensor


class _Reader:
    """The metadata of a file, read from the front."""

    def __init__(self, file: BinaryIO, size: int, limits: Limits | None):
        self._file, self._size, self.place, self._limits = file, size, 0, limits or Limits()

    def take(self, size: int) -> bytes:
        if size > self._size - self.place:
            raise TruncatedError("the file ends within its metadata: it was cut off")
        self._limits.need_memory(size, "the metadata")
        self.place += size
        found = self._file.read(size)
        if len(found) < size:
            raise TruncatedError("the file was cut off while it was read")
        return found

    def skip(self, size: int) -> None:
        if size > self._size - self.place:
            raise TruncatedError("the file ends within its metadata: it was cut off")
        self.place += size
        self._file.seek(self.place)

    def number(self, form: str) -> int:
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return int(found)

    def name(self) -> bytes:
        length = self.number("<Q")
        if length > _MAX_NAME:
            raise FormatError(f"not a GGUF file: a name would have {length} bytes")
        return self.take(length)

    def skip_value(self, kind: int, depth: int = 0) -> None:
        if kind == _STRING:
            self.skip(self.number("<Q"))
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            inner, count = self.number("<I"), self.number("<Q")
            if inner in _SIZES:
                self.skip(count * _SIZES[inner])
                return
            for _ in range(count):  # ends at the end of the file, since each value has some bytes
                self.skip_value(inner, depth + 1)
        elif kind in _SIZES:
            self.skip(_SIZES[kind])
        else:
            raise FormatError(f"not a GGUF file: its metadata has a value of type {kind}")


def read(path: Path, limits: Limits | None = None) -> TensorFile:
    """Find the tensors of a GGUF file.

    Raises FormatError or its children for a fault, and LimitError if the metadata needs more memory than allowed.
    """
    with path.open("rb") as file:
        size = files.status(file).st_size
        reader = _Reader(file, size, limits)
        if size < len(_MAGIC) or reader.take(4) != _MAGIC:
            raise FormatError("not a GGUF file")
        if (version := reader.number("<I")) not in _VERSIONS:
            raise FormatError(f"GGUF version {version} is unknown: expected 2 or 3")
        number, keys, alignment = reader.number("<Q"), reader.number("<Q"), _DEFAULT
        for _ in range(keys):
            name, kind = reader.name(), reader.number("<I")
            if name == _ALIGNMENT and kind == 4:
                alignment = reader.number("<I")
            else:
                reader.skip_value(kind)
        if number > (size - reader.place) // _LEAST_TENSOR:
            raise TruncatedError("the file ends within its metadata: it was cut off")
        if not 1 <= alignment <= 1 << 20:
            raise FormatError(f"not a GGUF file: its alignment is {alignment}")
        entries = [_entry(reader) for _ in range(number)]
        start = -(-reader.place // alignment) * alignment
        found = [(start + offset, tensor) for offset, tensor in entries if tensor is not None]
        tensors = tuple(tiled(found, size))
        return TensorFile(path, size, gap_bytes(file, size, tensors), None, tensors)


def _entry(reader: _Reader) -> tuple[int, Tensor | None]:
    """Return the offset of a tensor and the tensor, from byte 0 on, or None if its type or shape is unknown."""
    name, rank = reader.name(), reader.number("<I")
    if rank > _MAX_RANK:
        raise FormatError(f"not a GGUF file: a tensor has {rank} dimensions")
    shape = tuple(reader.number("<Q") for _ in range(rank))[::-1]
    kind, offset, count = reader.number("<I"), reader.number("<Q"), prod(shape)
    if kind in PLAIN:
        dtype, values, width = PLAIN[kind], 1, ELEMENT_BITS[PLAIN[kind]] // 8
    elif kind in TYPES:
        dtype, values, width = TYPES[kind]
    else:
        return offset, None
    if count % values or not 0 < count < 1 << 62:
        return offset, None
    return offset, Tensor(name.decode("utf-8", "replace"), dtype, shape, 0, count // values * width)
