"""Folders of models: which files are taken, what is left out, and where results may be written."""

import errno
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from squeeze.checkpoint import safetensors as tensorfile, weight_files
from squeeze.checkpoint.weight_files import (
    dangling,
    is_repository,
    read_index,
    repositories_in,
    shard_at,
    snapshot_of,
    why_missing,
)
from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.packing import container, sources
from squeeze.packing.sources import CODED, INDEX
from squeeze.system import moving
from squeeze.system.storage import relative, remote

SUFFIX = sources.SUFFIX
MANIFEST = weight_files.MANIFEST
CONTENT = "content"  # in the work folder

move_into_place = moving.move_into_place


def place(root: Path, name: str) -> Path:
    """The file `name` of the checkpoint `root`, which is the file itself where the name is empty."""
    return root / name if name else root


@dataclass(frozen=True)
class Contents:
    """What is packed of a checkpoint: its files by their names, that of a file by itself being empty; what of it is
    left out, and what else there is to say, in words."""

    root: Path
    files: dict[str, Path]
    left_out: tuple[str, ...]
    notes: list[str]


def contents_of(source: Path, strict: bool) -> Contents:
    """Return what is packed of a file or folder. strict: raises SqueezeError if anything is left out.

    Raises FormatError if nothing has tensors, or a repository of the Hugging Face cache has several snapshots, and none
    is main's; FileNotFoundError.
    """
    root, notes = _checkpoint_at(source)
    names = files_to_take(root)
    found = {name: place(root, name) for name in names}
    return Contents(root, found, left_out(root, strict), [*notes, *_packed_twice(root, names)])


def _checkpoint_at(source: Path) -> tuple[Path, list[str]]:
    """Return the checkpoint that is packed, and what there is to say of that in words: of a repository of the Hugging
    Face cache, in which every file is twice, a snapshot. Raises FormatError if that has several, and none is main's."""
    if not is_repository(source):
        return source, []
    snapshot = snapshot_of(source)
    return snapshot, [
        f"{printable(source)}: a repository of the Hugging Face cache; packed is its snapshot {snapshot.name}"
    ]


def _packed_twice(source: Path, names: Iterable[str]) -> list[str]:
    """Return, in words, which files are links to others that are packed as well: each becomes a file of its own."""
    if remote(source) or not source.is_dir():
        return []
    real = {path.resolve(): name for name in names if not (path := source / name).is_symlink()}
    links = [(source / name, real.get((source / name).resolve())) for name in names if (source / name).is_symlink()]
    return [
        f"{printable(link)}: is a link to {printable(other)}, and packed as a file" for link, other in links if other
    ]


def files_to_take(source: Path) -> list[str]:
    """Names of all files below a folder, or the empty name for a file. Raises FormatError where none has tensors,
    and FileNotFoundError."""
    _check_exists(source)
    if not source.is_dir():
        if source.suffix not in CODED:
            raise FormatError(
                f"{source}: not a checkpoint: pack takes {SUFFIX} files, those of torch ({', '.join(CODED[1:])}), and "
                "folders that hold them"
            )
        return [""]
    if is_repository(source):
        raise FormatError(f"{source}: {why_missing(source, 'weights')}")
    if caches := repositories_in(source):
        raise FormatError(
            f"{source}: holds repositories of the Hugging Face cache: name one of them, such as {caches[0]}"
        )
    found = _below(source)
    paths = [path for path in found if path.is_file()]
    names = [_name(source, path) for path in paths]
    if not any(name.endswith(CODED) for name in names):
        for path in found:
            if path.name.endswith(CODED) and path.is_symlink():
                raise FormatError(f"{path}: {dangling(path)}")
        raise FormatError(f"{source}: no {SUFFIX} file is in this folder, and none of torch")
    for name in names:
        if name.endswith(INDEX):
            _check_index(source, name)
    return names


def _name(source: Path, path: Path) -> str:
    """Raises FormatError for a name that a manifest could not hold."""
    try:
        return relative(path.relative_to(source).as_posix())
    except FormatError as error:
        raise FormatError(f"{source}: {error}: rename it") from None


