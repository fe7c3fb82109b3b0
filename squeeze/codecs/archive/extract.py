"""Extract a tar into a folder: everything, or nothing at all.

Members go to a temporary folder within the folder first, and get their places when the whole archive is decoded and
its checksums agree. Names and links that lead out of the folder are refused, as are devices and pipes.
"""

import os
import shutil
import stat
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

from squeeze.codecs.stream.members import MAX_TEXT
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system import temporary
from squeeze.system.moving import in_the_way, move_into_place

__all__ = ["Extraction"]

_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_BUFFER = 1 << 20
_KEPT = "archive"  # what the temporary folder is called after


class Extraction:
    """One archive on its way into a folder: `read` its tar, then `finish`. It leaves nothing if it is not finished.

    Args:
        folder: Where the members go. It is made if it is missing; the folder above it must exist.
        overwrite: Whether files in the folder may be replaced.
    """

    def __init__(self, folder: Path, overwrite: bool):
        self._folder, self._overwrite = folder, overwrite
        self.members = 0
        self._folders: list[tuple[Path, tarfile.TarInfo]] = []

    def __enter__(self) -> Self:
        self._is_new = not os.path.lexists(self._folder)
        self._folder.mkdir(exist_ok=True)
        self._lock, self._made = temporary.folder_beside(self._folder / _KEPT)
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._made, ignore_errors=True)
        os.close(self._lock)
        temporary.sweep(self._folder / _KEPT)
        if self._is_new:
            with suppress(OSError):  # it is not empty
                self._folder.rmdir()

    def read(self, stream: BinaryIO) -> None:
        """Extract a tar, which is read once and in order, to the temporary folder.

        Raises:
            FormatError: It is not a tar, or damaged.
            SqueezeError: A member would be outside the folder, is a device, or cannot be a file here.
        """
        try:
            with tarfile.open(
                fileobj=stream,
                mode="r|",
                bufsize=_BUFFER,
                tarinfo=_Header,
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                for info in tar:
                    self._take(tar, info)
        except tarfile.TarError as error:
            raise FormatError(f"the content is not a whole tar: {error}") from None
        for path, info in reversed(self._folders):  # when nothing is written to them any more
            path.chmod(info.mode & 0o755 | 0o700)
            os.utime(path, (info.mtime, info.mtime))

    def _take(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        info.name = info.name.removeprefix("./").rstrip("/")
        if info.name in ("", "."):
            return
        self._check(info)
        path = self._made / info.name
        self.members += 1
        if info.isdir():
            path.mkdir(parents=True, exist_ok=True)
            self._folders.append((path, info))
            return
        if path.is_dir() and not path.is_symlink():
            raise _refused(info, "is both a file and a folder")
        path.unlink(missing_ok=True)
        mode = info.mode & 0o755 | 0o600
        info.mode = mode if mode & 0o100 else mode & ~0o111
        info.uid, info.gid, info.uname, info.gname = os.getuid(), os.getgid(), "", ""
        tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 and newer check as well
        tar.extract(info, self._made)

    def _check(self, info: tarfile.TarInfo) -> None:
        """Raise SqueezeError unless a member is a file, folder or link that stays in the folder."""
        parts = info.name.split("/")
        if info.name.startswith("/") or not {"", ".", ".."}.isdisjoint(parts) or "\0" in info.name:
            raise _refused(info, "leads out of the folder")
        if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
            raise _refused(info, "is a device or a pipe")
        place = self._made
        for part in parts[:-1]:
            place /= part
            if place.is_symlink():
                raise _refused(info, "is below a link")
        if self._leads_out(info):
            raise _refused(info, f"leads out of the folder, to {printable(info.linkname)}")

    def _leads_out(self, info: tarfile.TarInfo) -> bool:
        """Return whether a link has a target outside the folder. Links to folders on the way are followed."""
        if not (info.issym() or info.islnk()):
            return False
        start = Path(self._made, info.name).parent if info.issym() else self._made
        return not Path(os.path.realpath(start / info.linkname)).is_relative_to(os.path.realpath(self._made))

    def finish(self) -> None:
        """Move all members to their places. Raises SqueezeError if one is taken, before any member is moved."""
        self._compare(self._made, self._folder)
        self._move(self._made, self._folder)

    def _compare(self, made: Path, target: Path) -> None:
        """Raise SqueezeError for what is in the way of the members of a folder."""
        for path, place in _pairs(made, target):
            if not os.path.lexists(place):
                continue
            if _is_folder(path) and _is_folder(place):
                self._compare(path, place)
            elif not self._overwrite:
                raise in_the_way(place)
            elif _is_folder(path) or _is_folder(place):
                raise SqueezeError(f"{place} is a folder on one side only: move it away, and extract again")

    def _move(self, made: Path, target: Path) -> None:
        for path, place in _pairs(made, target):
            if _is_folder(path) and _is_folder(place):
                self._move(path, place)
            elif not path.is_symlink():
                move_into_place(path, place, self._overwrite and not _is_folder(path))
            elif self._overwrite:
                path.replace(place)
            else:
                place.symlink_to(path.readlink())


class _Header(tarfile.TarInfo):
    """A header whose extensions fit in memory."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in (*_HEADERS, *_NAMES) and info.size > 2 * MAX_TEXT:
            raise FormatError(f"a header of {info.size:,} bytes is larger than any: it is damaged")
        return info


def _pairs(made: Path, target: Path) -> list[tuple[Path, Path]]:
    return [(path, target / path.name) for path in sorted(made.iterdir())]


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder, and not a link to one."""
    return stat.S_ISDIR(path.lstat().st_mode) if os.path.lexists(path) else False


def _refused(info: tarfile.TarInfo, reason: str) -> SqueezeError:
    return SqueezeError(f"the member {printable(info.name)} {reason}: refused, and nothing was extracted")
