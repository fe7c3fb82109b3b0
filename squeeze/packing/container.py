"""The packed file: a safetensors file of uint8 payloads whose metadata says how to restore the original.

`Description` is that metadata; docs/format.md specifies it. How payloads are coded is codings.py's, files and folders
pack.py's.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import TensorFile, named
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing.codings import longest_named
from squeeze.packing.description import Description, damaged
from squeeze.packing.record import Record
from squeeze.packing.sources import Source
from squeeze.system.limits import Limits

__all__ = [
    "KEY",
    "PackedFile",
    "check_limits",
    "describe",
    "describes",
    "header_bytes",
    "header_of",
    "is_packed",
    "read",
    "reserve",
]

_ADAPTER = "adapter "  # as lm/adapter.py begins what it says under KEY
KEY = "squeeze"  # in __metadata__


def header_of(
    source: Source, level: str, base: tuple[str, ...], coded: Sequence[tuple[Record, int]], sha256: str, length: int
) -> bytes:
    """Return the header of a packed file, padded to `length` bytes. base: what its tensors may be differences from;
    coded: the record of each tensor, and the size of its payload; sha256: of the source."""
    file, records = source.file, tuple(record for record, _ in coded)
    needed = base if any(record.coding.is_difference for record in records) else ()
    description = Description(file.size, sha256, file.header, level, records, needed, _places(source))
    return header_bytes([tensor.name for tensor in file.tensors], [size for _, size in coded], description, length)


def reserve(source: Source, level: str, base: tuple[str, ...]) -> int:
    """Return the bytes that a header for any coding of `source` fits into."""
    file, sizes = source.file, [tensor.size for tensor in source.file.tensors]
    records = tuple(Record.of(tensor, longest_named(tensor.layout, bool(base))) for tensor in file.tensors)
    description = Description(file.size, "0" * 64, file.header, level, records, base, _places(source))
    return len(header_bytes([tensor.name for tensor in file.tensors], sizes, description))


def _places(source: Source) -> tuple[int, ...] | None:
    """Where tensors begin, in a file that is none of safetensors."""
    return tuple(tensor.begin for tensor in source.file.tensors) if source.is_torch else None


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
        coding = record.coding
        if not coding.takes(record.layout) or (coding.is_stored and tensor.size != record.size):
            raise damaged(f"{named(tensor.name)} has an impossible coding")
        if coding.is_difference and not description.base:
            raise damaged(f"{named(tensor.name)} is a difference, but no base is named")


def check_limits(packed: PackedFile, limits: Limits, large: int | None = None) -> None:
    """Raises LimitError where decoding a tensor takes more memory than may be taken. large: bytes from which on tensors
    are decoded in parts."""
    for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
        limits.need_memory(record.memory(tensor.size, large), named(tensor.name))
