"""Single tensors, and streams of them, in the codings of packed files: for programs that keep or send tensors.

    from squeeze.packing import codec

    data = codec.encode(tensor)
    assert torch.equal(codec.decode(data), tensor)

A coded tensor says its dtype, shape and coding, and has a checksum of its bytes. docs/format.md, section 28, specifies
it. All calls release the GIL while they code, so several threads may code tensors of their own at the same time.
"""

import json
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import torch
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.checkpoint import TORCH_DTYPES
from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import DamagedError, FormatError, OptionError, TruncatedError, printable
from squeeze.packing.coding import Subject
from squeeze.packing.codings import CODINGS, encode_in_memory
from squeeze.packing.pack import check_level
from squeeze.packing.record import Record
from squeeze.packing.tensors.content import PART, InMemory, in_parts
from squeeze.packing.weights import torch_dtype, torch_shape
from squeeze.system.documents import parse
from squeeze.system.limits import Limits

__all__ = ["TensorWriter", "decode", "decode_stream", "encode", "room_for"]

Buffer = bytes | bytearray | memoryview | np.ndarray

_MAGIC, _END = b"SQZT", b"SQZE"
_START = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the payload
_MOST_HEADER = 1 << 16
_SCHEMA = {"name": str, "dtype": str, "shape": [int], "coding": str, "checksum": int}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def encode(
    tensor: torch.Tensor, *, out: Buffer | None = None, name: str = "", level: str = "runtime", threads: int = 1
) -> np.ndarray:
    """Code a tensor losslessly.

    Args:
        tensor: on the CPU, of any dtype of safetensors. It is not changed.
        out: a writable buffer for the result, of at least `room_for(tensor, name)` bytes. By default memory of its own.
        name: a name that is kept with the tensor.
        level: the level of packing: runtime, fast or archive.
        threads: threads that code.

    Returns:
        The coded tensor, uint8, which is the beginning of `out` if that is given.

    Raises:
        OptionError: if the level is unknown, the tensor is sparse or of a dtype without a name in safetensors, or `out`
            is too small, read-only or not contiguous.
    """
    check_level(level)
    described, data = _described(tensor, name)
    coding, payload = encode_in_memory(Subject.of(described, data, None, threads), level)
    header = {
        **{"name": name, "dtype": described.dtype, "shape": list(described.shape)},
        **{"coding": coding.name, "checksum": xxhash.xxh3_64_intdigest(data.data)},
    }
    text = _text(header)
    size = _START.size + len(text) + payload.size
    target = np.empty(size, np.uint8) if out is None else _writable(out, size)
    target[: _START.size] = np.frombuffer(_START.pack(_MAGIC, len(text), payload.size), np.uint8)
    target[_START.size : _START.size + len(text)] = np.frombuffer(text, np.uint8)
    target[_START.size + len(text) :] = payload
    return target


def room_for(tensor: torch.Tensor, name: str = "") -> int:
    """Return the most bytes that `encode` writes for a tensor with this name."""
    described, data = _described(tensor, name)
    longest = max(CODINGS, key=len)
    header = {
        **{"name": name, "dtype": described.dtype, "shape": list(described.shape)},
        **{"coding": longest, "checksum": (1 << 64) - 1},
    }
    return _START.size + len(_text(header)) + data.size


def decode(
    data: Buffer, *, out: torch.Tensor | None = None, threads: int = 1, limits: Limits | None = None
) -> torch.Tensor:
    """Decode a tensor.

    Args:
        data: what `encode` returned. More bytes may follow.
        out: a contiguous tensor on the CPU of the same dtype and shape, which is filled. By default a new one.
        threads: threads that decode.
        limits: bounds of memory and output.

    Returns:
        The tensor: `out` if that is given.

    Raises:
        DamagedError: if the data are cut off, or decode to another checksum. `out` then has undefined values.
        FormatError: if the data are not a coded tensor.
        OptionError: if `out` does not fit.
        LimitError: if decoding takes more memory than `limits` allow.
    """
    array = _bytes(data)
    start = _parse_start(array[: _START.size].tobytes())
    if start is None:
        raise FormatError("expected a coded tensor, got the end of a stream")
    length, size = start
    if array.size < _START.size + length + size:
        raise TruncatedError("the coded tensor is cut off")
    _, record = _parse_header(array[_START.size : _START.size + length].tobytes())
    return _restored(record, array[_START.size + length :][:size], out, threads, limits or Limits())


