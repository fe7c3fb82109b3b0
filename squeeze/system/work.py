"""The folder beside a target in which a long run leaves what is done, so that it can go on after it was stopped.

A run deletes nothing but what lies in a folder of its own: one that it made, or a real folder of this user's with the
marker of an earlier run, a file of a random name that the file `lock` tells. Links are never followed.
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
from squeeze.system.moving import NAME_LIMIT, about, harmless_to, sync

__all__ = ["Discards", "discards", "forget", "other_settings", "scratch_folder", "work_folder"]

_LOCK, _TASK = "lock", "task.json"
_MARKER = 32  # letters of its name
_NAMED = 4  # settings that differ, in a message
_MARKED = re.compile(f"[0-9a-f]{{{_MARKER}}}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Discards(Enum):
    """Which stopped runs a new run deletes what they left of; it goes on with those of its own task that stay."""

    NONE = "none"  # a run of another task is refused
    OTHERS = "others"  # those of another task
    ALL = "all"


def discards(resume: bool, overwrite: bool) -> Discards:
    """Return what a run discards that takes both as arguments: finished work goes only if the user overwrites."""
    return Discards.OTHERS if overwrite and not resume else Discards.NONE


@contextmanager
def work_folder(target: Path, work: str, task: dict[str, Any], discarded: Discards = Discards.OTHERS) -> Iterator[Path]:
    """The folder `.TARGET.WORK`, to write in. It stays when a run is stopped, a disk fails or is full, a storage
    breaks off or a device has too little memory: the error says so. It goes when the input proves wrong, all is done,
    or nothing was begun.

    task: what the run is, as JSON. discarded: which stopped runs are not gone on with. Raises SqueezeError where
    something else has the folder's name, another process works in it, or a run of another task is to be kept.
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
                    _give_up(folder, inside, marker, error)
                raise
        try:
            yield folder
        except StorageError as error:
            if discarded is not Discards.ALL:
                error.what_next = f"the same command goes on from here (with {folder})"
            raise
        except SqueezeError as error:
            if isinstance(error, DeviceError):
                error.add_note(_kept(folder))
            else:
                _give_up(folder, inside, marker, error)
            raise
        except BaseException as error:
            drop_notes(error, f"{folder}{os.sep}")
            error.add_note(_kept(folder))
            raise
        with harmless_to(target, folder):
            _delete(folder, inside, marker)
            sync(folder.parent)


def forget(target: Path, work: str) -> None:
    """Delete the folder `.TARGET.WORK` of a run that ended well, if it is still there. Raises as `work_folder`."""
    if _place(target, work).is_dir():
        with work_folder(target, work, {}, Discards.ALL):
            pass


@contextmanager
def _opened(folder: Path, target: Path) -> Iterator[int]:
    """A handle of the folder, made if nothing is there. Raises SqueezeError for what is no folder of this user's."""
    is_new = False
    with about(target), suppress(FileExistsError):
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
            with suppress(OSError):  # there is something in it, which is named
                folder.rmdir()
        raise
    finally:
        os.close(inside)


@contextmanager
def _locked(folder: Path, inside: int, target: Path) -> Iterator[str]:
    """The name of the marker, with the folder to ourselves. Raises SqueezeError where a process has it, or it is
    neither marked nor empty."""
    names = os.listdir(inside)
    if names and _LOCK not in names:
        raise _not_ours(folder)
    try:
        lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=inside)
    except FileNotFoundError:  # the folder was deleted in this moment
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
    """The name of the marker, made if there is nothing but the lock. Raises SqueezeError where there is more."""
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


def _empty(inside: int, *kept: str) -> None:
    """Delete what is in a folder; the task first, so that no run goes on from a part of the rest."""
    for name in sorted(os.listdir(inside), key=lambda name: name != _TASK):
        if name in kept:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=inside)
        else:
            os.unlink(name, dir_fd=inside)


def _delete(folder: Path, inside: int, marker: str) -> None:
    """Delete the folder, its marks last, so that it is ours until it is empty."""
    _empty(inside, marker, _LOCK)
    _empty(inside, _LOCK)
    _empty(inside)
    folder.rmdir()


def _give_up(folder: Path, inside: int, marker: str, error: BaseException) -> None:
    """Delete the folder of a run that ends with an error, which says so if that fails."""
    try:
        _delete(folder, inside, marker)
    except OSError:
        error.add_note(_remains(folder))


def _kept(folder: Path) -> str:
    return f"what is done is kept in {folder}: the same command goes on from there"


def _remains(folder: Path) -> str:
    return f"{folder} could not be deleted: delete it"


def _busy(target: Path) -> SqueezeError:
    return SqueezeError(f"{target} is being written by another process")


def _not_ours(folder: Path) -> SqueezeError:
    return SqueezeError(f"{folder} is in the way, and squeeze did not make it: move or delete it")


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A new folder beside `target` to write in, which goes when the block ends, well or not."""
    with about(target):
        lock, folder = temporary.folder_beside(target)
    try:
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.lexists(folder):
            error.add_note(_remains(folder))
        raise
    finally:
        os.close(lock)
    with harmless_to(target, folder):
        shutil.rmtree(folder)
    temporary.sweep(target)


def other_settings(target: Path, folder: Path | None = None, differing: str = "") -> str:
    """What is said of a stopped run with other settings, which left finished work in `folder` (None: in `target`)."""
    left = f" and left finished work in {folder}" if folder else ""
    return (
        f"{target}: the run that was stopped had other settings{differing}{left}: repeat its settings to go on, or "
        "start anew with `overwrite=True` and without `resume=True`"
    )


def _differing(before: bytes, task: str) -> str:
    """Name the settings that differ from those of a stopped run, the first few."""
    try:
        was, now = _flat(parse_object(before)), _flat(parse_object(task))
    except FormatError:
        return ""
    names = sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name))
    return f" ({printable(', '.join(names[:_NAMED]))}{', ...' * (len(names) > _NAMED)})"


def _flat(task: dict[str, Any]) -> dict[str, Any]:
    """With the entries of `settings` beside all others."""
    settings = task.get("settings")
    inner = settings if isinstance(settings, dict) else {}
    return {**inner, **{name: value for name, value in task.items() if value is not settings}}


def _place(target: Path, work: str) -> Path:
    return target.absolute().parent / f".{target.name[:NAME_LIMIT]}.{work}"
