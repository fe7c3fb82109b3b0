"""Temporary files and folders next to a target, and their removal after a process was killed.

A name is `.TARGET.RANDOM.squeeze.tmp`, with a run's mark after `squeeze` if it has one. The process that writes the
file holds a lock on it, which the system releases when the process ends. So a file with such a name that belongs to
this user and is not locked was left by a killed process, and `sweep` deletes those of one target.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from squeeze.system.moving import NAME_LIMIT
from squeeze.system.storage import remote

__all__ = ["MARK", "file_beside", "folder_beside", "is_temporary", "sweep"]

MARK = ".squeeze"
_NAME = re.compile(r"\.(?P<target>.+)\.[a-z0-9_]{8}\.squeeze(-[0-9a-f]+)?\.tmp", re.DOTALL)
_DIGITS = 8  # digits of the digest of a long name
_SHARE = 50  # searching a folder takes at most one in this many seconds
_looked: dict[Path, tuple[float, dict[str, list[str]]]] = {}  # when the search expires, and names by target


def file_beside(target: Path, mark: str = MARK) -> tuple[int, Path]:
    """Create an empty file next to a target and return its locked descriptor and its path."""
    while True:
        handle, name = tempfile.mkstemp(prefix=f".{_name_part(target)}.", suffix=f"{mark}.tmp", dir=target.parent)
        with suppress(OSError):  # file systems without locks are never swept
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(handle).st_nlink:
            return handle, Path(name)
        os.close(handle)  # swept by another process before it was locked


def folder_beside(target: Path) -> tuple[int, Path]:
    """Create an empty folder next to a target and return a locked descriptor, to be closed at the end, and its path."""
    while True:
        name = tempfile.mkdtemp(prefix=f".{_name_part(target)}.", suffix=f"{MARK}.tmp", dir=target.absolute().parent)
        with suppress(FileNotFoundError):  # swept, as above
            handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if Path(name).is_dir():
                return handle, Path(name)
            os.close(handle)


def is_temporary(name: str) -> bool:
    """Return whether a file name is one that this module creates."""
    return _NAME.fullmatch(name) is not None


def sweep(target: Path) -> None:
    """Delete the temporary files of a target that killed processes left. Files that cannot be deleted stay."""
    if remote(target):
        return
    folder, known = target.absolute().parent, _name_part(target)
    now = time.monotonic()
    until, found = _looked.get(folder, (now, {}))
    if now >= until:
        with suppress(OSError):
            found = _temporary_names(folder)
        _looked[folder] = time.monotonic() + _SHARE * (time.monotonic() - now), found
    for name in found.pop(known, ()):
        with suppress(OSError):
            _delete(folder / name)


def _name_part(target: Path) -> str:
    """Return the part of a target's name that its temporary names contain: all of it, or its start and a digest if it
    is long.
    """
    if len(target.name) <= NAME_LIMIT:
        return target.name
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:_DIGITS]
    return f"{target.name[: NAME_LIMIT - _DIGITS - 1]}~{digest}"


def _temporary_names(folder: Path) -> dict[str, list[str]]:
    """Return the temporary names in a folder by the part of the target's name that they contain."""
    found: dict[str, list[str]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            if match := _NAME.fullmatch(entry.name):
                found.setdefault(match["target"], []).append(entry.name)
    return found


def _delete(path: Path) -> None:
    """Delete a temporary file or folder of this user that is not locked. Raise OSError if it is locked or cannot be
    deleted.
    """
    before = path.lstat()
    is_folder = stat.S_ISDIR(before.st_mode)
    if before.st_uid != os.geteuid() or not (is_folder or (stat.S_ISREG(before.st_mode) and before.st_nlink == 1)):
        return
    handle = os.open(path, os.O_NOFOLLOW | (os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_RDWR))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), path.lstat()):
            shutil.rmtree(path) if is_folder else path.unlink()
    finally:
        os.close(handle)
