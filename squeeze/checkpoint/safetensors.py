"""Reading of safetensors files: the header is checked in full before a tensor is read.

A file is 8 bytes of header length, a JSON header, and the tensors end to end. Tensors are read as bytes (`read_tensor`)
or in torch (`load`, with the package safetensors); lm/mapped.py maps them to memory. The format:
github.com/huggingface/safetensors.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.errors import DamagedError, FormatError, TruncatedError, printable
from squeeze.system import files
from squeeze.system.documents import parse_object, parsed_size
from squeeze.system.limits import Limits

if TYPE_CHECKING:
    import torch

Bytes = npt.NDArray[np.uint8]

MAX_HEADER = 100_000_000  # bytes, the limit of the package safetensors
_MAX_RANK = 64
_MOST = 1 << 63  # values of a tensor, counting a size of 0 as 1: torch's strides have 64 bits
# Bits of one element.
ELEMENT_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_LAYOUTS = {"F8_E4M3FNUZ": "F8_E4M3", "F8_E5M2FNUZ": "F8_E5M2"}  # the same bits, with other values
_DTYPE = re.compile("[A-Z0-9_]{1,32}", re.IGNORECASE | re.ASCII)


def layout_of(dtype: str) -> str:
    """Return the dtype that a coder uses for a tensor: one with the same bit layout, a type of blocks (GGUF), or bytes
    for unknown dtypes.
    """
    return _LAYOUTS.get(dtype, dtype if dtype in ELEMENT_BITS or dtype in BLOCKS else "U8")


def fits(dtype: str, shape: Sequence[int], size: int) -> bool:
    """Return whether a tensor has `size` bytes. A tensor of an unknown dtype may have any size."""
    return dtype not in ELEMENT_BITS or 8 * size == prod(shape) * ELEMENT_BITS[dtype]


@dataclass(frozen=True)
class Tensor:
    """The place of a tensor in a file, from `begin` to `end`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def layout(self) -> str:
        return layout_of(self.dtype)


@dataclass(frozen=True)
class TensorFile:
    """A checked safetensors file; `tensors` are in the order of their bytes."""

    path: Path
    size: int
    header: bytes  # all bytes before the tensors
    metadata: dict[str, str] | None
    tensors: tuple[Tensor, ...]

    @cached_property
    def gaps(self) -> list[bytes]:
        """The bytes of `header` before each tensor and after the last one; in a safetensors file all are before the
        first."""
        gaps, end, used = [], 0, 0
        for begin, stop in [*((tensor.begin, tensor.end) for tensor in self.tensors), (self.size, self.size)]:
            gaps.append(self.header[used : used + begin - end])
            end, used = stop, used + begin - end
        return gaps

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}


def named(name: str) -> str:
    """Return how a message names a tensor."""
    return f"tensor '{printable(name)}'"


def read(path: Path, limits: Limits | None = None) -> TensorFile:
    """Check the header of a safetensors file.

    Raises FormatError or its children for a fault, and LimitError if the header needs more memory than `limits` allow.
    """
    with path.open("rb") as file:
        size = files.status(file).st_size
        return parse(path, size, read_header(file, size), limits)


def read_header(file: BinaryIO, size: int) -> bytes:
    """Return all bytes before the tensors of a file of `size` bytes."""
    start = file.read(8)
    if len(start) < 8:
        raise TruncatedError("the file ends within the first 8 bytes: it is not a whole safetensors file")
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        raise FormatError(f"not a safetensors file: its header would be {length} bytes long")
    if length > size - 8:
        raise TruncatedError(f"the file ends within its header of {length} bytes: it was cut off")
    header = file.read(length)
    if len(header) < length:
        raise TruncatedError("the file was cut off while it was read")
    return start + header


