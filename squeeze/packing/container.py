"""The packed file: a safetensors file of uint8 payloads whose metadata describes how to restore the original.

`Description` is that metadata, which is read with every value checked. docs/format.md specifies it. Payloads are coded
by codings.py, files and folders by pack.py.
"""

import base64
import json
import re
import zlib
from collections.abc import Container, Mapping, Sequence
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
_FOLDED = 1 << 12  # bytes: a longer description is compressed
_SIZE = 8  # bytes of the length of a header
_PADDING = 256  # a header is padded to what was reserved if that adds less than one in so many bytes
_KEYS = {"format", "level", "size", "sha256", "header", "tensors"}
_PIECE = 1 << 20


@dataclass(frozen=True)
class Description:
    """The metadata of a packed file: size, hash and header of the original, and its tensors in the order of their
    bytes.

    base: sorted SHA-256 of the base's files of the same kind. places: where each tensor begins, in a file of torch's.
    """

    size: int
    sha256: str
    header: bytes
    level: str
    records: tuple[Record, ...]
    base: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None

    def original(self, names: list[str], limits: Limits | None, path: Path) -> TensorFile:
        """Return the header of the original file.

        Args:
            names: names of the tensors, in order.
            limits: bounds of memory.
            path: the packed file, for messages.

        Raises FormatError if there can be no such file, and LimitError.
        """
        if self.places is None:
            return tensorfile.parse(path, self.size, self.header, limits)
        if not len(names) == len(self.records) == len(self.places):
            raise FormatError("its tensors are others")
        tensors, end, between = [], 0, 0
        for name, record, begin in zip(names, self.records, self.places, strict=True):
            tensorfile.check_shape(name, record.shape)
            tensors.append(Tensor(name, record.dtype, record.shape, begin, begin + record.size))
            between += begin - end
            if begin < end or not tensorfile.fits(record.dtype, record.shape, record.size):
                raise FormatError(f"{tensorfile.named(name)} overlaps another tensor or has an invalid size")
            end = begin + record.size
        if end > self.size or between + self.size - end != len(self.header):
            raise FormatError("its tensors and gaps do not add up to the file")
        return TensorFile(path, self.size, self.header, None, tuple(tensors))

    def to_text(self) -> str:
        """Return the description as JSON; a long one as base64 of its zlib stream."""
        text = self.to_json()
        if len(text) <= _FOLDED:
            return text
        return min(text, base64.b64encode(zlib.compress(text.encode())).decode(), key=len)

    def to_json(self) -> str:
        """Return the description as JSON."""
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
        """Parse a description.

        Raises:
            FormatError: if it is of another format.
            DamagedError: if it is not a text that `to_text` writes.
            LimitError: if parsing it takes more memory than `limits` allow.
        """
        label = "the description of the packed checkpoint"
        try:
            if not text.startswith("{"):
                text = unfolded(text, tensorfile.MAX_HEADER, limits, label).decode()
            limits.need_memory(parsed_size(text), label)
            described = parse_object(text)
            version = _number(described.get("format"))
        except (FormatError, ValueError, zlib.error):
            raise damaged("it cannot be read") from None
        if version != FORMAT:
            raise FormatError(f"packed format {printable(version)} is unknown: use a newer squeeze")
        try:
            return _description(described, limits)
        except (KeyError, TypeError, ValueError, zlib.error):
            raise damaged("it cannot be read") from None


def damaged(why: str) -> DamagedError:
    """Return the error for a damaged description."""
    return DamagedError(f"the description of the packed checkpoint is damaged: {why}")


