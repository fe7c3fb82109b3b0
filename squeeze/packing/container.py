"""The packed file: a safetensors file of uint8 payloads whose metadata describes how to restore the original.

description.py has that metadata. docs/format.md specifies it. Payloads are coded by codings.py, files and folders by
pack.py.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import TensorFile, named
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing import bundling
from squeeze.packing.bundles import shares
from squeeze.packing.codings import longest_named
from squeeze.packing.description import Description, damaged
from squeeze.packing.record import Record
from squeeze.packing.sources import Source
from squeeze.system.limits import Limits

__all__ = [
    "CHECKSUM",
    "KEY",
    "Coded",
    "PackedFile",
    "check_limits",
    "describe",
    "describes",
    "header_bytes",
    "header_checksum",
    "header_of",
    "is_packed",
    "read",
    "reserve",
]

_SIZE = 8  # bytes of the length of a header
_PADDING = 1 << 12  # a header is padded to what was reserved if that adds less than one in so many bytes
Coded = tuple[tuple[Record, ...], int]  # the tensors of a payload, and its size
_ADAPTER = "adapter "  # how the value under KEY begins in an adapter (lm/adapter.py)
KEY = "squeeze"  # in __metadata__
CHECKSUM = "squeeze.checksum"


def header_of(
    source: Source, level: str, base: tuple[str, ...], coded: Sequence[Coded], sha256: str, length: int
) -> bytes:
    """Build the header of a packed file, padded to `length` bytes unless these are many for the file.

    Args:
        source: the original file.
        level: the level of packing.
        base: hashes of the base that tensors may refer to.
        coded: the records of the tensors in each payload, and its size.
        sha256: hash of the original.
        length: bytes that were reserved for the header.
    """
    file, records = source.file, tuple(record for payload, _ in coded for record in payload)
    needed = base if any(record.coding.is_difference for record in records) else ()
    description = _description(source, sha256, level, records, needed)
    sizes = [size for _, size in coded]
    header = header_bytes(_names(file, [len(payload) for payload, _ in coded]), sizes, description.to_text())
    if _PADDING * (length - len(header)) > sum(sizes):
        return header
    return _header(header[_SIZE:], max(length, len(header)))


def reserve(source: Source, level: str, base: tuple[str, ...], shared: Container[str] = ()) -> int:
    """Return a number of bytes that fits a header for any coding of `source`.

    Args:
        source: the original file.
        level: the level of packing.
        base: hashes of the base that tensors may refer to.
        shared: names of tensors that may share bytes with others.
    """
    file, records, sizes = source.file, list[Record](), list[int]()
    counts = bundling.planned(file, shared)
    for count in counts:
        tensors = file.tensors[len(records) : len(records) + count]
        sizes.append(sum(tensor.size for tensor in tensors))
        longest = longest_named(tensors[0].layout, bool(base), tensors[0].name in shared and count == 1)
        if count == 1:
            records.append(Record.of(tensors[0], longest))
        else:
            records += bundling.longest_records(tensors, longest)
    description = _description(source, "0" * 64, level, tuple(records), base)
    return len(header_bytes(_names(file, counts), sizes, description.to_json()))


def _description(
    source: Source, sha256: str, level: str, records: tuple[Record, ...], base: tuple[str, ...]
) -> Description:
    """Return the description of a file.

    Args:
        source: the original file.
        sha256: hash of the original.
        level: the level of packing.
        records: of all tensors.
        base: hashes of the base that tensors refer to.
    """
    file, names = source.file, tuple[str, ...]()
    if source.is_torch and any(record.coding.is_member for record in records):
        names = tuple(tensor.name for tensor in file.tensors)
    return Description(file.size, sha256, file.header, level, records, base, _places(source), names)


def _names(file: TensorFile, counts: Sequence[int]) -> list[str]:
    """Return the names of payloads, which are those of their first tensors. counts: of the tensors of each."""
    return [file.tensors[end - count].name for end, count in zip(accumulate(counts), counts, strict=True)]


def _places(source: Source) -> tuple[int, ...] | None:
    """Return where the tensors begin in a file of torch's, or None for safetensors."""
    return tuple(tensor.begin for tensor in source.file.tensors) if source.is_torch else None


