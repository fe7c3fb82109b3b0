"""The objects of a store: coded tensors and other bytes, each in a file that is named after the hash of its content.

An object may be the difference from another one, its base. docs/format.md, section 27, specifies the file. A file is
written under a temporary name, synced, and renamed, so an object is there completely or not at all.
"""

import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.safetensors import Bytes, Tensor
from squeeze.errors import DamagedError, FormatError, LimitError
from squeeze.packing import codings
from squeeze.packing.coding import Subject
from squeeze.packing.codings import CODINGS
from squeeze.packing.record import Record
from squeeze.packing.store.own import check_own, opened, subfolders
from squeeze.system.documents import check, parse
from squeeze.system.limits import Limits
from squeeze.system.moving import sync

__all__ = ["MOST_CHAIN", "Header", "Objects", "key_of"]

MOST_CHAIN = 8  # differences in a row
_MAGIC = b"SQZO"
_START = struct.Struct("<4sI")
_MOST_HEADER = 1 << 16
_KEY = re.compile("[0-9a-f]{64}")
_SCHEMA = {"dtype": str, "shape": [int], "coding": str, "size": int, "checksum": int, "base": (str, None), "chain": int}


def key_of(data: Bytes) -> str:
    """Return the name of an object: BLAKE2b, 256 bits, of its bytes."""
    return hashlib.blake2b(data.data, digest_size=32).hexdigest()


@dataclass(frozen=True)
class Header:
    """The description of an object.

    base: the key of the object that it is a difference from, if any. chain: the number of differences in a row up to
    it.
    """

    record: Record
    base: str | None
    chain: int
    length: int  # bytes before the payload


class Objects:
    """The objects of a store in a folder."""

    def __init__(self, path: Path, temporary: Path, limits: Limits):
        self.path, self._temporary, self._limits = path, temporary, limits

    def place(self, key: str) -> Path:
        return self.path / key[:2] / key[2:]

    def keys(self) -> Iterator[str]:
        """Yield the keys of all files that are named like objects."""
        for folder in subfolders(self.path):
            for file in sorted(folder.iterdir()):
                if _KEY.fullmatch(folder.name + file.name):
                    yield folder.name + file.name

    def add(self, tensor: Tensor, data: Bytes, level: str, base: str | None, threads: int) -> tuple[str, int]:
        """Keep the bytes of a tensor; return their key, and the bytes that were written.

        An object that exists is decoded and compared. A damaged one is written again.

        Args:
            tensor: dtype and shape.
            data: the bytes.
            level: the level of packing.
            base: the key of an object of the same dtype and shape from which a difference may be stored.
            threads: threads that code.
        """
        key = key_of(data)
        if self.place(key).is_file():
            try:
                if np.array_equal(self.read(key), data):
                    return key, 0
            except (FormatError, LimitError):
                pass
        other, chain = self._base(tensor, base) if base is not None and base != key else (None, 0)
        coding, payload = codings.encode_in_memory(Subject.of(tensor, data, other, threads), level)
        record = Record.of(tensor, coding, xxhash.xxh3_64_intdigest(data.data))
        if not np.array_equal(record.restore(tensor.name, payload, other, threads), data):
            raise DamagedError("a coded tensor did not decode to itself: this machine's memory or processor is faulty")
        is_difference = coding.is_difference
        return key, self._write(key, record, base if is_difference else None, chain if is_difference else 0, payload)

    def _base(self, tensor: Tensor, base: str) -> tuple[Bytes | None, int]:
        """Return the bytes of a base and the length of a chain with it, or (None, 0) if it does not fit.

        A base that cannot be read does not: it may be the difference from a lost object, which is written again now.
        """
        try:
            header = self.header(base)
            if header.chain < MOST_CHAIN and header.record.is_of(Record.of(tensor, codings.STORED)):
                return self.read(base), header.chain + 1
        except (FormatError, LimitError):
            pass
        return None, 0

    def _write(self, key: str, record: Record, base: str | None, chain: int, payload: Bytes) -> int:
        described = {
            **{"dtype": record.dtype, "shape": list(record.shape), "coding": record.coding.name, "size": record.size},
            **{"checksum": record.checksum, "base": base, "chain": chain},
        }
        text = json.dumps(described, separators=(",", ":")).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        target = self.place(key)
        check_own(self.path, target.parent.name)
        target.parent.mkdir(exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._temporary)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_START.pack(_MAGIC, len(text)))
            file.write(text)
            file.write(payload.data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o444)
        Path(name).replace(target)
        sync(target.parent)
        return _START.size + len(text) + payload.size

    def header(self, key: str) -> Header:
        """Return the description of an object. Raises DamagedError if it is missing or damaged."""
        try:
            with opened(self.place(key)) as file:
                magic, length = _START.unpack(file.read(_START.size).ljust(_START.size))
                if magic != _MAGIC or length > _MOST_HEADER:
                    raise DamagedError("its header is damaged")
                text = file.read(length)
                if len(text) != length:  # though what is there may be whole without its padding
                    raise DamagedError("its header is cut off")
                described = parse(text)
        except FileNotFoundError:
            raise DamagedError(f"object {key[:16]} is missing") from None
        except FormatError:
            raise DamagedError(f"object {key[:16]} is damaged") from None
        try:
            check(described, _SCHEMA)
            coding, size, dtype = CODINGS[described["coding"]], described["size"], described["dtype"]
            is_fitting = tensorfile.fits(dtype, described["shape"], size) and min([size, *described["shape"]]) >= 0
            base, is_difference = described["base"], coding.is_difference
            is_key = base is None or (_KEY.fullmatch(base) is not None and base != key)
            is_right = is_fitting and is_key and (base is not None) == is_difference and not coding.is_shared
            if not is_right or not coding.takes(tensorfile.layout_of(dtype)):
                raise ValueError
        except (FormatError, KeyError, ValueError):
            raise DamagedError(f"object {key[:16]} is damaged") from None
        known = dtype in tensorfile.ELEMENT_BITS
        shape = tuple(described["shape"])
        record = Record(dtype, shape, coding, described["checksum"], None if known else size)
        return Header(record, base, described["chain"], _START.size + length)

    def read(self, key: str, threads: int = 1, depth: int = 0) -> Bytes:
        """Return the bytes of an object. Raises DamagedError if it, or an object that it needs, is damaged."""
        header = self.header(key)
        if depth > MOST_CHAIN:
            raise DamagedError(f"object {key[:16]} is damaged: its chain of differences is too long")
        other = self.read(header.base, threads, depth + 1) if header.base else None
        payload = self.payload(key, header)
        self._limits.need_memory(header.record.memory(payload.size), f"object {key[:16]}")
        try:
            return header.record.restore("", payload, other, threads)
        except FormatError:
            raise DamagedError(f"object {key[:16]} is damaged") from None

    def payload(self, key: str, header: Header) -> Bytes:
        """Return the coded bytes of an object."""
        with opened(self.place(key)) as file:
            return np.fromfile(file, np.uint8, offset=header.length)

    def verify(self, key: str, threads: int = 1) -> None:
        """Raise DamagedError if an object does not decode to the bytes that it is named after."""
        if key_of(self.read(key, threads)) != key:
            raise DamagedError(f"object {key[:16]} is another one: its name is not its hash")