class TensorWriter:
    """A stream of named tensors, written to a file, pipe or socket one after another.

    >>> with open("tensors", "wb") as file, TensorWriter(file) as writer:  # doctest: +SKIP
    ...     writer.write("layer.weight", weight)
    """

    def __init__(self, file: BinaryIO, *, level: str = "runtime", threads: int = 1):
        """Begin a stream.

        Args:
            file: the sink, whose `write` takes all bytes.
            level: the level of packing.
            threads: threads that code.
        """
        check_level(level)
        self._file, self._level, self._threads, self._count = file, level, threads, 0

    def write(self, name: str, tensor: torch.Tensor) -> int:
        """Write a tensor; return its coded bytes. Raises as `encode`."""
        data = encode(tensor, name=name, level=self._level, threads=self._threads)
        self._file.write(data.data)
        self._count += 1
        return data.size

    def close(self) -> None:
        """End the stream with the number of its tensors. Without this a reader finds it cut off."""
        self._file.write(_START.pack(_END, 0, self._count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()


def decode_stream(
    file: BinaryIO, *, threads: int = 1, limits: Limits | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the names and tensors of a stream that `TensorWriter` wrote, each when it has arrived.

    Args:
        file: the source, whose `read` may return fewer bytes than asked for.
        threads: threads that decode.
        limits: bounds of memory and output.

    Raises:
        DamagedError: if a tensor is damaged, or (TruncatedError) the stream ends before its end.
        FormatError: if it is not such a stream.
        LimitError: if a tensor takes more memory than `limits` allow.
    """
    limits, count, total = limits or Limits(), 0, 0
    while start := _parse_start(_exactly(file, _START.size).tobytes(), count):
        name, record = _parse_header(_exactly(file, start[0]).tobytes())
        total += record.size
        limits.need_output(total)
        limits.need_memory(start[1] + record.size, f"tensor {printable(repr(name))}")
        yield name, _restored(record, _exactly(file, start[1]), None, threads, limits)
        count += 1


def _described(tensor: torch.Tensor, name: str) -> tuple[Tensor, Bytes]:
    """Return the dtype and shape of a tensor as safetensors has them, and its bytes."""
    dtype, shape = _NAMES.get(tensor.dtype), tuple(tensor.shape)
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not dtype or (dtype == "F4" and not shape):
        found = f"{tensor.dtype} {list(shape)} on {tensor.device}, {tensor.layout}"
        raise OptionError(f"expected a dense tensor on the CPU of a dtype of safetensors, got {found}")
    if dtype == "F4":  # torch stores two numbers in an element
        shape = (*shape[:-1], 2 * shape[-1])
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
    return Tensor(name, dtype, shape, 0, data.size), data


def _text(header: dict[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > _MOST_HEADER:
        raise OptionError("the name of the tensor is too long")
    return text


def _bytes(data: Buffer) -> Bytes:
    return data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


def _writable(out: Buffer, size: int) -> Bytes:
    view = out.data if isinstance(out, np.ndarray) else memoryview(out)
    if view.nbytes < size or view.readonly or not view.c_contiguous:
        raise OptionError(f"expected a contiguous writable buffer of at least {size} bytes, got {view.nbytes}")
    return _bytes(out)[:size]


def _parse_start(text: bytes, count: int = 0) -> tuple[int, int] | None:
    """Return the bytes of header and payload, or None at the end of a stream of `count` tensors."""
    if len(text) < _START.size:
        raise TruncatedError("the coded tensor is cut off")
    magic, length, size = _START.unpack(text)
    if magic == _END and (length, size) == (0, count):
        return None
    if magic not in (_MAGIC, _END):
        raise FormatError("not a coded tensor")
    if magic == _END or length > _MOST_HEADER or size >= 1 << 63:
        raise DamagedError("the stream of tensors is damaged: tensors are missing")
    return length, size


def _parse_header(text: bytes) -> tuple[str, Record]:
    """Parse a header. Raises DamagedError if it is invalid."""
    try:
        described = parse(text, schema=_SCHEMA)
        dtype, shape, coding = described["dtype"], tuple(described["shape"]), CODINGS[described["coding"]]
        tensorfile.check_shape(described["name"], shape)
        is_known = dtype in tensorfile.ELEMENT_BITS and min((0, *shape)) >= 0
        is_usable = is_known and coding.takes(tensorfile.layout_of(dtype))
        record = Record(dtype, shape, coding, described["checksum"])
        if not is_usable or coding.is_shared or coding.is_difference or not tensorfile.fits(dtype, shape, record.size):
            raise ValueError
    except (FormatError, KeyError, ValueError):
        raise DamagedError("the header of the coded tensor is damaged") from None
    return described["name"], record


def _restored(record: Record, payload: Bytes, out: torch.Tensor | None, threads: int, limits: Limits) -> torch.Tensor:
    dtype, shape = torch_dtype(record.dtype, ""), torch_shape(record)
    limits.need_output(record.size)
    limits.need_memory(record.memory(payload.size), "the coded tensor")
    if out is None:
        out = torch.empty(shape, dtype=dtype)
    elif (out.dtype, tuple(out.shape), out.device.type, out.is_contiguous()) != (dtype, shape, "cpu", True):
        raise OptionError(f"expected a contiguous buffer of {dtype} {list(shape)}, got {out.dtype} {list(out.shape)}")
    if not record.size:
        record.check(np.empty(0, np.uint8), "")
        return out
    target = out.detach().view(-1).view(torch.uint8).numpy()
    content = record.decode_parts(InMemory(payload), None, threads)
    for _ in in_parts(lambda begin, end: content.fill(begin, target[begin:end]), target.size, PART, threads):
        pass
    record.check(target, "")
    return out


def _exactly(file: BinaryIO, size: int) -> Bytes:
    """Read exactly `size` bytes. Memory grows with what arrives, not with what a header claims."""
    parts: list[bytes] = []
    while size:
        part = file.read(min(size, 1 << 24))
        if not part:
            raise TruncatedError("the stream of tensors is cut off")
        parts.append(part)
        size -= len(part)
    return np.frombuffer(b"".join(parts), np.uint8)
