"""Files: which ones to process, what to call the result, and replacing a file atomically. Paths may be URLs.

Nothing here knows the .sqz format, and nothing here prints.
"""

import errno
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from squeeze.errors import SqueezeError
from squeeze.system import temporary
from squeeze.system.moving import errors_about, in_the_way, move_into_place
from squeeze.system.remote_file import RemoteFile
from squeeze.system.storage import remote
from squeeze.system.upload import check_free, uploading

SUFFIX = ".sqz"
_PIECE = 1 << 22
_LINKS = 40  # symbolic links that are followed, as on Linux


class _Interrupted(threading.Event):
    """An event that is set when the user interrupts the process. `by` is the number of the signal."""

    by = 0


interrupted = _Interrupted()


def compressed_name(path: Path) -> Path:
    """Return the path with `.sqz` appended."""
    return path.with_name(path.name + SUFFIX)


def restored_name(path: Path) -> Path:
    """Return the path without `.sqz`. Raise SqueezeError if it has another suffix."""
    if path.suffix != SUFFIX:
        raise SqueezeError(f"the name does not end in {SUFFIX}; say where to write with -o or -c")
    return path.with_suffix("")


def expand(
    path: Path,
    recursive: bool,
    wanted: Callable[[Path], bool],
    unreadable: Callable[[OSError], None],
    linked: Callable[[Path], None],
) -> Iterator[Path]:
    """Yield a file, or with `recursive` the wanted files below a folder in the order of their names.

    Args:
        path: A file or a folder.
        recursive: Whether to descend into folders.
        wanted: Whether to include a file.
        unreadable: Called for a folder that cannot be read, and for an object that is not listed or whose key ends in a
        slash.
        linked: Called for a symbolic link to a folder, which is not followed.

    Raises:
        SqueezeError: The path is a folder, and `recursive` is false.
    """
    if not path.is_dir() or (path.is_symlink() and not recursive):
        yield path
    elif not recursive:
        raise SqueezeError("is a directory; use -r to take every file in it")
    elif prefix := remote(path):
        for one in prefix.walk():
            if one.unlisted:
                unreadable(OSError(errno.EINVAL, one.unlisted, str(one)))
            elif not wanted(cast(Path, one)):
                continue
            elif one.name:
                yield cast(Path, one)
            else:
                unreadable(OSError(errno.EINVAL, "has no name, since its key ends in a slash: rename it", str(one)))
    else:
        for folder, subfolders, names in os.walk(path, onerror=unreadable):
            subfolders.sort()
            for subfolder in (Path(folder, name) for name in subfolders):
                if subfolder.is_symlink():
                    linked(subfolder)
            yield from filter(wanted, (Path(folder, name) for name in sorted(names)))


def reason_to_skip(path: Path) -> str | None:
    """Return why a file is skipped unless the user insists, or None for a regular file.

    Raise OSError if it is missing.
    """
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    if temporary.is_temporary(path.name):
        return "is a temporary file of squeeze"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def status(file: BinaryIO) -> os.stat_result:
    """Return the status of an open file."""
    return file.status if isinstance(file, RemoteFile) else os.fstat(file.fileno())


def check_target(target: Path, sources: Iterable[Path], overwrite: bool) -> None:
    """Raise SqueezeError if `target` may not be written, and OSError if its folder is missing."""
    if place := remote(target):
        if target in sources:
            raise SqueezeError("input and output are the same file")
        check_free(place, overwrite)
        return
    if target.is_dir():
        raise SqueezeError(f"{target} is a directory")
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, f"the folder {target.parent} does not exist; make it first", str(target))
    if any(target.exists() and source.exists() and source.samefile(target) for source in sources):
        raise SqueezeError("input and output are the same file")
    if not overwrite and not is_special(target) and os.path.lexists(target):
        raise in_the_way(target)


def is_special(target: Path) -> bool:
    """Return whether `target` cannot be replaced, such as a pipe, /dev/null or /dev/stdout."""
    if remote(target):
        return False
    return open_file(target) is not None or (target.exists() and not target.is_file())


