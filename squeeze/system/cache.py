"""The folder of what can be made again, and files in it: each appears at once, whole.

A cache that cannot be written or read is no error: who uses it goes on without it. Folders are made for this user
alone. Machine code, and what it reads without checking bounds, is loaded only from where no other user can put a file
(`open_to_others`).
"""

import grp
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

__all__ = ["make_folder", "make_room", "open_to_others", "replace", "root"]


def root() -> Path:
    """SQUEEZE_CACHE, or `squeeze` in the user's folder of caches. RuntimeError for an account without a home."""
    if override := os.environ.get("SQUEEZE_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "squeeze"


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, all for this user alone whatever the umask. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)


def open_to_others(folder: Path) -> Path | None:
    """Return the folder, of this one and all above it, in which another user may put or rename files; None if there is
    none. Root, and whoever owns /, may do so anywhere. Raises OSError for a folder that is missing."""
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for lowest in dict.fromkeys((folder.absolute(), folder.resolve(strict=True))):
        for place in (lowest, *lowest.parents):
            status = place.stat()
            keeps_names = place != lowest and status.st_mode & stat.S_ISVTX  # others rename nothing there
            if status.st_uid not in trusted or (_written_by_others(status) and not keeps_names):
                return place
    return None


def _written_by_others(status: os.stat_result) -> bool:
    """Whether the mode lets others write; a group that has no member but this user has no others."""
    if status.st_mode & stat.S_IWOTH:
        return True
    if not status.st_mode & stat.S_IWGRP:
        return False
    try:
        group, user = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return True
    own = status.st_gid == user.pw_gid and group.gr_name == user.pw_name
    return not (own and set(group.gr_mem) <= {user.pw_name})


def replace(path: Path, chunks: Iterable[np.ndarray]) -> None:
    """Put a file of these bytes in place at once; nobody ever sees a part of it. OSError where the folder or the disk
    does not allow it."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            for chunk in chunks:
                file.write(chunk.data)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def make_room(folder: Path, size: int, most: int) -> bool:
    """Delete what was used longest ago until `size` more bytes make at most `most` in a folder; whether they fit then,
    and the disk has as much again. OSError where there is no such folder."""
    if size > most:
        return False
    found = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.iterdir() if file.is_file())
    total = sum(bytes_ for _, bytes_, _ in found) + size
    for _, bytes_, file in found:
        if total > most:
            file.unlink(missing_ok=True)
            total -= bytes_
    return shutil.disk_usage(folder).free >= 2 * size
