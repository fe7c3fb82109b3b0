"""What a packed checkpoint is a difference from, and what that is, to the one that is packed whole."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from squeeze.errors import DamagedError, FormatError, escaped
from squeeze.packing.beside import fault_of, faults_beside, hashes_of, packed_beside, packed_files
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

__all__ = ["Link", "history"]


@dataclass(frozen=True)
class Link:
    """One checkpoint of a chain. `path` is None where it was not found beside the one before it."""

    path: Path | None
    raw: int  # bytes of its files that are packed
    coded: int
    sha256: tuple[str, ...]  # of these files, unpacked, sorted: of those of safetensors, if there are any, or of torch
    base: tuple[str, ...]  # the same of what it is a difference from; empty where it is packed whole
    faults: tuple[str, ...] = ()  # where it was not found: what packed checkpoints beside cannot be read, and why


def history(path: Path | str) -> Iterator[Link]:
    """The chain of a packed file or folder, from it to the checkpoint that is packed whole, or to one that is not
    beside the one before. Raises FormatError where it is not packed, DamagedError where it cannot be read."""
    place = path_of(path)
    if not place.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
    limits = Limits()
    if fault := fault_of(place, limits):
        raise DamagedError(fault)
    seen: set[Path] = set()
    while True:
        files = list(packed_files(place, limits))
        if not files:
            raise FormatError(f"{escaped(str(place))}: not a packed checkpoint")
        hashes = hashes_of(files)[0]
        wanted = {file.description.base: file.is_torch for file in files if file.description.base}
        base = min(wanted, key=lambda one: wanted[one], default=())
        yield Link(place, sum(file.description.size for file in files), sum(f.file.size for f in files), hashes, base)
        seen.add(place)
        if not base:
            return
        found = packed_beside(place, wanted, limits)
        if found is None or found in seen:
            yield Link(None, 0, 0, base, (), tuple(faults_beside(place, limits)))
            return
        place = found
