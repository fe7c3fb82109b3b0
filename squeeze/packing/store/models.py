"""The list of a model's files in a store: which objects they consist of."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint.safetensors import check_shape
from squeeze.errors import DamagedError, FormatError, LimitError, OptionError, escaped, printable
from squeeze.system.documents import check, read_object
from squeeze.system.limits import Limits
from squeeze.system.storage import relative

__all__ = ["Entry", "File", "Model", "checked_name"]

_FORMAT = 1
_SCHEMA = {...: {"size": int, "sha256": str, "header": str, "safetensors": bool, "tensors": [[object]]}}  # the files


def checked_name(name: str) -> str:
    """Return the name of a model. Raises OptionError if it cannot be a file's name."""
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > 200:
        raise OptionError(
            f"expected a name without slashes that does not begin with a dot, got {printable(repr(name))}"
        )
    return name


@dataclass(frozen=True)
class Entry:
    """A tensor of a file: its name, dtype and shape, where it begins, and the key of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    key: str


@dataclass(frozen=True)
class File:
    """A file of a model. header: the key of all bytes that belong to no tensor, which are all of a copied file."""

    size: int
    sha256: str
    header: str
    tensors: tuple[Entry, ...]
    is_safetensors: bool

    @property
    def keys(self) -> Iterator[str]:
        """The keys of all objects of the file."""
        yield self.header
        for entry in self.tensors:
            yield entry.key


@dataclass(frozen=True)
class Model:
    """The files of a model by name; a model of one file has the empty name."""

    files: dict[str, File]

    @property
    def keys(self) -> set[str]:
        return {key for file in self.files.values() for key in file.keys}

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files.values())

    def to_bytes(self) -> bytes:
        """Return the model as JSON."""
        described = {
            name: {
                **{"size": file.size, "sha256": file.sha256, "header": file.header, "safetensors": file.is_safetensors},
                "tensors": [[one.name, one.dtype, list(one.shape), one.begin, one.key] for one in file.tensors],
            }
            for name, file in self.files.items()
        }
        return json.dumps({"format": _FORMAT, "files": described}).encode()

    @classmethod
    def read(cls, path: Path, limits: Limits) -> "Model":
        """Read a model. Raises DamagedError if the file is invalid, and FormatError for another format."""
        try:
            described = read_object(path, limits)
            if described.get("format") != _FORMAT:
                raise FormatError(
                    f"{path}: format {printable(described.get('format'))} is unknown: use a newer squeeze"
                )
            return cls(_files(described["files"]))
        except LimitError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, FormatError) as error:
            if isinstance(error, FormatError) and "newer squeeze" in str(error):
                raise
            raise DamagedError(f"{escaped(str(path))}: is damaged") from None


def _files(described: dict[str, Any]) -> dict[str, File]:
    """Parse the files of a model. Raises ValueError or FormatError if one is invalid."""
    check(described, _SCHEMA)
    found: dict[str, File] = {}
    for name, one in described.items():
        path = relative(name) if name else ""
        entries = tuple(map(_entry, one["tensors"]))
        found[path] = File(one["size"], one["sha256"], one["header"], entries, one["safetensors"])
        if any(len(key) != 64 or not set(key) <= set("0123456789abcdef") for key in found[path].keys):
            raise ValueError
    if not found or ("" in found and len(found) > 1):
        raise ValueError
    return found


def _entry(row: list[Any]) -> Entry:
    """Parse a tensor of a file. Raises ValueError or FormatError if it is invalid."""
    label, dtype, shape, begin, key = row
    check([label, dtype, key], [str])
    check(begin, int)
    check(shape, [int])
    check_shape(label, shape)
    if min([begin, *shape]) < 0:
        raise ValueError
    return Entry(label, dtype, tuple(shape), begin, key)