def parse(path: Path, size: int, header: bytes, limits: Limits | None = None) -> TensorFile:
    """Check a header (with its length) against a file of `size` bytes."""
    if int.from_bytes(header[:8], "little") != len(header) - 8:
        raise FormatError("not a safetensors file: its header is not as long as it says")
    (limits or Limits()).need_memory(parsed_size(header), "the header")
    try:
        entries = parse_object(header[8:].decode())
    except UnicodeDecodeError:
        raise FormatError("not a safetensors file: its header is not JSON") from None
    except FormatError as error:
        raise FormatError(f"not a safetensors file: its header {error}") from None
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise FormatError("the header's __metadata__ is not a table of strings")
    tensors = sorted(
        (_tensor(name, entry, len(header)) for name, entry in entries.items()),
        key=lambda tensor: (tensor.begin, tensor.end),
    )
    _check_tiling(tensors, size, len(header))
    return TensorFile(path, size, header, metadata, tuple(tensors))


def _tensor(name: str, entry: Any, start: int) -> Tensor:
    def number(value: Any) -> bool:
        return type(value) is int and 0 <= value < 1 << 63

    if not name.isprintable() and not _is_unicode(name):
        raise FormatError(f"{named(name)}: its name is not valid Unicode")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{named(name)}: the header's entry is not one of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _DTYPE.fullmatch(dtype):
        raise FormatError(f"{named(name)}: '{printable(dtype)}' is not the name of a dtype")
    if not isinstance(shape, list) or not all(map(number, shape)):
        raise FormatError(f"{named(name)}: the shape {printable(shape)} is impossible")
    check_shape(name, shape)
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(number, offsets)):
        raise FormatError(f"{named(name)}: the offsets {printable(offsets)} are impossible")
    begin, end = offsets
    if begin > end or not fits(dtype, shape, end - begin):
        raise FormatError(f"{named(name)}: offsets {begin} to {end} do not fit {dtype} of shape {printable(shape)}")
    return Tensor(name, dtype, tuple(shape), start + begin, start + end)


def check_known(tensors: Iterable[Tensor]) -> None:
    """Raise FormatError if a tensor's dtype is unknown, so that only its bytes can be used."""
    for tensor in tensors:
        if tensor.dtype not in ELEMENT_BITS:
            raise FormatError(f"{named(tensor.name)}: dtype '{printable(tensor.dtype)}' is unknown to this version")


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raise FormatError if no tensor can have this shape."""
    if len(shape) > _MAX_RANK or prod(size or 1 for size in shape) >= _MOST:
        raise FormatError(f"{named(name)}: the shape {printable(shape)} is impossible")


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which are valid in JSON but not in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_tiling(tensors: list[Tensor], size: int, start: int) -> None:
    end = start
    for tensor in tensors:
        if tensor.begin != end:
            fault = "overlaps the one before" if tensor.begin < end else "leaves a hole before it"
            raise FormatError(f"{named(tensor.name)} {fault}: the header is wrong")
        end = tensor.end
    if end > size:
        raise TruncatedError(f"the file ends {end - size} bytes too early: it was cut off")
    if end < size:
        raise FormatError(f"{size - end} bytes follow the last tensor: the header is wrong, or something was added")


def read_tensor(file: BinaryIO, tensor: Tensor) -> Bytes:
    """Return a tensor's bytes in a new array."""
    data = np.empty(tensor.size, np.uint8)
    file.seek(tensor.begin)
    view, filled = data.data, 0
    while filled < tensor.size:
        count = file.readinto(view[filled:])  # type: ignore[attr-defined]
        if not count:
            raise DamagedError(f"{named(tensor.name)}: the file became shorter while it was read")
        filled += count
    return data


def load(path: Path, names: Iterable[str] | None = None, device: str = "cpu") -> "dict[str, torch.Tensor]":
    """Return tensors of a file in torch, all or those named. Raises DamagedError if the file is damaged."""
    try:
        with safe_open(path, framework="pt", device=device) as file:  # type: ignore[no-untyped-call]
            return {name: file.get_tensor(name) for name in (file.keys() if names is None else names)}
    except SafetensorError as error:
        raise DamagedError(f"{path}: {printable(error)}") from None


def load_entry(path: Path, name: str, index: int) -> "torch.Tensor":
    """Return one entry of a tensor's first dimension. Raises DamagedError if the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            entry: torch.Tensor = file.get_slice(name)[index]
            return entry
    except SafetensorError as error:
        raise DamagedError(f"{path}: {printable(error)}") from None
