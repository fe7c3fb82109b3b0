"""What a packed file says of the original, as text in its header: written here, and read without believing a word.

docs/format.md specifies it; container.py holds it against the file's tensors.
"""

import base64
import json
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor, TensorFile
from squeeze.errors import DamagedError, FormatError, printable
from squeeze.packing.codings import CODINGS, LEVELS
from squeeze.packing.record import Record
from squeeze.system.json_object import parse_object, parsed_size
from squeeze.system.limits import Limits

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