def open_file(target: Path) -> int | None:
    """Return the descriptor that a path such as /dev/stdout or /dev/fd/1 stands for, or None."""
    for _ in range(_LINKS):
        folder = os.path.realpath(target.parent)
        if folder in ("/dev/fd", f"/proc/{os.getpid()}/fd") and target.name.isdecimal():
            return int(target.name)
        if not target.is_symlink():
            return None
        target = Path(folder) / target.readlink()
    return None


@contextmanager
def replacing(
    target: Path,
    like: os.stat_result | None = None,
    overwrite: bool = True,
    mark: str = temporary.MARK,
    composed: int = 0,
) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `target` when the block succeeds and is deleted when it fails.

    Special files are written directly. Temporary files of the target that killed processes left are deleted.

    Args:
        target: The path or URL of the result.
        like: The status whose permissions, group and times the result gets, and whose owner if root asks.
        overwrite: Whether an existing target may be replaced.
        mark: The end of the temporary name: `.squeeze`, or the mark of a run by which the file is found again.
        composed: The approximate size in bytes of an object that is composed of objects in the same store, otherwise 0.

    Raises:
        SqueezeError: The target exists and may not be replaced.
        OSError: The file cannot be written.
    """
    if place := remote(target):
        with uploading(place, overwrite, composed) as file:
            yield file
        return
    if is_special(target):
        number = open_file(target)
        with target.open("wb") if number is None else os.fdopen(os.dup(number), "wb") as file:
            yield file
        return
    with errors_about(target):
        handle, temporary_path = temporary.file_beside(target, mark)
    lock = os.dup(handle)  # keeps the lock until the file has its final name
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            with errors_about(target):
                file.flush()
                _copy_status(handle, like)
                os.fsync(handle)
        move_into_place(temporary_path, target, overwrite)
    except BaseException:
        temporary_path.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)
    temporary.sweep(target)


def write_text(path: Path, text: str, errors: str = "strict") -> None:
    """Replace a file atomically with a text in UTF-8. `errors` is the error handler of str.encode."""
    with replacing(path) as file:
        file.write(text.encode(errors=errors))


def _copy_status(handle: int, like: os.stat_result | None) -> None:
    if like is None:
        os.fchmod(handle, _new_file_mode())
        return
    keep_owner(handle, like)
    os.fchmod(handle, _mode_for(os.fstat(handle), like))
    os.utime(handle, ns=(like.st_atime_ns, like.st_mtime_ns))


def keep_owner(file: int | Path, like: os.stat_result) -> None:
    """Give a new file the group of another one, and its owner if root asks, as far as the system allows it."""
    with suppress(OSError):
        os.chown(file, like.st_uid if os.geteuid() == 0 else -1, like.st_gid)


def _mode_for(new: os.stat_result, like: os.stat_result) -> int:
    """Return the permissions of `like`. If the group differs, its members get no more than everybody has."""
    mode = stat.S_IMODE(like.st_mode) & 0o777
    return mode if new.st_gid == like.st_gid else mode & 0o707 | (mode & 0o007) << 3 & mode


def copy(source: Path, target: Path) -> None:
    """Copy a file with its permissions and times to a path on the disk."""
    if remote(source):
        with source.open("rb") as reading, target.open("wb") as writing:
            shutil.copyfileobj(reading, writing, _PIECE)
    else:
        shutil.copyfile(source, target)
    copy_status(source, target)


def copy_status(source: Path, target: Path) -> None:
    """Give a copy the permissions, times and group of the original, and its owner if root asks."""
    if remote(source):
        like = source.stat()
        os.utime(target, ns=(like.st_atime_ns, like.st_mtime_ns))
        return
    like = source.stat()
    keep_owner(target, like)
    shutil.copystat(source, target)
    if (made := target.stat()).st_gid != like.st_gid:
        target.chmod(_mode_for(made, like))


def _new_file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt within the block, and set `interrupted`.

    So files are tidied up. A signal that is ignored, as with nohup, stays ignored.
    """

    def interrupt(signum: int, frame: object) -> None:
        if signum != signal.SIGINT:
            signal.signal(signum, signal.SIG_IGN)  # a closed terminal sends it twice; tidying continues
        interrupted.by = signum
        interrupted.set()
        raise KeyboardInterrupt

    interrupted.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    try:
        for number in heeded:
            signal.signal(number, interrupt)
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)
