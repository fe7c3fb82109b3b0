"""Where files lie: on the disk, or at a URL that fsspec reads ("s3://bucket/key", "hf://owner/model", "memory://name").

Callers take a path from `path_of`, and read it as a pathlib.Path wherever it is. What is written to a URL appears whole
or not at all: upload.py.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from squeeze.errors import SqueezeError
from squeeze.system.remote_path import URL, RemotePath

__all__ = ["is_url", "local_path", "path_below", "path_of", "remote"]

_LOCAL = ("file://", "local://")


def is_url(name: object) -> bool:
    """Whether a name is a URL: it has a scheme, "://", and perhaps others that are chained to it by "::"."""
    return isinstance(name, str) and URL.fullmatch(name) is not None


def path_of(name: str | os.PathLike[str]) -> Path:
    """The path that a user named. A URL of a local file is that file's path; any other is a RemotePath, which has the
    methods of Path that reading needs. Raises SqueezeError for a URL without a path."""
    if not isinstance(name, str) or not is_url(name):
        return cast(Path, name) if isinstance(name, RemotePath) else Path(name)
    for scheme in _LOCAL:
        if name.startswith(scheme) and "::" not in name:
            return Path(name.removeprefix(scheme))
    path = RemotePath(name)
    if not path.name and not path.is_chained:
        raise SqueezeError(f"{name}: names no object")
    return cast(Path, path)


def path_below(name: str, roots: Iterable[str]) -> Path:
    """The path of a name that a listing of one of these gave: where it lies below a URL, no more of it is parsed."""
    for root in filter(is_url, roots):
        if name.startswith(f"{root}/"):
            return path_of(root) / name.removeprefix(f"{root}/")
    return path_of(name)


def local_path(name: str | os.PathLike[str]) -> Path:
    """The path of what must lie on this machine. Raises SqueezeError for a URL of anything else."""
    path = path_of(name)
    if remote(path):
        raise SqueezeError(f"{str(path)!r} is a URL, and this takes a path: fetch the file first")
    return path


def remote(path: object) -> RemotePath | None:
    """The path, where it is that of a URL."""
    return path if isinstance(path, RemotePath) else None
