"""The files and folders of a store that are its own.

A store may come from a stranger, in an archive. A link in it would lead outside, where `gc` would delete files, and a
pipe would make its reader wait. Both are refused.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from squeeze.errors import FormatError, escaped, printable

__all__ = ["check_own", "opened", "subfolders"]

_OPENED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_own(folder: Path, *names: str) -> None:
    """Raise FormatError if a name in the folder is that of a link, or of anything but a file or folder."""
    for name in names:
        path = folder / name
        if os.path.lexists(path) and stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            raise FormatError(
                f"{escaped(str(folder))}: {printable(name)} is a link or a device, and a store has only files and "
                "folders: put the real one in its place"
            )


def subfolders(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, in order, without links."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink():
            yield path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a store for reading. Raises FormatError for a link, in its folder's name too, and for a device."""
    check_own(path.parent.parent, path.parent.name)
    check_own(path.parent, path.name)
    with os.fdopen(os.open(path, os.O_RDONLY | _OPENED), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FormatError(f"{escaped(str(path))}: is not a file: put the real one in its place")
        yield file
