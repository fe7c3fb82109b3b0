"""Write files and folders to one .sqz file of a tar, with their names, modes, times and links.

The tar is made as it is compressed, in the order of the names, so the same files give the same bytes. It has no owners,
and times in whole seconds. Its end is a stream of its own: the end mark of the tar, and after that the index of its
members (codecs/stream/members.py), which readers of tars do not read.
"""

import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from posixpath import dirname, isabs, join, normpath
from typing import Any, BinaryIO, NamedTuple, cast

import xxhash

from squeeze.codecs.shards.tar import Tar, padded
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.members import LEVEL, Member, line_of, tail_bytes
from squeeze.codecs.stream.resources import Totals
from squeeze.errors import FormatError, SqueezeError, VerifyError
from squeeze.system import files, temporary, unchanged
from squeeze.system.storage import relative

__all__ = ["Item", "listed", "write"]

_PIECE = 1 << 20
Failed = Callable[[Path, Exception], None]
Skipped = Callable[[Path, str], None]


class Item(NamedTuple):
    """A file, folder or symbolic link, and its name in the archive."""

    path: Path
    name: str
    status: os.stat_result


def listed(
    roots: Iterable[Path], target: Path | None, excluded: Callable[[Path, Path], bool], failed: Failed, skipped: Skipped
) -> list[Item]:
    """List files and folders, and everything in folders, in the order of their names.

    Args:
        roots: Files and folders on this machine. Their last components begin the names in the archive.
        target: The archive, which is not a member of itself.
        excluded: Says of (root, path) whether the user left the path out.
        failed: Is told of paths that cannot be read.
        skipped: Is told of paths that an archive does not hold, and why.

    Raises:
        SqueezeError: Two roots have the same name.
    """
    found = list[Item]()
    for root in roots:
        name = root.name if root.name not in ("", "..") else root.resolve().name
        if any(item.name == name for item in found):
            raise SqueezeError(f"two files or folders are called {name}: an archive needs different names")
        for path in _below(root, failed):
            if path == target or temporary.is_temporary(path.name) or excluded(root, path):
                continue
            try:
                status = path.lstat()
                rest = path.relative_to(root).as_posix()
                item = Item(path, name if rest == "." else f"{name}/{rest}", status)
                reason = _reason_to_skip(item)
            except OSError as error:
                failed(path, error)
                continue
            if reason:
                skipped(path, reason)
            else:
                found.append(item)
    return found


def _below(root: Path, failed: Failed) -> Iterator[Path]:
    """Yield a path and everything below it, sorted by name. Links are not followed, except a root that is one."""
    yield root
    if not root.is_dir():
        return
    try:
        paths = sorted(root.iterdir(), key=os.fsencode)
    except OSError as error:
        failed(root, error)
        return
    for path in paths:
        if path.is_symlink() or not path.is_dir():
            yield path
        else:
            yield from _below(path, failed)


def _reason_to_skip(item: Item) -> str:
    mode = item.status.st_mode
    if stat.S_ISLNK(mode):
        target = os.readlink(item.path)  # noqa: PTH115 - as it is written, which a Path is not
        place = normpath(join(dirname(item.name), target))
        outside = isabs(target) or place == ".." or place.startswith("../")
        return f"is a link that leads out of the archive, to {target}" if outside else ""
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "is not a regular file"


def write(items: Iterable[Item], sink: BinaryIO, failed: Failed, **options: Any) -> tuple[Totals, int]:
    """Write an archive, and return its sizes and the number of members.

    Args:
        items: What `listed` returned.
        sink: A binary file.
        failed: Is told of files that cannot be read, which are left out, and of files that changed meanwhile.
        options: Those of `compress_stream`.

    Raises:
        SqueezeError: A file became shorter while it was read.
    """
    tar = _FolderTar(items, failed)
    totals = compress_stream(cast(BinaryIO, tar), sink, **options)
    tail = tail_bytes(bytes(tar.lines), totals.raw, tar.digest.intdigest())
    end = compress_stream(io.BytesIO(tail), sink, level=LEVEL)
    return Totals(totals.raw + end.raw, totals.coded + end.coded, opened=totals.opened), tar.members


class _FolderTar(Tar):
    """The bytes of a tar with folders, links, modes and times, without the end of a tar."""

    members = 0

    def __init__(self, items: Iterable[Item], failed: Failed):
        self._failed = failed
        self._linked: dict[tuple[int, int], Member] = {}  # by device and inode, for files with several names
        self._position = 0
        super().__init__(items)  # type: ignore[arg-type]

    def _generate(self, entries: Iterable[Any]) -> Iterator[bytes]:
        for item in entries:
            kind = stat.S_IFMT(item.status.st_mode)
            if kind == stat.S_IFREG:
                yield from self._file(item)
            else:
                yield self._header(item, tarfile.DIRTYPE if kind == stat.S_IFDIR else tarfile.SYMTYPE)

    def _header(self, item: Item, kind: bytes, size: int = 0, link: str = "") -> bytes:
        info = tarfile.TarInfo(item.name)
        info.type, info.size, info.mtime = kind, size, int(item.status.st_mtime)
        info.mode = stat.S_IMODE(item.status.st_mode)
        info.linkname = os.readlink(item.path) if kind == tarfile.SYMTYPE else link  # noqa: PTH115 - as above
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        self._position += len(header)
        self.members += 1
        return header

    def _file(self, item: Item) -> Iterator[bytes]:
        identity = item.status.st_dev, item.status.st_ino
        if first := self._linked.get(identity):
            yield self._header(item, tarfile.LNKTYPE, link=first.name)
            self._note(first._replace(name=item.name))
            return
        try:
            file = item.path.open("rb")
        except OSError as error:
            self._failed(item.path, error)
            return
        with file:
            opened = files.status(file)
            yield self._header(item._replace(status=opened), tarfile.REGTYPE, opened.st_size)
            digest, offset = xxhash.xxh3_64(), self._position
            for piece in _pieces(file, item.path, opened.st_size):
                digest.update(piece)
                yield piece
            if unchanged.has_changed(item.path, opened):
                self._failed(item.path, VerifyError("changed while it was read; the archive holds what was read"))
        yield bytes(padded(opened.st_size) - opened.st_size)
        self._position += padded(opened.st_size)
        member = Member(item.name, offset, opened.st_size, digest.intdigest())
        if opened.st_nlink > 1:
            self._linked[identity] = member
        self._note(member)

    def _note(self, member: Member) -> None:
        """Add a member to the index, unless other systems would read its name as a path to somewhere else."""
        try:
            relative(member.name)
        except FormatError:
            return
        self.lines += line_of(member)


def _pieces(file: BinaryIO, path: Path, size: int) -> Iterator[bytes]:
    while size:
        piece = file.read(min(size, _PIECE))
        if not piece:
            raise SqueezeError(f"{path} became shorter while it was read: run again when nothing writes to it")
        size -= len(piece)
        yield piece
