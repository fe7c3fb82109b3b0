"""Describe the operations of a run on files, and their results."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.errors import SqueezeError, StorageError, VerifyError

__all__ = [
    "COMPRESS",
    "DECOMPRESS",
    "EXPECTED_ERRORS",
    "HASH",
    "PACK",
    "TEST",
    "UNPACK",
    "VERIFY",
    "File",
    "FileResult",
    "Part",
    "Task",
    "describe_error",
    "result_or_error",
]

COMPRESS, DECOMPRESS, TEST = "compress", "decompress", "test"
PACK, UNPACK, VERIFY = "pack", "unpack", "verify"
EXPECTED_ERRORS = (SqueezeError, OSError, MemoryError)
HASH = -1  # the `begin` of a part that computes the checksums or the hash of the source


@dataclass(frozen=True)
class File:
    """A source file of a run.

    Attributes:
        source: Its path.
        size: Its bytes.
        stamp: A text that changes when the file does.
        target: The output, or None if nothing is written.
        checksum: The expected checksum of its raw bytes, if known.
        version: The store's name of its version, if it has one.
    """

    source: Path
    size: int
    stamp: str
    target: Path | None
    checksum: str = ""
    version: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a file: `length` raw bytes from `begin` on. If `begin` is HASH: the checksums of all parts of `length`
    bytes.
    """

    file: File
    number: int
    begin: int
    length: int


@dataclass(frozen=True)
class Task:
    """The operation of a run on each of its files.

    Attributes:
        operation: The operation.
        options: Keyword arguments of `compress_stream` or `decompress_stream`.
        mark: The end of temporary names.
        overwrite: Whether an existing output may be replaced. If not, it must be equal: it is from a call whose worker
            was lost afterwards, or from a run that was stopped before it recorded the output.
    """

    operation: str
    options: dict[str, Any]
    mark: str
    overwrite: bool = True


@dataclass(frozen=True)
class FileResult:
    """The result of a file or a part.

    Attributes:
        checksum: The checksum of the raw bytes.
        error: What went wrong, or "".
        retryable: Whether a retry may succeed.
        note: What the user should know, or "".
    """

    file: File
    raw: int = 0
    coded: int = 0
    checksum: str = ""
    error: str = ""
    retryable: bool = False
    note: str = ""


def result_or_error(file: File, action: Callable[[], FileResult]) -> FileResult:
    """Return the result of an action on a file, or its error as a result."""
    try:
        return action()
    except EXPECTED_ERRORS as error:
        message, again = describe_error(error, file.source)
        return FileResult(file, error=message, retryable=again)


def describe_error(error: BaseException, source: Path | None = None) -> tuple[str, bool]:
    """Return the message of an expected error about a source, and whether a retry may succeed."""
    if isinstance(error, StorageError):
        return error.strerror or str(error), True
    if isinstance(error, SqueezeError):
        return str(error), isinstance(error, VerifyError)
    if isinstance(error, OSError):
        return error.strerror or str(error), not _lasts(error, source)
    return "not enough memory", True


def _lasts(error: OSError, source: Path | None) -> bool:
    """Return whether an error will recur.

    A missing file next to the source may be due to a request that succeeded and whose answer was lost.
    """
    if error.errno == errno.ENOENT:
        return str(error.filename) == str(source)
    return error.errno in (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EROFS)
