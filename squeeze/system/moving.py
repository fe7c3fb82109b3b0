"""Moving a finished file or folder into place atomically and durably, without replacing what must not be replaced."""

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import BinaryIO

from squeeze.errors import SqueezeError

__all__ = ["NAME_LIMIT", "errors_about", "errors_after", "in_the_way", "move_into_place", "sync", "synced"]

NAME_LIMIT = 60  # characters of the target kept in a temporary name, below the 255 bytes a name may have
_AT_FDCWD, _NO_REPLACE, _EXCHANGE = -100, 1, 2  # constants of Linux's renameat2
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR}
_UNABLE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
_SYNC_EVERY = 1.0  # seconds
_sync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def in_the_way(target: Path) -> SqueezeError:
    """Return the error for a target that exists and may not be overwritten."""
    return SqueezeError(f"{target} already exists; use `overwrite=True` to overwrite")


def move_into_place(finished: Path, target: Path, overwrite: bool) -> None:
    """Rename a finished file or folder to its final name, and delete what it replaces only after that.

    The content of a folder is synced first. If anything fails, `target` is unchanged or complete.

    Args:
        finished: The finished file or folder.
        target: Its final name.
        overwrite: Whether an existing target is replaced. An empty folder is always replaced by a folder.

    Raises:
        SqueezeError: The target exists and may not be replaced, even if it appeared in the meantime.
        OSError: The file system failed.
    """
    replaced, free = None, not os.path.lexists(target)
    with errors_about(target):
        if finished.is_dir():
            _sync_tree(finished)
        if overwrite and finished.is_dir() and not free:
            replaced = _swap(finished, target)
        else:
            finished.replace(target) if overwrite else _take_name(finished, target)
            try:
                sync(target.parent)
            except OSError:
                if free or not overwrite:
                    target.rename(finished)
                raise
    if replaced:
        with errors_after(target, replaced):
            shutil.rmtree(replaced)


def _take_name(finished: Path, target: Path) -> None:
    """Rename to a name that is free or that of an empty folder. Raise SqueezeError if the name is taken."""
    try:
        if finished.is_dir():
            finished.rename(target)  # fails if the target folder is not empty
        elif not rename(finished, target, _NO_REPLACE):
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            try:
                finished.replace(target)
            except BaseException:
                target.unlink()
                raise
    except OSError as error:
        if error.errno in _TAKEN:
            raise in_the_way(target) from None
        raise


def _swap(finished: Path, target: Path) -> Path:
    """Exchange a folder and its target, and return the folder next to the target that then holds the old content.

    The old content gets another name first, so that no later run takes it for its own work.
    """
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name[:NAME_LIMIT]}.", suffix=".old", dir=target.parent))
    new = aside / "new"
    try:
        finished.rename(new)
        _exchange(new, target)
        try:
            sync(target.parent)
        except OSError:
            _exchange(new, target)
            raise
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            aside.rmdir()
        raise
    return aside


def _exchange(new: Path, target: Path) -> None:
    """Exchange two names, in one step if the system can."""
    if rename(new, target, _EXCHANGE):
        return
    old = new.with_name("old")
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    old.rename(new)


def rename(finished: Path, target: Path, flag: int) -> bool:
    """Rename with a flag of Linux's renameat2. Return False if the system or the file system does not support it."""
    if _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(finished), _AT_FDCWD, os.fsencode(target), flag) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(finished), None, str(target))


def _sync_tree(folder: Path) -> None:
    """Sync everything in a folder and below. What is on the disk already takes little time."""

    def fail(error: OSError) -> None:
        raise error

    for root, _, names in os.walk(folder, topdown=False, onerror=fail):
        for path in (Path(root, name) for name in names):
            if path.is_file() and not path.is_symlink():
                sync(path)
        sync(Path(root))


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, if the system can. Raise OSError if the disk fails."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # the file may be written but not read
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {*_UNABLE, errno.EBADF, errno.EACCES}:  # some network file systems cannot sync
            raise
    finally:
        os.close(handle)


@contextmanager
def errors_about(path: Path) -> Iterator[None]:
    """Make OSError name `path` in place of a temporary name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def errors_after(finished: Path, path: Path) -> Iterator[None]:
    """Make OSError name `path`, and add that `finished` was written completely."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; {finished} was written nevertheless", str(path)) from None


@contextmanager
def synced(file: BinaryIO) -> Iterator[None]:
    """Sync an open file when the block ends, and about once a second meanwhile, so that little is left to sync at the
    end.

    Raises OSError if the disk fails.
    """
    handle, over, failed = file.fileno(), Event(), list[OSError]()

    def keep_up() -> None:
        while not over.wait(_SYNC_EVERY):
            try:
                _sync(handle)
            except OSError as error:  # a later sync would not report it again
                failed.append(error)
                return

    thread = Thread(target=keep_up, name="squeeze-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]
    file.flush()
    os.fsync(handle)