def _description(described: dict[str, Any], limits: Limits) -> Description:
    """Parse the values. Raises KeyError, TypeError, ValueError or zlib.error if any is invalid."""
    if not _KEYS <= described.keys() <= _KEYS | {"base", "places"}:
        raise ValueError
    header = unfolded(described["header"], tensorfile.MAX_HEADER + 8, limits, "the header of the original")
    return Description(
        *(_number(described["size"]), _hash(described["sha256"]), header, _checked_choice(described["level"], LEVELS)),
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
        *(dtype, tuple(map(_number, _list(shape)))),
        *(CODINGS[_checked_choice(coding, CODINGS)], int(_hash(checksum, 16), 16)),
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


def _checked_choice(value: Any, choices: Any) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError
    return value


def _hash(value: Any, digits: int = 64) -> str:
    if not isinstance(value, str) or not re.fullmatch(f"[0-9a-f]{{{digits}}}", value):
        raise ValueError
    return value


def unfolded(text: Any, max_size: int, limits: Limits, label: str) -> bytes:
    """Decompress base64 text of zlib, piece by piece.

    Args:
        text: the text.
        max_size: bound of the result in bytes.
        limits: bounds of memory, for parsing the result as JSON.
        label: what the bytes are, for the message.

    Raises ValueError or zlib.error if the text is invalid or the result longer than `max_size`, and LimitError.
    """
    if not isinstance(text, str):
        raise ValueError
    coded, unpacker, pieces, size = base64.b64decode(text, validate=True), zlib.decompressobj(), [], 0
    while not unpacker.eof:
        pieces.append(unpacker.decompress(coded, _PIECE))
        size, coded = size + len(pieces[-1]), unpacker.unconsumed_tail
        limits.need_memory(8 * size, label)
        if size > max_size or not (pieces[-1] or coded or unpacker.eof):
            raise ValueError
    if unpacker.unused_data:
        raise ValueError
    return b"".join(pieces)


_ADAPTER = "adapter "  # how the value under KEY begins in an adapter (lm/adapter.py)
KEY = "squeeze"  # in __metadata__


def header_of(
    source: Source, level: str, base: tuple[str, ...], coded: Sequence[tuple[Record, int]], sha256: str, length: int
) -> bytes:
    """Build the header of a packed file, padded to `length` bytes unless these are many for the file.

    Args:
        source: the original file.
        level: the level of packing.
        base: hashes of the base that tensors may refer to.
        coded: the record of each tensor, and the size of its payload.
        sha256: hash of the original.
        length: bytes that were reserved for the header.
    """
    file, records = source.file, tuple(record for record, _ in coded)
    needed = base if any(record.coding.is_difference for record in records) else ()
    description = Description(file.size, sha256, file.header, level, records, needed, _places(source))
    sizes = [size for _, size in coded]
    header = header_bytes([tensor.name for tensor in file.tensors], sizes, description.to_text())
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
    file, sizes = source.file, [tensor.size for tensor in source.file.tensors]
    longest = [longest_named(tensor.layout, bool(base), tensor.name in shared) for tensor in file.tensors]
    records = tuple(Record.of(tensor, coding) for tensor, coding in zip(file.tensors, longest, strict=True))
    description = Description(file.size, "0" * 64, file.header, level, records, base, _places(source))
    return len(header_bytes([tensor.name for tensor in file.tensors], sizes, description.to_json()))


def _places(source: Source) -> tuple[int, ...] | None:
    """Return where the tensors begin in a file of torch's, or None for safetensors."""
    return tuple(tensor.begin for tensor in source.file.tensors) if source.is_torch else None


def header_bytes(names: list[str], sizes: list[int], description: str) -> bytes:
    """Return a packed file's header for payloads of these sizes. description: its text, see `Description.to_text`."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", KEY: description}}
    offset = 0
    for name, size in zip(names, sizes, strict=True):
        entries[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    return _header(text, _SIZE + -(-len(text) // 8) * 8)


def _header(text: bytes, length: int) -> bytes:
    """Return the header of a file of safetensors, padded with spaces to `length` bytes. Raises SqueezeError."""
    if length - _SIZE > tensorfile.MAX_HEADER:
        raise SqueezeError("the packed header would exceed the limit of safetensors: split the checkpoint into shards")
    return (length - _SIZE).to_bytes(_SIZE, "little") + text.ljust(length - _SIZE)


@dataclass(frozen=True)
class PackedFile:
    """A packed file whose header was checked.

    file: its tensors are the payloads, in the order of `description.records`. original: the file that was packed.
    """

    file: TensorFile
    description: Description
    original: TensorFile

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
    description = Description.from_text(file.metadata[KEY], limits or Limits())
    try:
        original = description.original([tensor.name for tensor in file.tensors], limits, file.path)
    except FormatError as error:
        raise damaged(f"the original: {error}") from None
    _check(file, original, description)
    return PackedFile(file, description, original)


def _check(file: TensorFile, original: TensorFile, description: Description) -> None:
    """Raise DamagedError if the description does not match the file's tensors."""
    if len(original.tensors) != len(file.tensors) or len(description.records) != len(file.tensors):
        raise damaged("it describes other tensors")
    if set(original.by_name) != set(file.by_name):
        raise damaged("it describes tensors with other names")
    for tensor, record in zip(file.tensors, description.records, strict=True):
        before = original.by_name[tensor.name]
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
