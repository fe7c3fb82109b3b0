"""The folder next to a target in which a long run keeps finished work, so that it can resume after it was stopped.

A run deletes files only in a folder of its own: one that it created, or one with the marker of an earlier run. The
marker is a file of a random name that is recorded in the file `lock`. The folder must be a real one of this user. Links
are never followed.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

from squeeze.errors import DeviceError, FormatError, SqueezeError, StorageError, drop_notes, printable
from squeeze.system import temporary
from squeeze.system.documents import parse_object
from squeeze.system.moving import NAME_LIMIT, errors_about, errors_after, sync

__all__ = ["Discards", "discards", "forget", "other_settings", "scratch_folder", "work_folder"]

_LOCK, _TASK = "lock", "task.json"
_MARKER = 32  # letters of the marker's name
_NAMED = 4  # differing settings that a message names
_MARKED = re.compile(f"[0-9a-f]{{{_MARKER}}}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Discards(Enum):
    """The stopped runs whose work a new run deletes. It resumes the remaining work if that is of the same task."""

    NONE = "none"  # refuse a run of another task
    OTHERS = "others"  # work of another task
    ALL = "all"


def discards(resume: bool, overwrite: bool) -> Discards:
    """Return what a run with these arguments discards. Finished work is deleted only if the user overwrites."""
    return Discards.OTHERS if overwrite and not resume else Discards.NONE


@contextmanager
def work_folder(target: Path, work: str, task: dict[str, Any], discarded: Discards = Discards.OTHERS) -> Iterator[Path]:
    """Yield the folder `.TARGET.WORK` to write in.

    The folder is kept if the run is stopped, if a disk, a store or the memory of a device fails, and the error says so.
    It is deleted if the input is invalid, if nothing was started, or when all is done.

    Args:
        target: The result of the run.
        work: The kind of work, as part of the folder's name.
        task: All settings of the run, fit for JSON.
        discarded: Whose unfinished work is deleted first.

    Raises:
        SqueezeError: The name is taken by something else, another process works in the folder, or it holds the work of
        another task that must be kept.
    """
    folder = _place(target, work)
    with _opened(folder, target) as inside, _locked(folder, inside, target) as marker:
        described, text = folder / _TASK, json.dumps(task, default=str)
        before = described.read_bytes() if described.is_file() else None
        same = before == text.encode()
        if before is not None and not same and discarded is Discards.NONE:
            raise SqueezeError(other_settings(target, folder, _differing(before, text)))
        if discarded is Discards.ALL or not same:
            try:
                _empty(inside, _LOCK, marker)
                unfinished = folder / f"{_TASK}.unfinished"
                unfinished.write_text(text)
                unfinished.rename(described)
            except BaseException as error:
                if before is None:
                    _delete_failed(folder, inside, marker, error)
                raise
        try:
            yield folder
        except StorageError as error:
            if discarded is not Discards.ALL:
                error.what_next = f"repeat the command to resume (with {folder})"
            raise
        except SqueezeError as error:
            if isinstance(error, DeviceError):
                error.add_note(_kept_note(folder))
            else:
                _delete_failed(folder, inside, marker, error)
            raise
        except BaseException as error:
            drop_notes(error, f"{folder}{os.sep}")
            error.add_note(_kept_note(folder))
            raise
        with errors_after(target, folder):
            _delete(folder, inside, marker)
            sync(folder.parent)


def forget(target: Path, work: str) -> None:
    """Delete the folder `.TARGET.WORK` of a finished run if it still exists. Raise the same errors as `work_folder`."""
    if _place(target, work).is_dir():
        with work_folder(target, work, {}, Discards.ALL):
            pass


@contextmanager
def _opened(folder: Path, target: Path) -> Iterator[int]:
    """Open the folder, and create it if it does not exist. Raise SqueezeError if it is not a folder of this user."""
    is_new = False
    with errors_about(target), suppress(FileExistsError):
        folder.mkdir(0o700)
        is_new = True
    try:
        inside = os.open(folder, _FOLDER)
    except OSError as error:
        raise (_not_ours(folder) if error.errno in (errno.ENOTDIR, errno.ELOOP) else error) from None
    try:
        if os.fstat(inside).st_uid != os.geteuid():
            raise _not_ours(folder)
        yield inside
    except OSError:
        if is_new:
            with suppress(OSError):  # it is not empty, which the error says
                folder.rmdir()
        raise
    finally:
        os.close(inside)


@contextmanager
def _locked(folder: Path, inside: int, target: Path) -> Iterator[str]:
    """Lock the folder and yield the name of its marker.

    Raises SqueezeError if another process has the lock, or if the folder is neither marked nor empty.
    """
    names = os.listdir(inside)
    if names and _LOCK not in names:
        raise _not_ours(folder)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=inside)
    except FileNotFoundError:  # the folder was deleted just now
        raise _busy(target) from None
    except OSError as error:
        raise (_not_ours(folder) if error.errno == errno.ELOOP else error) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _busy(target) from None
        if not _is_at(folder, inside):
            raise _busy(target)
        try:
            marker = _marked(folder, inside, lock)
        except OSError:
            if os.listdir(inside) == [_LOCK]:
                with suppress(OSError):
                    os.unlink(_LOCK, dir_fd=inside)
            raise
        yield marker
    finally:
        os.close(lock)


def _is_at(folder: Path, inside: int) -> bool:
    try:
        return os.path.samestat(folder.lstat(), os.fstat(inside))
    except FileNotFoundError:
        return False


def _marked(folder: Path, inside: int, lock: int) -> str:
    """Return the name of the marker, and create it if the folder holds only the lock. Raise SqueezeError if it holds
    more.
    """
    status, names = os.fstat(lock), os.listdir(inside)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise _not_ours(folder)
    marker = os.pread(lock, 2 * _MARKER, 0).decode("ascii", "replace")
    if marker in names and _MARKED.fullmatch(marker):
        return marker
    if names != [_LOCK] or (marker and not _MARKED.fullmatch(marker)):
        raise _not_ours(folder)
    if not marker:
        marker = secrets.token_hex(_MARKER // 2)
        os.pwrite(lock, marker.encode(), 0)
    os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=inside))
    return marker


def _empty(inside: int, *except_names: str) -> None:
    """Delete the content of a folder, the task first, so that no run resumes from a part of the rest."""
    for name in sorted(os.listdir(inside), key=lambda name: name != _TASK):
        if name in except_names:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=inside)
        else:
            os.unlink(name, dir_fd=inside)


def _delete(folder: Path, inside: int, marker: str) -> None:
    """Delete the folder and its marks last, so that it is known as ours until it is empty."""
    _empty(inside, marker, _LOCK)
    _empty(inside, _LOCK)
    _empty(inside)
    folder.rmdir()


def _delete_failed(folder: Path, inside: int, marker: str, error: BaseException) -> None:
    """Delete the folder of a failed run. If that fails, add a note to the error."""
    try:
        _delete(folder, inside, marker)
    except OSError:
        error.add_note(_undeleted_note(folder))


def _kept_note(folder: Path) -> str:
    return f"finished work is kept in {folder}: repeat the command to resume"


def _undeleted_note(folder: Path) -> str:
    return f"{folder} could not be deleted: delete it"


def _busy(target: Path) -> SqueezeError:
    return SqueezeError(f"{target} is being written by another process")


def _not_ours(folder: Path) -> SqueezeError:
    return SqueezeError(f"{folder} exists and was not made by squeeze: move or delete it")


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder next to `target` to write in, which is deleted when the block ends."""
    with errors_about(target):
        lock, folder = temporary.folder_beside(target)
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):
            error.add_note(_undeleted_note(folder))
        raise
    finally:
        os.close(lock)
    with errors_after(target, folder):
        shutil.rmtree(folder)
    temporary.sweep(target)


def other_settings(target: Path, folder: Path | None = None, differing: str = "") -> str:
    """Return the message for a stopped run with other settings, whose finished work is in `folder` or in the target."""
    left = f" and left finished work in {folder}" if folder else ""
    return (
        f"{target}: the stopped run had other settings{differing}{left}: repeat its settings to resume, or "
        "start over with `overwrite=True` and without `resume=True`"
    )


def _differing(earlier_task: bytes, task: str) -> str:
    """Return the names of the first few settings that differ from those of a stopped run."""
    try:
        was, now = _flat(parse_object(earlier_task)), _flat(parse_object(task))
    except FormatError:
        return ""
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return f" ({printable(', '.join(names[:_NAMED]))}{', ...' * (len(names) > _NAMED)})"


def _flat(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task with the entries of `settings` at the top level."""
    settings = task.get("settings")
    inner = settings if isinstance(settings, dict) else {}
    return {**inner, **{name: value for name, value in task.items() if value is not settings}}


def _place(target: Path, work: str) -> Path:
    return target.absolute().parent / f".{target.name[:NAME_LIMIT]}.{work}"
