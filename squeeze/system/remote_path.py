"""Objects and prefixes at URLs, with the methods of pathlib.Path that reading needs, so that readers accept both.

Writing is not here: see upload.py.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from inspect import signature
from pathlib import PurePosixPath
from typing import Any, BinaryIO, cast

from squeeze.errors import SqueezeError
from squeeze.system.remote_errors import connection_error, retry, translated_errors
from squeeze.system.remote_file import RemoteFile
from squeeze.system.remote_info import facts_of, infos, objects, status_of, take_keys_whole, version_of
from squeeze.system.s3_objects import first_bytes

__all__ = ["URL", "RemotePath", "look_together", "read_together"]

# Protocols that are chained (fsspec: "simplecache::s3://bucket/key"), the one that names the path, the path, the rest.
URL = re.compile(r"((?:[A-Za-z][\w+.-]*::)*[A-Za-z][\w+.-]*://)(.*?)((?:::.*)?)", re.DOTALL)
_TOGETHER = 32  # concurrent requests of one call, more than there are connections


class RemotePath:
    """A URL that fsspec reads, or a key below one. Only the URL is parsed; the key is taken literally.

    The store is asked once for `exists`, `is_file` and `is_dir`, and each time for `stat`. Methods raise OSError if the
    store refuses a request or cannot be reached.
    """

    def __init__(self, url: str, key: str | None = None):
        found = URL.fullmatch(url)
        if found is None:
            raise ValueError(f"not a URL: {url}")
        self._scheme, root, self._rest = found.groups()
        self._root = root.rstrip("/") if self._scheme != "file://" else root
        self._key = key
        self._path = self._root if key is None else f"{self._root}/{key}"

    @classmethod
    def of(cls, fs: Any, path: str) -> "RemotePath":
        """Return the path of an object in a filesystem of fsspec that is already open."""
        found = cls(fs.unstrip_protocol(path))
        found._place = fs, path
        return found

    def __str__(self) -> str:
        return f"{self._scheme}{self._path}{self._rest}"

    __fspath__ = __str__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __reduce__(self) -> tuple[type["RemotePath"], tuple[str, str | None]]:
        return RemotePath, self.url_and_key  # another process connects by itself

    @classmethod
    def listed(cls, url_and_key: tuple[str, str | None], size: int) -> "RemotePath":
        """Return a path from a listing with its size in bytes, so that the store is not asked again."""
        path = cls(*url_and_key)
        path._info = {"type": "file", "size": size}
        return path

    @property
    def url_and_key(self) -> tuple[str, str | None]:
        """The parsed URL and the key below it: RemotePath(*named) is the same path."""
        return f"{self._scheme}{self._root}{self._rest}", self._key

    def __hash__(self) -> int:
        return hash(str(self))

    def __lt__(self, other: "RemotePath") -> bool:
        return self._path < other._path

    def __truediv__(self, name: object) -> "RemotePath":
        if not self._path:
            return RemotePath(f"{self._scheme}{name}{self._rest}")
        return RemotePath(self.url_and_key[0], str(name) if self._key is None else f"{self._key}/{name}")

    @property
    def is_chained(self) -> bool:
        """True if another URL follows, as in "simplecache::s3://bucket/key"."""
        return bool(self._rest)

    @property
    def name(self) -> str:
        path = self._path.partition("?")[0] if self._scheme.startswith("http") else self._path
        return path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> "RemotePath":
        if self._key is not None:
            above, slash, _ = self._key.rpartition("/")
            return RemotePath(self.url_and_key[0], above if slash else None)
        above = self._root.rpartition("/")[0]
        root = above.rstrip("/")
        return RemotePath(f"{self._scheme}{root}{self._rest}", above[len(root) + 1 :] if above != root else None)

    @property
    def parents(self) -> tuple["RemotePath", ...]:
        above = self.parent
        return () if not above._path else (above, *above.parents)

    def with_name(self, name: str) -> "RemotePath":
        return self.parent / name

    def with_suffix(self, suffix: str) -> "RemotePath":
        return self.with_name(self.name.removesuffix(self.suffix) + suffix)

    def resolve(self) -> "RemotePath":
        return self

    absolute = resolve

    def samefile(self, other: object) -> bool:
        return self == other

    def relative_to(self, folder: "RemotePath") -> PurePosixPath:
        """Return the key relative to a folder. Raise SqueezeError if it is not a normalised path, which could be
        ambiguous.
        """
        key = self._path.removeprefix(folder._path)
        key = key.removeprefix("/") if folder._path else key
        path = PurePosixPath(key)
        if key and (str(path) != key or path.is_absolute() or ".." in path.parts):
            raise SqueezeError(f"{self}: its key has an empty part, '.' or '..', so that it is not a path: rename it")
        return path

    def is_relative_to(self, folder: object) -> bool:
        return self == folder or folder in self.parents

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """The filesystem of fsspec and the path in it."""
        return self.filesystem()

    def filesystem(self, **options: object) -> tuple[Any, str]:
        """Return the filesystem of fsspec and the path in it. `options` are those of fsspec.url_to_fs."""
        with translated_errors(str(self)):
            from fsspec.core import url_to_fs

            self._check_chain()
            fs, path = url_to_fs(self.url_and_key[0], **options)
            take_keys_whole(fs)
            return fs, path if self._key is None else f"{path}/{self._key}"

    def _check_chain(self) -> None:
        """Raise SqueezeError if another URL follows and this protocol does not support that."""
        if not self._rest:
            return
        from fsspec import get_filesystem_class

        protocol = self._scheme.removesuffix("://").rpartition("::")[2]
        kinds = get_filesystem_class(protocol).__mro__
        if not any("target_options" in signature(kind.__init__).parameters for kind in kinds):
            reason = f"{protocol} does not support chained URLs ('::'): name its prefix, with -r"
            raise SqueezeError(f"{self}: {reason}")

    def _look(self) -> dict[str, Any] | None:
        """Return what the store says now, or None if the object does not exist."""
        fs, path = self._place
        try:
            with translated_errors(str(self)):
                fs.invalidate_cache(path)
            self._info = retry(str(self), lambda: fs.info(path))
        except FileNotFoundError:
            self._info = None
        return self._info

    @cached_property
    def _info(self) -> dict[str, Any] | None:
        return self._look()

    @property
    def version(self) -> str:
        """The store's own name of the version that it described, or "" if it has none."""
        return version_of(self._info or {})

    def exists(self) -> bool:
        return self._info is not None

    def is_file(self) -> bool:
        return self._info is not None and self._info["type"] == "file"

    def is_dir(self) -> bool:
        return self._info is not None and self._info["type"] == "directory"

    def is_symlink(self) -> bool:
        return False

    def stat(self) -> os.stat_result:
        """Return the current status. Raise FileNotFoundError if the object does not exist."""
        return self._status(self._look())

    def lstat(self) -> os.stat_result:
        return self._status(self._info)

    def _status(self, info: dict[str, Any] | None) -> os.stat_result:
        if info is None:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        if info["type"] != "directory" and info.get("size") is None:
            raise connection_error(str(self), "the server does not say how long it is")
        return status_of(info)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Return a RemoteFile. Raise FileNotFoundError if the object does not exist."""
        assert mode == "rb"
        fs, path = self._place
        with translated_errors(str(self)):
            from fsspec.spec import AbstractBufferedFile

        def opened() -> tuple[Any, dict[str, Any]]:
            fs.invalidate_cache(path)
            file = fs.open(path, "rb", cache_type="none")
            details = file.details if isinstance(file, AbstractBufferedFile) else {}
            return file, details if any(facts_of(details)) else fs.info(path)

        file, details = retry(str(self), opened)

        def fetch(begin: int, end: int) -> bytes:
            if not isinstance(file, AbstractBufferedFile):  # file objects may share one position
                return bytes(fs.cat_file(path, start=begin, end=end))
            file.seek(begin)
            return bytes(file.read(end - begin))

        status = self._status({"type": "file", **details})
        return cast(BinaryIO, RemoteFile(str(self), status, fetch, file.close, path, str(details.get("ETag", ""))))

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def unlink(self) -> None:
        fs, path = self._place
        retry(str(self), lambda: fs.rm_file(path))

    def iterdir(self) -> Iterator["RemotePath"]:
        fs, path = self._place
        with translated_errors(str(self)):
            fs.invalidate_cache(path)
        found = retry(str(self), lambda: fs.ls(path, detail=True))
        names = {one["name"].rstrip("/") if one["type"] == "directory" else one["name"]: one for one in found}
        for name, info in names.items():
            yield from self._listed(name, info)

    @property
    def unlisted(self) -> str:
        """The reason why objects below this prefix are not listed, if `walk` yielded the prefix instead of them;
        otherwise "".
        """
        if not (self._info or {}).get("unlisted"):
            return ""
        return "the storage's package lists no keys with an empty part, as in a//b, and there are some: rename them"

    def descendants(self) -> list["RemotePath"]:
        """Return all objects whose keys begin with this one and a slash, sorted. Raise SqueezeError if some are not
        listed.
        """
        try:
            found = sorted(self.walk())
        except FileNotFoundError:
            return []
        for one in found:
            if one.unlisted:
                raise SqueezeError(f"{one}: {one.unlisted}")
        return found

    def walk(self) -> Iterator["RemotePath"]:
        """Yield all objects below this prefix in the order of the store, a page of the listing at a time.

        A listing that breaks resumes after the last key. Objects that cannot be listed are one path that is `unlisted`.

        Raises:
            SqueezeError: A listing broke whose keys are not sorted, so that it cannot resume.
        """
        fs, path = self._place
        found, last, again, in_order = objects(fs, path), "", False, True

        def following() -> dict[str, Any] | None:
            nonlocal found, again
            try:
                return next((info for info in found if not again or info["name"] > last), None)
            except Exception as error:
                if not in_order:
                    reason = "its listing broke and cannot resume, since its keys are not sorted: run again"
                    raise SqueezeError(f"{self}: {reason}") from error
                found, again = objects(fs, path), True  # restart the listing
                raise

        while info := retry(str(self), following):
            again, in_order = False, in_order and info["name"] > last
            last = info["name"]
            yield from self._listed(last, info)

    def rglob(self, pattern: str) -> Iterable["RemotePath"]:
        assert pattern == "*"
        return self.descendants()

    def _listed(self, name: str, info: dict[str, Any]) -> Iterator["RemotePath"]:
        """Yield the path of a listed entry, unless it is the folder itself, for which a store may keep an object."""
        fs, path = self._place
        root, key = path.strip("/"), name.lstrip("/")
        if key != root and (not key.endswith("/") or info["size"] or "unlisted" in info):
            found = self / (key.removeprefix(f"{root}/") if root else key)
            found._place, found._info = (fs, name), info
            yield found


def read_together(paths: list[RemotePath]) -> list[bytes | Exception]:
    """Read many objects of one store concurrently.

    Returns:
        The content of each object, or an exception if it cannot be read or has another size than listed.
    """
    if not paths:
        return []
    sizes = [path.lstat().st_size for path in paths]
    numbers = [number for number, size in enumerate(sizes) if size]  # stores refuse empty ranges
    with translated_errors(str(paths[0].parent)):
        names, ends = [paths[number]._place[1] for number in numbers], [sizes[number] + 1 for number in numbers]
        found = dict(zip(numbers, _first_bytes(paths[0]._place[0], names, ends), strict=True))
    return [_of_size(path, found.get(number, b""), sizes[number]) for number, path in enumerate(paths)]


def _first_bytes(fs: Any, names: list[str], ends: list[int]) -> list[bytes | Exception]:
    """Return the first `ends[i]` bytes of each object, or an exception: by obstore if it can, otherwise by fsspec."""
    fast = first_bytes(fs, names, ends)
    missing = [number for number, data in enumerate(fast) if data is None]
    more = {"batch_size": _TOGETHER} if "batch_size" in signature(fs.cat_ranges).parameters else {}
    ranges = [names[number] for number in missing], [0] * len(missing), [ends[number] for number in missing]
    slow = iter(fs.cat_ranges(*ranges, on_error="return", **more) if missing else [])
    return [next(slow) if data is None else data for data in fast]


def look_together(paths: list[RemotePath]) -> None:
    """Ask each store concurrently for what `exists` and `lstat` return. Where that fails, each path asks for itself."""
    stores: dict[int, list[RemotePath]] = {}
    for path in paths:
        stores.setdefault(id(path._place[0]), []).append(path)
    for group in stores.values():
        fs = group[0]._place[0]
        for path, info in zip(group, infos(fs, [path._place[1] for path in group]), strict=True):
            if not isinstance(info, Exception):
                path._info = info


def _of_size(path: RemotePath, found: bytes | Exception, size: int) -> bytes | Exception:
    if not isinstance(found, Exception):
        return found if len(found) == size else OSError(errno.EBUSY, "it was replaced after it was listed", str(path))
    try:
        with translated_errors(str(path)):
            raise found
    except (OSError, SqueezeError) as error:
        return error
