"""Files on disk: which ones to take, what to call the result, and replacing a file in one step.

Nothing here knows the .sqz format; nothing here prints.
"""

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from squeeze.errors import SqueezeError

SUFFIX = ".sqz"
interrupted = threading.Event()  # tells threads that the user wants an end
_NAME_LIMIT = 60  # characters of the target kept in the temporary name, below the 255 bytes a name may have


def compressed_name(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)


def restored_name(path: Path) -> Path:
    """`path` without its suffix. Raises SqueezeError when it has another suffix or nothing else."""
    if path.suffix != SUFFIX:
        raise SqueezeError(f"the name does not end in {SUFFIX}; say where to write with -o or -c")
    return path.with_suffix("")


def expand(path: Path, recursive: bool, wanted: Callable[[Path], bool]) -> Iterator[Path]:
    """`path` itself, or with `recursive` the wanted files below a folder, in the order of their names.

    Links to folders are not followed below `path`. Raises SqueezeError for a folder without `recursive`.
    """
    if not path.is_dir() or (path.is_symlink() and not recursive):
        yield path
    elif not recursive:
        raise SqueezeError("is a directory; use -r to take every file in it")
    else:
        for folder, subfolders, names in os.walk(path, onerror=_reraise):
            subfolders.sort()
            yield from filter(wanted, (Path(folder, name) for name in sorted(names)))


def _reraise(error: OSError) -> None:
    raise error


def reason_to_skip(path: Path) -> str | None:
    """Why `path` is left alone unless the user insists, or None for a regular file. OSError when it is missing."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "is a symbolic link"
    return None if stat.S_ISREG(mode) else "is not a regular file"


def check_target(target: Path, sources: Iterable[Path], overwrite: bool) -> None:
    """Raises SqueezeError when `target` may not be written."""
    if target.is_dir():
        raise SqueezeError(f"{target} is a directory")
    if any(target.exists() and source.exists() and target.samefile(source) for source in sources):
        raise SqueezeError("input and output are the same file")
    if target.is_file() and not overwrite:
        raise SqueezeError(f"{target} already exists; use -f to overwrite")


@contextmanager
def replacing(target: Path, source: Path | None) -> Iterator[BinaryIO]:
    """A file to write that becomes `target` when the block ends well, and vanishes when it does not.

    The result has the permissions and times of `source`. A target that is no regular file, such as a pipe or
    /dev/null, is written directly.
    """
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:_NAME_LIMIT]}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if source is None:
                os.fchmod(handle, _new_file_mode())
            else:
                like = source.stat()
                os.fchmod(handle, stat.S_IMODE(like.st_mode) & 0o777)
                os.utime(handle, ns=(like.st_atime_ns, like.st_mtime_ns))
            os.fsync(handle)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def _new_file_mode() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` last through a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        pass  # some network file systems cannot
    finally:
        os.close(handle)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block Ctrl-C and SIGTERM set `interrupted` and raise KeyboardInterrupt, so that files are tidied."""

    def interrupt(signum: int, frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    interrupted.clear()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
