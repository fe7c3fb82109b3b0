"""The cache folder, and files in it that appear atomically.

A cache that cannot be read or written is not an error: callers go on without it. Folders are created for this user
only. Machine code, and data that it reads without bounds checks, is loaded only from folders in which no other user can
put a file (`open_to_others`).
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
    """Return $SQUEEZE_CACHE, or `squeeze` in the user's cache folder. Raise RuntimeError if the account has no home."""
    if override := os.environ.get("SQUEEZE_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "squeeze"


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700, whatever the umask. Raise OSError if that fails."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(0o700, exist_ok=True)


def open_to_others(folder: Path) -> Path | None:
    """Return the first folder on the path in which another user may create or rename files, or None.

    Root and the owner of / are trusted. Raises OSError if the folder is missing.
    """
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for lowest in dict.fromkeys((folder.absolute(), folder.resolve(strict=True))):
        for place in (lowest, *lowest.parents):
            status = place.stat()
            keeps_names = place != lowest and status.st_mode & stat.S_ISVTX  # others rename nothing there
            if status.st_uid not in trusted or (_written_by_others(status) and not keeps_names):
                return place
    return None


def _written_by_others(status: os.stat_result) -> bool:
    """Return whether the mode lets other users write. A group whose only member is this user does not count."""
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
    """Write a file atomically: it appears complete or not at all. Raise OSError if it cannot be written."""
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
    """Delete the least recently used files of a cache folder until `size` more bytes fit.

    Args:
        folder: The cache folder.
        size: Bytes of the file that is to be added.
        most: Bytes that the folder may hold.

    Returns:
        Whether the file fits, with as much disk space to spare.

    Raises:
        OSError: The folder does not exist.
    """
    if size > most:
        return False
    found = sorted((file.stat().st_mtime_ns, file.stat().st_size, file) for file in folder.iterdir() if file.is_file())
    total = sum(bytes_ for _, bytes_, _ in found) + size
    for _, bytes_, file in found:
        if total > most:
            file.unlink(missing_ok=True)
            total -= bytes_
    return shutil.disk_usage(folder).free >= 2 * size