def header_bytes(names: list[str], sizes: list[int], description: str) -> bytes:
    """Return a packed file's header for payloads of these sizes. description: its text, see `Description.to_text`."""
    checksum = header_checksum(names, sizes, description)
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", CHECKSUM: checksum, KEY: description}}
    offset = 0
    for name, size in zip(names, sizes, strict=True):
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return _header(text, _SIZE + -(-len(text) // 8) * 8)


def header_checksum(names: Sequence[str], sizes: Sequence[int], description: str) -> str:
    """Return the checksum of all that a packed file's header says: XXH3-64, as hexadecimal digits."""
    state = xxhash.xxh3_64(description.encode(errors="surrogatepass"))
    for name, size in zip(names, sizes, strict=True):
        state.update(b"\0" + name.encode() + b"\0" + size.to_bytes(8, "little"))
    return state.hexdigest()


def _header(text: bytes, length: int) -> bytes:
    """Return the header of a file of safetensors, padded with spaces to `length` bytes. Raises SqueezeError."""
    if length - _SIZE > tensorfile.MAX_HEADER:
        raise SqueezeError("the packed header would exceed the limit of safetensors: split the checkpoint into shards")
    return (length - _SIZE).to_bytes(_SIZE, "little") + text.ljust(length - _SIZE)


@dataclass(frozen=True)
class PackedFile:
    """A packed file whose header was checked.

    file: its tensors are the payloads, in the order of `description.records`; the tensors of a bundle all have its
    payload. original: the file that was packed.
    """

    file: TensorFile
    description: Description
    original: TensorFile

    @property
    def coded_sizes(self) -> list[int]:
        """The bytes of each tensor's payload, or its share of the payload of a bundle."""
        sizes, first = list[int](), 0
        for count in self.description.counts:
            raw = [record.size for record in self.description.records[first : first + count]]
            sizes += shares(raw, self.file.tensors[first].size)
            first += count
        return sizes

    @property
    def is_torch(self) -> bool:
        """True if the original is one of torch's files, not of safetensors."""
        return self.description.places is not None


def is_packed(file: TensorFile) -> bool:
    """Return whether a file of safetensors is packed."""
    return describes(file.metadata)


def describes(metadata: Mapping[str, str] | None) -> bool:
    """Return whether metadata has a description, valid or damaged. Adapters of language models use the same key."""
    return metadata is not None and KEY in metadata and not metadata[KEY].startswith(_ADAPTER)


def read(path: Path, limits: Limits | None = None) -> PackedFile:
    """Read the header of a packed file.

    Raises:
        FormatError: if `path` is not a packed file.
        DamagedError: if its header contradicts itself.
        LimitError: if reading the header takes more memory than `limits` allow.
    """
    return describe(tensorfile.read(path, limits), limits)


def describe(file: TensorFile, limits: Limits | None = None) -> PackedFile:
    """Parse the description of a file whose header was checked. Raises as `read`."""
    if file.metadata is None or not describes(file.metadata):
        raise FormatError("not a packed checkpoint: it has no description by squeeze")
    text, payloads = file.metadata[KEY], file.tensors
    found = header_checksum([one.name for one in payloads], [one.size for one in payloads], text)
    if file.metadata.get(CHECKSUM) != found:
        raise damaged("its checksum differs")
    description = Description.from_text(text, limits or Limits())
    counts = description.counts
    if len(counts) != len(payloads):
        raise damaged("it describes other tensors")
    try:
        original = description.original([tensor.name for tensor in payloads], limits, file.path)
    except FormatError as error:
        raise damaged(f"the original: {error}") from None
    if len(original.tensors) != len(description.records):
        raise damaged("it describes other tensors")
    if _names(original, counts) != [tensor.name for tensor in payloads]:
        raise damaged("it describes tensors with other names")
    places = [one for one, count in zip(payloads, counts, strict=True) for _ in range(count)]
    tensors = [
        replace(place, name=tensor.name) if place.name != tensor.name else place
        for place, tensor in zip(places, original.tensors, strict=True)
    ]
    expanded = replace(file, tensors=tuple(tensors))
    _check(expanded, original, description)
    return PackedFile(expanded, description, original)


def _check(file: TensorFile, original: TensorFile, description: Description) -> None:
    """Raise DamagedError if the description does not match the file's tensors."""
    for tensor, before, record in zip(file.tensors, original.tensors, description.records, strict=True):
        if tensor.dtype != "U8" or not record.is_of(before):
            raise damaged(f"{named(tensor.name)} has another dtype or shape")
        coding = record.coding
        if not coding.takes(record.layout) or (coding.is_stored and tensor.size != record.size):
            raise damaged(f"{named(tensor.name)} has an invalid coding")
        if coding.is_difference and not description.base:
            raise damaged(f"{named(tensor.name)} is a difference, but no base is named")


def check_limits(packed: PackedFile, limits: Limits, large: int | None = None) -> None:
    """Raise LimitError if decoding a tensor takes more memory than allowed.

    large: bytes from which on tensors are decoded in parts.
    """
    for tensor, record in zip(packed.file.tensors, packed.description.records, strict=True):
        limits.need_memory(record.memory(tensor.size, large), named(tensor.name))
