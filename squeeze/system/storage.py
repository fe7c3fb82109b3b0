"""Paths: those that a caller names, on the disk or at a URL, and those that the text of a file names.

A caller may name any path, and any URL that fsspec reads: `path_of`. Code reads both with the methods of pathlib.Path,
and what is written to a URL appears complete or not at all (upload.py). The text of a manifest, journal, index or
configuration is untrusted. It becomes a path only by `component`, `relative`, `below` and `within`, and cannot leave
the folder that the caller named: it is not a URL, not absolute, and has no "..".
"""

import os
import re
from pathlib import Path
from typing import Any, cast

from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.system.remote_path import URL, RemotePath

__all__ = ["component", "is_url", "join_untrusted", "local_path", "path_of", "relative", "remote", "resolve_untrusted"]

_LOCAL = ("file://", "local://")


def is_url(name: object) -> bool:
    """Return whether a name is a URL, such as "s3://bucket/key" or the chained "simplecache::s3://bucket/key"."""
    return isinstance(name, str) and URL.fullmatch(name) is not None


def path_of(name: str | os.PathLike[str]) -> Path:
    """Return the path that a caller names.

    The URL of a local file becomes its path. Any other URL becomes a RemotePath, which has the methods of Path that
    reading needs. Raises SqueezeError for a URL without a path.
    """
    if not isinstance(name, str) or not is_url(name):
        return cast(Path, name) if isinstance(name, RemotePath) else Path(name)
    for scheme in _LOCAL:
        if name.startswith(scheme) and "::" not in name:
            return Path(name.removeprefix(scheme))
    path = RemotePath(name)
    if not path.name and not path.is_chained:
        raise SqueezeError(f"{name}: the URL has no path: name an object")
    return cast(Path, path)


def local_path(name: str | os.PathLike[str]) -> Path:
    """Return a path on this machine. Raise SqueezeError for the URL of anything else."""
    path = path_of(name)
    if remote(path):
        raise SqueezeError(f"{str(path)!r} is a URL, and this takes a path: fetch the file first")
    return path


def remote(path: object) -> RemotePath | None:
    """Return the path if it is that of a URL, otherwise None."""
    return path if isinstance(path, RemotePath) else None


_LONGEST = 255  # bytes of a component, as file systems have it
_LONGEST_PATH = 4096  # bytes
_NO_PART = {"", ".", ".."}
_ELSEWHERE = re.compile(r"[A-Za-z]:|.*::|.*[\\\0]", re.DOTALL)  # a drive; chained URLs; the other separator


def component(text: Any) -> str:
    """Return the text if it is the name of one file or folder. Raise FormatError otherwise."""
    if not _stays_below(text) or "/" in text:
        raise _wrong(text, "the name of one file or folder")
    return str(text)


def relative(text: Any) -> str:
    """Return the text if it is a path that stays below its folder, with "/" between its parts. Raise FormatError
    otherwise.
    """
    if not _stays_below(text):
        raise _wrong(text, "the path of a file below the folder")
    return str(text)


def _stays_below(text: Any) -> bool:
    parts = text.split("/") if isinstance(text, str) else [""]
    sizes = [len(os.fsencode(part)) if _is_encodable(part) else 0 for part in parts]
    fits = all(0 < size <= _LONGEST for size in sizes) and sum(sizes) + len(sizes) <= _LONGEST_PATH
    return fits and _NO_PART.isdisjoint(parts) and not _ELSEWHERE.match(text)


def join_untrusted(folder: Path, text: Any) -> Path:
    """Return the path of an untrusted name in a folder. Raise FormatError for text that leads elsewhere."""
    return folder / relative(text)


def resolve_untrusted(text: Any, roots: list[Path]) -> Path:
    """Return the path of an untrusted absolute name if it is in one of the folders or URLs that the caller named.

    Local names may be relative to the current folder, as the command that wrote them was called. Links are followed
    before the comparison. Raises FormatError for any other name.
    """
    for root in roots if isinstance(text, str) else ():
        if is_url(str(root)):
            key = text.removeprefix(f"{root}/")
            if key != text and _NO_PART.isdisjoint(key.split("/")):  # a key is never parsed as a URL
                return root / str(key)
        elif not is_url(text) and "\0" not in text and _is_encodable(text):
            path = Path(text)
            if path.resolve().is_relative_to(root.resolve()):
                return path
    folders = ", ".join(printable(root) for root in roots)
    raise _wrong(text, f"a file in {folders or 'a folder that is named'}")


def _is_encodable(part: str) -> bool:
    try:
        os.fsencode(part)
    except UnicodeEncodeError:
        return False
    return True


def _wrong(text: Any, expected: str) -> FormatError:
    return FormatError(f"expected {expected}, got {printable(repr(text))}")
