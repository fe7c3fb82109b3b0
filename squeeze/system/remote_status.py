"""What a storage says of an object, as the status of a file: its size, its time, and what names its version."""

import hashlib
import os
import stat
import time
from contextlib import suppress
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

__all__ = ["facts_of", "has_version", "status_of", "version_of"]

_TIMES = ("mtime", "LastModified", "Last-Modified", "last_modified", "updated", "created")
_NAMED = ("VersionId", "generation", "ETag", "etag", "blob_id")  # of versions, the most exact first
_VERSION = ("ETag", "etag", "generation", "blob_id", *_TIMES)
_STARTED = time.time()  # stands for the time of what has none
_FOLDER = 0o755


def version_of(info: dict[str, Any]) -> str:
    """What the storage calls a version, in its own words; nothing where it names none."""
    return str(next(filter(None, map(info.get, _NAMED)), ""))


def status_of(info: dict[str, Any]) -> os.stat_result:
    """What a file's status would be: the inode is made of what names a version of an object, or, where nothing does, of
    when this process began."""
    is_folder = info["type"] == "directory"
    mode = stat.S_IFDIR | _FOLDER if is_folder else stat.S_IFREG | _file_mode()
    facts = facts_of(info)
    modified = next(filter(None, (_seconds(info.get(key)) for key in _TIMES)), _STARTED)
    number = _inode(facts if any(facts) else _STARTED)
    return os.stat_result(
        (mode, number, 0, 1, os.geteuid(), os.getegid(), info["size"] or 0, *[int(modified)] * 3),
        {"st_atime_ns": int(modified * 1e9), "st_mtime_ns": int(modified * 1e9), "st_ctime_ns": 0},
    )


def has_version(status: os.stat_result) -> bool:
    """Whether a status has what names a version: one without it is another in each process."""
    return status.st_ino != _inode(_STARTED)


def _inode(version: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(version).encode()).digest()[:7])


def facts_of(info: dict[str, Any]) -> list[object]:
    """What names the version of an object."""
    return [_fact(info.get(key)) for key in _VERSION]


def _fact(value: object) -> object:
    """A listing has times in other words than an object's own header."""
    return int(value.timestamp()) if isinstance(value, datetime) else value


def _file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _seconds(when: object) -> float:
    """Since 1970; 0 where that is not known."""
    with suppress(ValueError):
        when = _time_of(when) if isinstance(when, str) else when
    if isinstance(when, datetime):
        return when.timestamp()
    return float(when) if isinstance(when, int | float) else 0.0


def _time_of(text: str) -> datetime:
    """Raises ValueError where a text is none. Servers of HTTP write times as mail does."""
    with suppress(ValueError):
        return datetime.fromisoformat(text)
    return parsedate_to_datetime(text)
