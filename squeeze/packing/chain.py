"""Chains of packed checkpoints: finding the base of a difference by hash, and walking a chain to its end."""

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
    "base_not_found",
    "checkpoint_of",
    "fault_of",
    "find_packed",
    "hashes_of",
    "history",
    "packed_files",
    "unreadable_siblings",
]

Hashes = tuple[str, ...]  # sorted SHA-256 of the restored files of one kind (safetensors or torch)
SHOWN = 16  # digits of a SHA-256 in messages
_NAMED = 3  # faults listed in a message


def packed_files(path: Path, limits: Limits) -> Iterator[PackedFile]:
    """Yield the files of a packed checkpoint that can be read within limits; nothing if it is not packed.

    Raises FormatError and OSError if a packed folder cannot be read.
    """
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
    """Return the hash tuples by which a packed checkpoint is known: one for safetensors, one for torch's files."""
    kinds: dict[bool, list[str]] = {False: [], True: []}
    for file in files:
        kinds[file.is_torch].append(file.description.sha256)
    return [tuple(sorted(hashes)) for hashes in kinds.values() if hashes]


def find_packed(path: Path, base_hashes: Collection[Hashes], limits: Limits) -> Path | None:
    """Find the packed checkpoint in the folder of `path` whose restored files have these hashes.

    Unreadable checkpoints are skipped. If several match, one that is not a difference from another of them is
    preferred.
    """
    found = None
    for other in _siblings(path):
        files = _if_readable(other, limits)
        if set(base_hashes) <= set(hashes_of(files)):
            found = other
            if not {file.description.base for file in files} & set(base_hashes):
                break
    return found


def _siblings(path: Path) -> Iterator[Path]:
    """Yield the other files and folders in the folder of `path` that may be checkpoints."""
    place = path.resolve()
    for other in sorted(place.parent.iterdir()):
        if other != place and (may_be_coded(other.name) or not other.is_file()):
            yield path.parent / other.name


def _if_readable(path: Path, limits: Limits) -> list[PackedFile]:
    """Return the files of a packed checkpoint, or an empty list if it cannot be read."""
    try:
        return list(packed_files(path, limits))
    except (OSError, SqueezeError):
        return []


def base_not_found(
    path: Path, base_hashes: Collection[Hashes], limits: Limits, remedy: str = "put it there"
) -> SqueezeError:
    """Return the error to raise if `find_packed` finds nothing.

    It is a DamagedError if an unreadable checkpoint in the folder may be the base.
    """
    digests = ", ".join(sorted(hashes[0][:SHOWN] for hashes in base_hashes))
    found = unreadable_siblings(path, limits)
    faults = [*found[:_NAMED], *([f"and {len(found) - _NAMED} others"] if len(found) > _NAMED else [])]
    return (DamagedError if found else SqueezeError)(
        f"{escaped(str(path))} is stored as a difference, and its base is not in the same folder "
        f"(SHA-256 {digests}): {'; '.join(faults) or remedy}"
    )


def unreadable_siblings(path: Path, limits: Limits) -> list[str]:
    """Return, for each unreadable packed checkpoint in the folder of `path`, the reason with the file's name."""
    faults = []
    for other in _siblings(path):
        try:
            faults.append(fault_of(other, limits))
        except OSError:  # a folder without permission
            continue
    return [fault for fault in faults if fault]


def fault_of(path: Path, limits: Limits) -> str:
    """Return why a packed checkpoint cannot be read, with the name of the first such file.

    The text is empty if it can be read, or is not packed.
    """
    try:
        names = sorted(manifest.read(path, limits).packed_names) if (path / folder.MANIFEST).is_file() else []
    except SqueezeError as error:  # the error names the manifest
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
    """Return the packed folder whose manifest names a packed file, or the file itself."""
    place = path.absolute()
    for parent in place.parents:
        try:
            if (parent / folder.MANIFEST).is_file():
                known = manifest.read(parent).packed_names
                return parent if place.relative_to(parent).as_posix() in known else path
        except (OSError, SqueezeError):
            break
    return path


@dataclass(frozen=True)
class Link:
    """A checkpoint of a chain. `path` is None if it is not in the folder of the difference from it."""

    path: Path | None
    raw: int  # bytes of its files before packing
    coded: int
    sha256: tuple[str, ...]  # sorted, of the restored files: safetensors if there are any, else torch
    base: tuple[str, ...]  # sha256 of its base; empty if it is packed whole
    faults: tuple[str, ...] = ()  # if it was not found: unreadable packed checkpoints in the folder, and why


def history(path: Path | str) -> Iterator[Link]:
    """Yield the checkpoints of a chain, from a packed one to the one that is packed whole.

    The chain ends early, with a link without path, if a base is not in the same folder.

    Raises FormatError if `path` is not packed, DamagedError if it cannot be read.
    """
    place = path_of(path)
    if not place.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
    limits = Limits()
    if fault := fault_of(place, limits):
        raise DamagedError(fault)
    visited: set[Path] = set()
    while True:
        files = list(packed_files(place, limits))
        if not files:
            raise FormatError(f"{escaped(str(place))}: not a packed checkpoint")
        hashes = hashes_of(files)[0]
        base_kinds = {file.description.base: file.is_torch for file in files if file.description.base}
        base = min(base_kinds, key=lambda one: base_kinds[one], default=())
        yield Link(place, sum(file.description.size for file in files), sum(f.file.size for f in files), hashes, base)
        visited.add(place)
        if not base:
            return
        found = find_packed(place, base_kinds, limits)
        if found is None or found in visited:
            yield Link(None, 0, 0, base, (), tuple(unreadable_siblings(place, limits)))
            return
        place = found