def indexes_in(source: Path, names: Iterable[str]) -> list[Path]:
    """Return the indexes among the files of a folder."""
    return [source / name for name in names if name.endswith(INDEX)]


def _check_exists(source: Path) -> None:
    if not source.exists():
        is_link = not remote(source) and source.is_symlink()
        raise FileNotFoundError(errno.ENOENT, dangling(source) if is_link else os.strerror(errno.ENOENT), str(source))


def _below(source: Path) -> list[Path]:
    """All that a folder holds, in order; links to folders are not followed. OSError where it cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    if prefix := remote(source):
        return [cast(Path, path) for path in prefix.below()]
    walk = os.walk(source, onerror=fail)
    return sorted(Path(root, name) for root, folders, names in walk for name in (*folders, *names))


def left_out(source: Path, strict: bool) -> tuple[str, ...]:
    """What a packed folder does not bring back, each in words. strict: raises SqueezeError where there is any."""
    reasons = [(path, _reason_left(path)) for path in _below(source)] if source.is_dir() else []
    omitted = tuple(f"{printable(path)}: {reason}" for path, reason in reasons if reason)
    if strict and omitted:
        raise SqueezeError(f"{omitted[0]}, which would be left out; move it away, or pack without `strict`")
    return omitted


def _reason_left(path: Path) -> str | None:
    if path.is_file():
        return None
    if path.is_symlink():
        return "is a link to a folder" if path.is_dir() else dangling(path)
    if path.is_dir():
        return None if any(path.iterdir()) else "is an empty folder"
    return "is no regular file"


def _check_index(source: Path, name: str) -> None:
    """Raises FormatError where an index names shards or tensors that are not there."""
    shards: dict[str, set[str]] = {}
    for tensor, shard in read_index(source / name).items():
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in shards.items():
        path = shard_at((source / name).parent, shard)
        try:
            missing = tensors - set(tensorfile.read(path).by_name)
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None
        if missing:
            raise FormatError(f"{source / name}: tensor {printable(repr(min(missing)))} is not in {shard}")


def check_apart(source: Path, target: Path) -> None:
    """Raises SqueezeError where one of two checkpoints, both on the disk or both at URLs, would lie in the other."""
    if bool(remote(source)) != bool(remote(target)):
        return
    if target.resolve() == source.resolve() or (target.exists() and target.samefile(source)):
        raise SqueezeError("input and output are the same")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise SqueezeError("the output may not lie in the input folder")
    if target.resolve() in source.resolve().parents:
        raise SqueezeError("the input may not lie in the output folder")


def check_target(source: Path, target: Path, overwrite: bool) -> None:
    """Raises SqueezeError where `target` may not be written from `source`."""
    _check_exists(source)
    if not target.parent.is_dir():
        raise SqueezeError(f"the folder {target.parent} does not exist")
    check_apart(source, target)
    if os.path.lexists(target):
        if target.is_dir() != source.is_dir():
            kind = "folder" if target.is_dir() else "file"
            raise SqueezeError(f"{target} exists and is a {kind}; choose another name")
        if not overwrite and (not target.is_dir() or any(target.iterdir())):
            raise moving.in_the_way(target)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def has_packed(path: Path) -> bool:
    """Whether `path` is a packed folder, or a packed file of safetensors."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return path.suffix == SUFFIX and container.is_packed(tensorfile.read(path))


def raw_size(source: Path) -> int:
    """Raw bytes of a checkpoint, packed or not, as far as headers tell them."""
    total = 0
    for path in source.rglob("*") if source.is_dir() else [source]:
        try:
            total += _raw_size(path) if path.is_file() else 0
        except (SqueezeError, OSError):
            continue
    return total


def _raw_size(path: Path) -> int:
    try:
        return container.read(path).description.size if path.name.endswith(CODED) else path.stat().st_size
    except FormatError:
        return path.stat().st_size
