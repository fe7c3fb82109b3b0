"""Packed checkpoints beside one that is a difference: which of them is its base, by the hashes that it names, and which
cannot be read."""

import errno
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, SqueezeError, escaped
from squeeze.packing import container, folder, manifest
from squeeze.packing.container import PackedFile
from squeeze.packing.sources import may_be_coded
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

__all__ = [
    "SHOWN",
    "Hashes",
    "Link",
    "checkpoint_of",
    "fault_of",
    "faults_beside",
    "hashes_of",
    "history",
    "no_base_beside",
    "packed_beside",
    "packed_files",
]

Hashes = tuple[str, ...]  # sorted SHA-256 of the files of a checkpoint that are of one kind, unpacked
SHOWN = 16  # digits of a SHA-256 in what is said
_NAMED = 3  # faults that a message has room for


def packed_files(path: Path, limits: Limits) -> Iterator[PackedFile]:
    """The files of a packed checkpoint that can be read within limits; nothing where it is none. Raises FormatError and
    OSError where a packed folder cannot be read."""
    names = [""]
    if path.is_dir():
        if not (path / folder.MANIFEST).is_file():
            return
        names = [name for name in folder.files_to_take(path) if may_be_coded(name)]
    for name in names:
        try:
            yield container.read(folder.place(path, name), limits)
        except (OSError, SqueezeError):
            continue


def hashes_of(files: Iterable[PackedFile]) -> list[Hashes]:
    """Those by which a packed checkpoint of these files is known: of its files of safetensors, and of torch."""
    kinds: dict[bool, list[str]] = {False: [], True: []}
    for file in files:
        kinds[file.is_torch].append(file.description.sha256)
    return [tuple(sorted(hashes)) for hashes in kinds.values() if hashes]


def packed_beside(path: Path, wanted: Collection[Hashes], limits: Limits) -> Path | None:
    """The packed checkpoint in the folder that holds `path` whose files, unpacked, have these hashes; of several one
    that is no difference from another of them. What cannot be read is passed over."""
    found = None
    for other in _beside(path):
        files = _if_readable(other, limits)
        if set(wanted) <= set(hashes_of(files)):
            found = other
            if not {file.description.base for file in files} & set(wanted):
                break
    return found


def _beside(path: Path) -> Iterator[Path]:
    """What else is in the folder that holds `path`, and may be a checkpoint."""
    place = path.resolve()
    for other in sorted(place.parent.iterdir()):
        if other != place and (may_be_coded(other.name) or not other.is_file()):
            yield path.parent / other.name


def _if_readable(path: Path, limits: Limits) -> list[PackedFile]:
    """The files of a packed checkpoint, or none where it cannot be read."""
    try:
        return list(packed_files(path, limits))
    except (OSError, SqueezeError):
        return []


def no_base_beside(
    path: Path, wanted: Collection[Hashes], limits: Limits, remedy: str = "put it there"
) -> SqueezeError:
    """What to raise where `packed_beside` finds none: a DamagedError where one cannot be read, which may be it."""
    digests = ", ".join(sorted(hashes[0][:SHOWN] for hashes in wanted))
    found = faults_beside(path, limits)
    faults = [*found[:_NAMED], *([f"and {len(found) - _NAMED} others"] if len(found) > _NAMED else [])]
    return (DamagedError if found else SqueezeError)(
        f"{escaped(str(path))} is stored as a difference, and no packed checkpoint beside it is its base "
        f"(SHA-256 {digests}): {'; '.join(faults) or remedy}"
    )


def faults_beside(path: Path, limits: Limits) -> list[str]:
    """Of each packed checkpoint beside `path` that cannot be read why, with the name of the file."""
    faults = []
    for other in _beside(path):
        try:
            faults.append(fault_of(other, limits))
        except OSError:  # a folder that may not be looked into
            continue
    return [fault for fault in faults if fault]


def fault_of(path: Path, limits: Limits) -> str:
    """Why a packed checkpoint cannot be read, with the name of its first file that cannot; empty where it can be, or
    where it is none."""
    try:
        names = sorted(manifest.read(path, limits).coded) if (path / folder.MANIFEST).is_file() else []
    except SqueezeError as error:  # which names the manifest
        return escaped(str(error))
    for name in names if path.is_dir() else [""]:
        place = folder.place(path, name)
        try:
            file = tensorfile.read(place, limits)
            if name or container.is_packed(file):
                container.describe(file, limits)
        except (OSError, SqueezeError) as error:
            if name or place.suffix == folder.SUFFIX or isinstance(error, DamagedError):
                return f"{escaped(str(place))} cannot be read: {_why(error)}"
    return ""


def _why(error: Exception) -> str:
    return escaped((error.strerror or str(error)) if isinstance(error, OSError) else str(error))


def checkpoint_of(path: Path) -> Path:
    """What a packed file is a part of: the packed folder whose manifest names it, however deep in it; else itself."""
    place = path.absolute()
    for parent in place.parents:
        try:
            if (parent / folder.MANIFEST).is_file():
                known = manifest.read(parent).coded
                return parent if place.relative_to(parent).as_posix() in known else path
        except (OSError, SqueezeError):
            break
    return path


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
