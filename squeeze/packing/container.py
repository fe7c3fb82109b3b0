"""The packed file: a safetensors file of uint8 payloads whose metadata says how to restore the original.

`Description` is that metadata; docs/format.md specifies it. Payload bytes are
codecs/tensors/floats.py's and codecs/tensors/floats_archive.py's, files and folders pack.py's.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile, named
from squeeze.codecs.tensors import decoded_archive, fixed, ulps, zeros
from squeeze.codecs.tensors.content import Content, InMemory
from squeeze.codecs.tensors.decoded import Decoded
from squeeze.codecs.tensors.float_writer import MemoryWriter
from squeeze.errors import DamagedError, FormatError, SqueezeError, VerifyError
from squeeze.packing import fields
from squeeze.packing.description import (
    ARCHIVE,
    CODINGS,
    DELTA,
    FIXED,
    LEVELS,
    RANS,
    RELAID,
    STORED,
    ULPS,
    ZEROS,
    Description,
    Record,
    damaged,
)
from squeeze.packing.encoding import FLOATS, coder, write_tensor
from squeeze.packing.sources import Source
from squeeze.system.limits import Limits

__all__ = [
    "ARCHIVE",
    "DELTA",
    "FIXED",
    "KEY",
    "LEVELS",
    "RANS",
    "STORED",
    "ULPS",
    "ZEROS",
    "Description",
    "PackedFile",
    "Record",
    "allowed",
    "base_of",
    "check_limits",
    "check_tensor",
    "coder",
    "decode_tensor",
    "describe",
    "describes",
    "encode_tensor",
    "faulty",
    "header_bytes",
    "is_packed",
    "naming",
    "no_base",
    "other_checksum",
    "places_of",
    "read",
    "reader",
    "reserve",
]

_ADAPTER = "adapter "  # as lm/adapter.py begins what it says under KEY
KEY = "squeeze"  # in __metadata__
_PIECE = 1 << 20


def header_bytes(names: list[str], sizes: list[int], description: Description, length: int = 0) -> bytes:
    """A packed file's header for payloads of these sizes, padded with spaces to `length` bytes where it is given."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", KEY: description.to_text()}}
    offset = 0
    for name, size in zip(names, sizes, strict=True):
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(length - 8, -(-len(text) // 8) * 8))
    if len(text) > tensorfile.MAX_HEADER:
        raise SqueezeError("the packed header would be longer than safetensors allows: split the checkpoint in shards")
    return len(text).to_bytes(8, "little") + text


def places_of(source: Source) -> tuple[int, ...] | None:
    """What a description says of where tensors begin."""
    return tuple(tensor.begin for tensor in source.file.tensors) if source.is_torch else None


def reserve(source: Source, level: str, base: tuple[str, ...]) -> int:
    """Bytes that a header for any coding of `source` fits into."""
    file = source.file

    def longest(dtype: str) -> str:
        possible = (Record(dtype, (), coding, 0) for coding in CODINGS if allowed(coding, tensorfile.layout_of(dtype)))
        return max((record.coding for record in possible if base or not record.is_difference), key=len)

    records = tuple(Record.of(t, longest(t.dtype)) for t in file.tensors)
    sizes = [t.size for t in file.tensors]
    return len(
        header_bytes(
            [tensor.name for tensor in file.tensors],
            sizes,
            Description(file.size, "0" * 64, file.header, level, records, base, places_of(source)),
        )
    )


def base_of(records: Iterable[Record], base: tuple[str, ...]) -> tuple[str, ...]:
    """What a description says of the base of tensors that were packed with it: nothing where none is a difference."""
    return base if any(record.is_difference for record in records) else ()


def allowed(coding: str, dtype: str) -> bool:
    """Whether a tensor that a coder takes for this dtype may be coded so."""
    if coding == FIXED:
        return dtype in fixed.DTYPES
    fits = dtype in (fields.DTYPES if coding in RELAID else FLOATS)
    return coding in CODINGS and (fits or not (coding in RELAID or coding == ULPS or coding.startswith(ZEROS)))


@dataclass(frozen=True)
class PackedFile:
    """A checked packed file: the tensors of `file` are the payloads, in the order of `description.records`; `original`
    is what was packed."""

    file: TensorFile
    description: Description
    original: TensorFile

    @property
    def is_torch(self) -> bool:
        """Whether the original was one of torch's files, not of safetensors."""
        return self.description.places is not None


def is_packed(file: TensorFile) -> bool:
    return describes(file.metadata)


def describes(metadata: Mapping[str, str] | None) -> bool:
    """Whether there is a description, sound or damaged; adapters of language models have the same key."""
    return metadata is not None and KEY in metadata and not metadata[KEY].startswith(_ADAPTER)


def read(path: Path, limits: Limits | None = None) -> PackedFile:
    """Raises FormatError where `path` is not a packed file, DamagedError where it contradicts itself, and LimitError
    where reading what it says of itself takes more memory than `limits` allow."""
    return describe(tensorfile.read(path, limits), limits)


def describe(file: TensorFile, limits: Limits | None = None) -> PackedFile:
    """As `read`, of a file whose header was checked."""
    if file.metadata is None or not describes(file.metadata):
        raise FormatError("not a packed checkpoint: it has no description by squeeze")
    description = Description.from_text(file.metadata[KEY], limits or Limits())
    try:
        original = description.original([tensor.name for tensor in file.tensors], limits, file.path)
    except FormatError as error:
        raise damaged(f"of the original, {error}") from None
    _check(file, original, description)
    return PackedFile(file, description, original)


def _check(file: TensorFile, original: TensorFile, description: Description) -> None:
    """Raises DamagedError where the description is not that of the file's tensors."""
    if len(original.tensors) != len(file.tensors) or len(description.records) != len(file.tensors):
        raise damaged("it is of other tensors")
    if set(original.by_name) != set(file.by_name):
        raise damaged("it is of tensors with other names")
    for tensor, record in zip(file.tensors, description.records, strict=True):
        before = original.by_name[tensor.name]
        if tensor.dtype != "U8" or not record.is_of(before):
            raise damaged(f"{named(tensor.name)} is another")
        if not allowed(record.coding, record.layout) or (record.coding == STORED and tensor.size != record.size):
            raise damaged(f"{named(tensor.name)} has an impossible coding")
        if record.is_difference and not description.base:
            raise damaged(f"{named(tensor.name)} is a difference, but no base is named")


def check_limits(packed: PackedFile, limits: Limits, large: int | None = None) -> None:
    """Raises LimitError where decoding a tensor takes more memory than may be taken. large: bytes from which on tensors
    are decoded in parts."""
    for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
        limits.need_memory(record.memory(tensor.size, large), named(tensor.name))


def encode_tensor(
    data: Bytes, tensor: Tensor, level: str, base: Bytes | None, threads: int, verify: bool
) -> tuple[str, Bytes]:
    """The coding and payload of a tensor's bytes; `base` are the same tensor's bytes in the base, if it has them.

    Raises VerifyError where the payload does not decode to the tensor, a fault of the machine.
    """
    writer, other = MemoryWriter(), InMemory(base) if base is not None else None
    coding, size = write_tensor(InMemory(data), tensor, level, other, threads, writer)
    payload = writer.payload(0 if coding == STORED else size)
    if coding == STORED:
        return STORED, data
    _verify(payload, tensor, coding, base, threads, data if verify else None)
    return coding, payload


def faulty() -> VerifyError:
    return VerifyError("a coded tensor did not decode to itself: this machine's memory or processor is faulty")


def _verify(payload: Bytes, tensor: Tensor, coding: str, base: Bytes | None, threads: int, data: Bytes | None) -> None:
    """Raises VerifyError where `payload` does not decode to `data`, if given."""
    record = Record.of(tensor, coding)
    if data is not None and not _same(decode_tensor(payload, record, base, threads), data):
        raise faulty()


def _same(one: Bytes, other: Bytes) -> bool:
    """Whether two arrays are equal, without an array of answers as large as they are."""
    pieces = range(0, one.size, _PIECE)
    return one.size == other.size and all(np.array_equal(one[i : i + _PIECE], other[i : i + _PIECE]) for i in pieces)


def decode_tensor(payload: Bytes, record: Record, base: Bytes | None, threads: int) -> Bytes:
    """The raw bytes of a tensor. Raises DamagedError."""
    if record.coding == STORED:
        return payload
    if record.coding == FIXED:
        return fixed.decode(payload, record.layout, record.size, threads)
    level = "archive" if record.coding.endswith(ARCHIVE) else "runtime"
    if record.coding in RELAID:
        kind = record.coding.partition("+")[0]
        fields.check(record.shape, kind)
        laid: Bytes = coder(level).decode(payload, "U8", fields.size_of(record.size, kind), threads, None)
        return fields.restored(laid, record.shape, kind)
    if record.coding == ULPS:
        return ulps.decode(payload, _checked(base, record), record.layout, threads)
    if record.coding.startswith(ZEROS):
        return zeros.decode(payload, record.layout, record.size, reader(record, 1), threads)
    data: Bytes = coder(level).decode(payload, record.layout, record.size, threads, None)
    if record.coding.startswith(DELTA):
        np.bitwise_xor(data, _checked(base, record), out=data)
    return data


def reader(record: Record, threads: int) -> Callable[[Content, str, int], Content]:
    """What reads in parts what floats have been coded to."""
    return partial(decoded_archive.decoded, threads=threads) if record.coding.endswith(ARCHIVE) else Decoded


def _checked(base: Bytes | None, record: Record) -> Bytes:
    if base is None or base.size != record.size:
        raise no_base()
    return base


def no_base() -> FormatError:
    return FormatError("the base has no such tensor: it is not the base that this checkpoint is the difference from")


def check_tensor(data: Bytes, record: Record, name: str) -> None:
    if xxhash.xxh3_64_intdigest(data.data) != record.checksum:
        raise other_checksum(name)


def other_checksum(name: str) -> DamagedError:
    return DamagedError(f"{named(name)}: its checksum differs: the file is damaged")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Names the tensor that is damaged."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
