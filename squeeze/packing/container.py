"""The packed file: a safetensors file of uint8 payloads whose metadata says how to restore the original.

`Description` is that metadata; docs/format.md specifies it. How payloads are coded is codings.py's, files and folders
pack.py's.
"""

import base64
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor, TensorFile, named
from squeeze.errors import DamagedError, FormatError, SqueezeError, printable
from squeeze.packing.codings import CODINGS, LEVELS, longest_named
from squeeze.packing.record import Record
from squeeze.packing.sources import Source
from squeeze.system.documents import parse_object, parsed_size
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

FORMAT = 1
_KEYS = {"format", "level", "size", "sha256", "header", "tensors"}
_PIECE = 1 << 20


@dataclass(frozen=True)
class Description:
    """What a packed file says of the original: its hash, header and tensors in the order of their bytes."""

    size: int
    sha256: str
    header: bytes
    level: str
    records: tuple[Record, ...]
    base: tuple[str, ...] = ()  # sorted SHA-256 of the base's files of the same kind
    places: tuple[int, ...] | None = None  # where each tensor begins, in a file that is none of safetensors

    def original(self, names: list[str], limits: Limits | None, path: Path) -> TensorFile:
        """The file that was packed. Raises FormatError where it cannot have been one, and LimitError."""
        if self.places is None:
            return tensorfile.parse(path, self.size, self.header, limits)
        if not len(names) == len(self.records) == len(self.places):
            raise FormatError("it is of other tensors")
        tensors, end, between = [], 0, 0
        for name, record, begin in zip(names, self.records, self.places, strict=True):
            tensorfile.check_shape(name, record.shape)
            tensors.append(Tensor(name, record.dtype, record.shape, begin, begin + record.size))
            between += begin - end
            if begin < end or not tensorfile.fits(record.dtype, record.shape, record.size):
                raise FormatError(f"{tensorfile.named(name)} is impossible where it is")
            end = begin + record.size
        if end > self.size or between + self.size - end != len(self.header):
            raise FormatError("its tensors and other bytes are not the whole file")
        return TensorFile(path, self.size, self.header, None, tuple(tensors))

    def to_text(self) -> str:
        described: dict[str, Any] = {
            "format": FORMAT,
            "level": self.level,
            "size": self.size,
            "sha256": self.sha256,
            "header": base64.b64encode(zlib.compress(self.header, 9)).decode(),
            "tensors": [_as_json(record) for record in self.records],
        }
        if self.base:
            described["base"] = list(self.base)
        if self.places is not None:
            described["places"] = list(self.places)
        return json.dumps(described, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, limits: Limits) -> "Description":
        """Raises FormatError if it is of another format, DamagedError for what `to_text` never writes, and
        LimitError where reading it takes more memory than may be taken."""
        limits.need_memory(parsed_size(text), "the description of the packed checkpoint")
        try:
            described = parse_object(text)
            version = _number(described.get("format"))
        except (FormatError, ValueError):
            raise damaged("it cannot be read") from None
        if version != FORMAT:
            raise FormatError(f"packed format {printable(version)} is unknown: use a newer squeeze")
        try:
            return _description(described, limits)
        except (KeyError, TypeError, ValueError, zlib.error):
            raise damaged("it cannot be read") from None


def damaged(why: str) -> DamagedError:
    return DamagedError(f"the description of the packed checkpoint is damaged: {why}")


def _description(described: dict[str, Any], limits: Limits) -> Description:
    """Raises KeyError, TypeError, ValueError or zlib.error where anything is not as it must be."""
    if not _KEYS <= described.keys() <= _KEYS | {"base", "places"}:
        raise ValueError
    header = unfolded(described["header"], tensorfile.MAX_HEADER + 8, limits, "the header of the original")
    return Description(
        *(_number(described["size"]), _hash(described["sha256"]), header, _one_of(described["level"], LEVELS)),
        tuple(_record(*entry) for entry in _list(described["tensors"])),
        tuple(map(_hash, _list(described.get("base", [])))),
        tuple(map(_number, _list(described["places"]))) if "places" in described else None,
    )


def _as_json(record: Record) -> list[Any]:
    entry = [record.dtype, list(record.shape), record.coding.name, f"{record.checksum:016x}"]
    return entry if record.length is None else [*entry, record.length]


def _record(dtype: Any, shape: Any, coding: Any, checksum: Any, *length: Any) -> Record:
    if not isinstance(dtype, str) or bool(length) == (dtype in tensorfile.ELEMENT_BITS):
        raise ValueError
    return Record(
        *(dtype, tuple(map(_number, _list(shape))), CODINGS[_one_of(coding, CODINGS)], int(_hash(checksum, 16), 16)),
        *map(_number, length),
    )


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError
    return value


def _one_of(value: Any, known: Any) -> str:
    if not isinstance(value, str) or value not in known:
        raise ValueError
    return value


def _hash(value: Any, digits: int = 64) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        raise ValueError
    return value


def unfolded(text: Any, most: int, limits: Limits, what: str) -> bytes:
    """Bytes compressed with zlib, in base64, piece by piece. Raises ValueError or zlib.error for what is something
    else or more than `most` bytes, and LimitError where JSON of so many bytes takes more memory than may be taken."""
    if not isinstance(text, str):
        raise ValueError
    coded, unpacker, pieces, size = base64.b64decode(text, validate=True), zlib.decompressobj(), [], 0
    while not unpacker.eof:
        pieces.append(unpacker.decompress(coded, _PIECE))
        size, coded = size + len(pieces[-1]), unpacker.unconsumed_tail
        limits.need_memory(8 * size, what)
        if size > most or not (pieces[-1] or coded or unpacker.eof):
            raise ValueError
    if unpacker.unused_data:
        raise ValueError
    return b"".join(pieces)


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
