"""Files that wait for a worker, in few bytes each: a cluster of 1,000 processors has a million small ones in hand."""

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from squeeze.cluster.files import File
from squeeze.system.remote_path import RemotePath
from squeeze.system.storage import remote

__all__ = ["Held"]


class Held(Sequence[File]):
    """A sequence of files that cannot be changed, kept as compressed text."""

    def __init__(self, items: Sequence[File]):
        rows = [
            (_named(one.source), one.size, one.stamp, _named(one.target), one.checksum, one.version) for one in items
        ]
        self._count, self._data = len(rows), zlib.compress(json.dumps(rows).encode(), 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[File]:
        for source, size, stamp, target, *rest in json.loads(zlib.decompress(self._data)):
            yield File(_path(source), size, stamp, None if target is None else _path(target), *rest)


def _named(path: Path | None) -> Any:
    place = remote(path)
    return place.named if place else None if path is None else str(path)


def _path(named: Any) -> Path:
    return Path(named) if isinstance(named, str) else cast(Path, RemotePath(*named))
