"""The description of a packed file: metadata that says how to restore the original, read with every value checked.

docs/format.md, section 10.1, specifies it. container.py puts it into the header of a file.
"""

import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor, TensorFile
from squeeze.errors import DamagedError, FormatError, printable
from squeeze.packing.bundles import Layout, Member, members_of
from squeeze.packing.codings import CODINGS, LEVELS
from squeeze.packing.record import Record
from squeeze.packing.short_header import lengthened, shortened
from squeeze.system.documents import parse_object, parsed_size
from squeeze.system.limits import Limits

__all__ = ["Description", "damaged", "unfolded"]

FORMAT = 1
_FOLDED = 1 << 12  # bytes: a longer description is compressed
_KEYS = {"format", "level", "size", "sha256", "header", "tensors"}
_PIECE = 1 << 20
_DIGITS = 16  # of a checksum


@dataclass(frozen=True)
class Description:
    """The metadata of a packed file: size, hash and header of the original, and its tensors in the order of their
    bytes.

    Files of torch's have `places`, where each tensor begins, and with bundles the `names` of all tensors. `base` is the
    sorted SHA-256 of the base's files of the same kind.
    """

    size: int
    sha256: str
    header: bytes
    level: str
    records: tuple[Record, ...]
    base: tuple[str, ...] = ()
    places: tuple[int, ...] | None = None
    names: tuple[str, ...] = ()

    @property
    def counts(self) -> list[int]:
        """The numbers of tensors that follow each other in each payload."""
        return members_of([record.coding for record in self.records])

    def original(self, names: list[str], limits: Limits | None, path: Path) -> TensorFile:
        """Return the header of the original file.

        Args:
            names: names of the payloads, in order.
            limits: bounds of memory.
            path: the packed file, for messages.

        Raises FormatError if there can be no such file, and LimitError.
        """
        if self.places is None:
            return tensorfile.parse(path, self.size, self.header, limits)
        names = list(self.names) or names
        if not len(set(names)) == len(names) == len(self.records) == len(self.places):
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
        header = shortened(self.header) if self.places is None else self.header
        described: dict[str, Any] = {
            "format": FORMAT,
            "level": self.level,
            "size": self.size,
            "sha256": self.sha256,
            "header": base64.b64encode(zlib.compress(header, 9)).decode(),
            "tensors": self._entries(),
        }
        if self.base:
            described["base"] = list(self.base)
        if self.places is not None:
            described["places"] = list(self.places)
        if self.names:
            described["names"] = list(self.names)
        return json.dumps(described, separators=(",", ":"))

    def _entries(self) -> list[Any]:
        """Return what JSON has for each payload. Names, dtypes and shapes are in the header of a safetensors file."""
        entries: list[Any] = []
        first = 0
        for count in self.counts:
            records = self.records[first : first + count]
            first += count
            coding = records[0].coding
            if not isinstance(coding, Member):
                entries.append(_as_json(records[0]))
                continue
            checksums = "".join(f"{record.checksum:016x}" for record in records)
            entry: dict[str, Any] = {**coding.bundle.layout.to_json(), "checksums": checksums}
            if self.places is not None:
                entry |= {"dtype": records[0].dtype, "shapes": [list(record.shape) for record in records]}
            entries.append(entry)
        return entries

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
        except (FormatError, KeyError, TypeError, ValueError, zlib.error):
            raise damaged("it cannot be read") from None


def damaged(why: str) -> DamagedError:
    """Return the error for a damaged description."""
    return DamagedError(f"the description of the packed checkpoint is damaged: {why}")


def _description(described: dict[str, Any], limits: Limits) -> Description:
    """Parse the values. Raises KeyError, TypeError, ValueError, FormatError or zlib.error if any is invalid."""
    more = {"base", "places", "names"} if "places" in described else {"base"}
    if not _KEYS <= described.keys() <= _KEYS | more:
        raise ValueError
    header = unfolded(described["header"], tensorfile.MAX_HEADER + 8, limits, "the header of the original")
    size, entries = _number(described["size"]), _list(described["tensors"])
    is_torch, records = "places" in described, list[Record]()
    header = header if is_torch else lengthened(header)
    tensors: tuple[Tensor, ...] = ()
    if not is_torch and any(isinstance(entry, dict) for entry in entries):
        tensors = tensorfile.parse(Path(), size, header, limits).tensors
    for entry in entries:
        records += _bundle(entry, tensors, len(records), is_torch) if isinstance(entry, dict) else [_record(*entry)]
    return Description(
        *(size, _hash(described["sha256"]), header, _checked_choice(described["level"], LEVELS), tuple(records)),
        tuple(map(_hash, _list(described.get("base", [])))),
        tuple(map(_number, _list(described["places"]))) if is_torch else None,
        tuple(map(_name, _list(described["names"]))) if "names" in described else (),
    )


def _bundle(entry: dict[str, Any], originals: Sequence[Tensor], first: int, is_torch: bool) -> list[Record]:
    """Parse the entry of a bundle.

    Args:
        entry: the entry.
        originals: the original's tensors, in a file of safetensors.
        first: number of the first tensor of the bundle.
        is_torch: whether the entry has dtype and shapes itself.
    """
    if entry.keys() - {"classes"} != {"codings", "sizes", "checksums"} | ({"dtype", "shapes"} if is_torch else set()):
        raise ValueError
    text = entry["checksums"]
    count = len(text) // _DIGITS
    checksums = [int(_hash(text[_DIGITS * k : _DIGITS * (k + 1)], _DIGITS), 16) for k in range(count)]
    tensors = originals[first : first + count]
    dtypes = [entry["dtype"]] * count if is_torch else [tensor.dtype for tensor in tensors]
    shapes: Sequence[Any] = _list(entry["shapes"]) if is_torch else [list(tensor.shape) for tensor in tensors]
    if _DIGITS * count != len(text) or count < 2 or not len(shapes) == len(dtypes) == count or len(set(dtypes)) > 1:
        raise ValueError
    if dtypes[0] not in tensorfile.ELEMENT_BITS:
        raise ValueError
    layout = Layout.from_json(entry, CODINGS, count)
    records = [
        Record(dtypes[0], tuple(map(_number, _list(shape))), layout.codings[0], checksum)
        for shape, checksum in zip(shapes, checksums, strict=True)
    ]
    for record in records:
        tensorfile.check_shape("", record.shape)
        if not tensorfile.fits(record.dtype, record.shape, record.size):
            raise ValueError
    members = layout.members(records[0].layout, [record.size for record in records])
    return [replace(record, coding=member) for record, member in zip(records, members, strict=True)]


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


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode()
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
