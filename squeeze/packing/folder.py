"""Folders of models: which files are packed, what is left out, and where results may be written."""

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
    """Return the path of file `name` of the checkpoint `root`; the empty name is the checkpoint itself."""
    return root / name if name else root


@dataclass(frozen=True)
class Contents:
    """The files of a checkpoint that are packed.

    files: paths by name; a checkpoint of one file has the empty name. left_out: what is not packed, and notes: what
    else a user should know, as messages.
    """

    root: Path
    files: dict[str, Path]
    left_out: tuple[str, ...]
    notes: list[str]


def contents_of(source: Path, strict: bool) -> Contents:
    """List what is packed of a file or folder.

    Args:
        source: the checkpoint.
        strict: raise SqueezeError if anything would be left out.

    Raises:
        FormatError: if nothing has tensors, or a repository of the Hugging Face cache has several snapshots and none is
            that of main.
        FileNotFoundError: if the source does not exist.
    """
    root, notes = _checkpoint_at(source)
    names = files_to_take(root)
    found = {name: place(root, name) for name in names}
    return Contents(root, found, left_out(root, strict), [*notes, *_packed_twice(root, names)])


def _checkpoint_at(source: Path) -> tuple[Path, list[str]]:
    """Return the checkpoint that is packed, and notes about it.

    A repository of the Hugging Face cache has every file twice, so one of its snapshots is packed. Raises FormatError
    if it has several and none is that of main.
    """
    if not is_repository(source):
        return source, []
    snapshot = snapshot_of(source)
    return snapshot, [
        f"{printable(source)}: a repository of the Hugging Face cache; packed is its snapshot {snapshot.name}"
    ]


def _packed_twice(source: Path, names: Iterable[str]) -> list[str]:
    """Return a note for each link to a file that is packed as well; the link is packed as a file of its own."""
    if remote(source) or not source.is_dir():
        return []
    real = {path.resolve(): name for name in names if not (path := source / name).is_symlink()}
    links = [(source / name, real.get((source / name).resolve())) for name in names if (source / name).is_symlink()]
    return [
        f"{printable(link)}: is a link to {printable(other)}, and packed as a file" for link, other in links if other
    ]


def files_to_take(source: Path) -> list[str]:
    """Return the names of all files below a folder, or the empty name for a file.

    Raises FormatError if none has tensors, and FileNotFoundError.
    """
    _check_exists(source)
    if not source.is_dir():
        if source.suffix not in CODED:
            raise FormatError(
                f"{source}: not a checkpoint: expected a {SUFFIX} file, a file of torch or GGUF "
                f"({', '.join(CODED[1:])}), or a folder with such files"
            )
        return [""]
    if is_repository(source):
        raise FormatError(f"{source}: {why_missing(source, 'weights')}")
    if caches := repositories_in(source):
        raise FormatError(
            f"{source}: a folder of Hugging Face cache repositories: name one of them, such as {caches[0]}"
        )
    found = _below(source)
    paths = [path for path in found if path.is_file()]
    names = [_name(source, path) for path in paths]
    if not any(name.endswith(CODED) for name in names):
        for path in found:
            if path.name.endswith(CODED) and path.is_symlink():
                raise FormatError(f"{path}: {dangling(path)}")
        raise FormatError(f"{source}: no safetensors or PyTorch file in this folder")
    for name in names:
        if name.endswith(INDEX):
            _check_index(source, name)
    return names


def _name(source: Path, path: Path) -> str:
    """Return the name of a file in the manifest. Raises FormatError for a name that a manifest cannot hold."""
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
    """Return everything that a folder holds, sorted; links to folders are not followed. Raises OSError."""

    def fail(error: OSError) -> None:
        raise error

    if prefix := remote(source):
        return [cast(Path, path) for path in prefix.descendants()]
    walk = os.walk(source, onerror=fail)
    return sorted(Path(root, name) for root, folders, names in walk for name in (*folders, *names))


def left_out(source: Path, strict: bool) -> tuple[str, ...]:
    """Return what a packed folder does not restore, as messages.

    strict: raise SqueezeError if there is anything.
    """
    reasons = [(path, _reason_left(path)) for path in _below(source)] if source.is_dir() else []
    omitted = tuple(f"{printable(path)}: {reason}" for path, reason in reasons if reason)
    if strict and omitted:
        raise SqueezeError(f"{omitted[0]}, which would be left out: move it away, or pack without `strict`")
    return omitted


def _reason_left(path: Path) -> str | None:
    """Return why something in a folder is left out, or None if it is not."""
    if path.is_file():
        return None
    if path.is_symlink():
        return "is a link to a folder" if path.is_dir() else dangling(path)
    if path.is_dir():
        return None if any(path.iterdir()) else "is an empty folder"
    return "is not a regular file"


def _check_index(source: Path, name: str) -> None:
    """Raise FormatError if an index names shards or tensors that do not exist."""
    shards: dict[str, set[str]] = {}
    for tensor, shard in read_index(source / name).items():
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in shards.items():
        path = shard_at((source / name).parent, shard)
        try:
            file = tensorfile.read(path)
            missing = tensors - set(file.by_name)
            if missing and container.is_packed(file):  # most of a bundle's names are in its description
                missing -= set(container.describe(file).file.by_name)
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None
        if missing:
            raise FormatError(f"{source / name}: tensor {printable(repr(min(missing)))} is not in {shard}")


def check_apart(source: Path, target: Path) -> None:
    """Raise SqueezeError if one of two checkpoints, both on disk or both at URLs, would lie in the other."""
    if bool(remote(source)) != bool(remote(target)):
        return
    if target.resolve() == source.resolve() or (target.exists() and target.samefile(source)):
        raise SqueezeError("input and output are the same: choose another output")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise SqueezeError("the output cannot be in the input folder: choose another place")
    if target.resolve() in source.resolve().parents:
        raise SqueezeError("the input cannot be in the output folder: choose another place")


def check_target(source: Path, target: Path, overwrite: bool) -> None:
    """Raise SqueezeError if `target` cannot be written from `source`."""
    _check_exists(source)
    if not target.parent.is_dir():
        raise SqueezeError(f"the folder {target.parent} does not exist")
    check_apart(source, target)
    if os.path.lexists(target):
        if target.is_dir() != source.is_dir():
            kind = "folder" if target.is_dir() else "file"
            raise SqueezeError(f"{target} exists and is a {kind}: choose another name")
        if not overwrite and (not target.is_dir() or any(target.iterdir())):
            raise moving.in_the_way(target)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def has_packed(path: Path) -> bool:
    """Return whether `path` is a packed folder, or a packed file of safetensors."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return path.suffix == SUFFIX and container.is_packed(tensorfile.read(path))


def raw_size(source: Path) -> int:
    """Return the bytes of a checkpoint before packing, packed or not; unreadable files count as 0."""
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
