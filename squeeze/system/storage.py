"""Where files lie: on the disk, or at a URL that fsspec reads ("s3://bucket/key", "hf://owner/model", "memory://name").

Callers take a path from `path_of`, and read it as a pathlib.Path wherever it is. What is written to a URL appears whole
or not at all: upload.py.
"""

import os
from pathlib import Path
from typing import cast

from squeeze.errors import SqueezeError
from squeeze.system.remote_path import URL, RemotePath

__all__ = ["is_url", "local_path", "path_of", "remote"]

_LOCAL = ("file://", "local://")


def is_url(name: object) -> bool:
    """Whether a name is a URL: it has a scheme, "://", and perhaps others that are chained to it by "::"."""
    return isinstance(name, str) and URL.fullmatch(name) is not None


def path_of(name: str | os.PathLike[str]) -> Path:
    """Return the path that the caller named; the text of a file goes through names.py.

    A URL of a local file becomes that file's path, any other URL a RemotePath, which has the methods of Path that
    reading needs. Raises SqueezeError for a URL without a path.
    """
    if not isinstance(name, str) or not is_url(name):
        return cast(Path, name) if isinstance(name, RemotePath) else Path(name)
    for scheme in _LOCAL:
        if name.startswith(scheme) and "::" not in name:
            return Path(name.removeprefix(scheme))
    path = RemotePath(name)
    if not path.name and not path.is_chained:
        raise SqueezeError(f"{name}: names no object")
    return cast(Path, path)


def local_path(name: str | os.PathLike[str]) -> Path:
    """The path of what must lie on this machine. Raises SqueezeError for a URL of anything else."""
    path = path_of(name)
    if remote(path):
        raise SqueezeError(f"{str(path)!r} is a URL, and this takes a path: fetch the file first")
    return path


def remote(path: object) -> RemotePath | None:
    """The path, where it is that of a URL."""
    return path if isinstance(path, RemotePath) else None
