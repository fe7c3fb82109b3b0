"""The checkpoints of a training run that is followed: which are complete, which were packed, which may be deleted.

The journal is a file in the target folder, so that a stopped run continues and does not pack again what was deleted.
"""

import json
import re
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile, torch_file
from squeeze.errors import FormatError, LimitError, SqueezeError, TruncatedError, printable
from squeeze.packing import container, folder, manifest
from squeeze.packing.chain import Hashes, hashes_of
from squeeze.packing.container import PackedFile
from squeeze.packing.sources import CODED, SUFFIX, may_be_coded, source_of
from squeeze.system import files
from squeeze.system.documents import read_object
from squeeze.system.storage import component

__all__ = [
    "NAME",
    "Journal",
    "Stamp",
    "UnreadableError",
    "deletable",
    "group",
    "may_become_checkpoint",
    "order",
    "stamp",
    "why_incomplete",
    "why_not_deletable",
]

Stamp = tuple[tuple[str, int, int], ...]  # name, size and time of each file
_OF_TRAINER = re.compile(r"checkpoint-\d+")
_FIRST, _LAST = "training_args.bin", "trainer_state.json"  # what transformers' Trainer writes early, and at the end


def may_become_checkpoint(path: Path) -> bool:
    """Return whether `path` is a file or folder of tensors, or may become one.

    A folder is judged by the names in it and one level below, a file of torch by whether it holds enough tensors.
    """
    if path.is_dir():
        return not path.is_symlink() and any(
            below.name.endswith(CODED) for pattern in ("*", "*/*") for below in path.glob(pattern)
        )
    if path.suffix not in torch_file.SUFFIXES:
        return path.name.endswith(CODED)
    try:
        return source_of(path, is_single=False) is not None or bool(_of_file(path))
    except FileNotFoundError:
        return False


def stamp(path: Path) -> Stamp | None:
    """Return names, sizes and times, which change while something writes; None if the path disappears meanwhile."""
    try:
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        found = [(str(one), one.lstat()) for one in paths]
    except FileNotFoundError:
        return None
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


def why_incomplete(path: Path) -> str:
    """Return why a checkpoint is incomplete, or "" if nothing shows that it is."""
    try:
        return _of_folder(path) if path.is_dir() else _of_file(path)
    except (FormatError, FileNotFoundError) as error:
        return str(error)


def _of_folder(path: Path) -> str:
    if _OF_TRAINER.fullmatch(path.name) and (path / _FIRST).is_file() and not (path / _LAST).is_file():
        return f"has no {_LAST} yet"
    for name in folder.files_to_take(path):
        if name.endswith(".distcp") and not (path / name).with_name(".metadata").is_file():
            return f"has no .metadata next to {name} yet"
        if reason := _of_file(path / name):
            return f"{name}: {reason}"
    return ""


def _of_file(path: Path) -> str:
    try:
        if path.suffix == SUFFIX:
            tensorfile.read(path)
        elif path.suffix in torch_file.SUFFIXES:
            torch_file.read(path)
    except FormatError as error:
        return str(error) if path.suffix == SUFFIX or isinstance(error, TruncatedError) else ""
    except LimitError:
        return ""  # too large to check
    return ""


NAME = ".squeeze-follow.json"
_FORMAT = 1
_SCHEMA = {"format": int, "packed": [str]}
_PARTS = re.compile(r"(\D*)(\d*)")


def order(name: str) -> list[tuple[str, int]]:
    """Return a sort key for names of checkpoints: checkpoint-900 comes before checkpoint-1000."""
    return [(text, int(digits or -1)) for text, digits in _PARTS.findall(name)]


def group(name: str) -> str:
    """Return the common part of the names of one kind of checkpoint, with # for each number."""
    return re.sub(r"\d+", "#", name)


class Journal:
    """The names of all checkpoints that were packed into `target`; some may have been deleted since."""

    def __init__(self, target: Path):
        """Read the journal. Raises SqueezeError if the file is damaged."""
        self._target, self._path = target, target / NAME
        self.packed: list[str] = []
        if not self._path.is_file():
            return
        try:
            described = read_object(self._path, schema=_SCHEMA)
            if described["format"] != _FORMAT:
                raise FormatError(f"format {described['format']} is unknown")
            if hidden := [name for name in described["packed"] if component(name).startswith(".")]:
                raise FormatError(f"{printable(repr(hidden[0]))} is hidden, which is never packed")
        except FormatError as error:
            why = str(error).removeprefix(f"{self._path}: ")
            raise SqueezeError(
                f"{self._path}: is damaged: {why}: delete it; packed checkpoints are then compared with the run"
            ) from None
        self.packed = described["packed"]

    def note(self, name: str) -> None:
        """Add a packed checkpoint."""
        self.packed.append(name)
        with files.replacing(self._path) as file:
            file.write(json.dumps({"format": _FORMAT, "packed": self.packed}, indent=1).encode())

    def present(self) -> list[str]:
        """Return the packed checkpoints that still exist, the earliest first."""
        return sorted((name for name in self.packed if (self._target / name).exists()), key=order)

    def previous(self, name: str) -> str | None:
        """Return the checkpoint of the same kind before this one, or None."""
        return max(self.earlier(name), key=order, default=None)

    def earlier(self, name: str) -> list[str]:
        """Return the existing checkpoints of the same kind before this one."""
        return [one for one in self.present() if group(one) == group(name) and order(one) < order(name)]


class UnreadableError(SqueezeError):
    """A packed checkpoint cannot be read, so that its base is unknown."""

    name = ""

    @classmethod
    def of(cls, name: str, error: Exception) -> "UnreadableError":
        """Return the error for the checkpoint `name`."""
        made = cls(f"cannot be read, so no packed form is deleted: {error}")
        made.name = name
        return made


def deletable(target: Path, journal: Journal, keep: int) -> list[str]:
    """Return the checkpoints of the journal that may be deleted.

    The last `keep` of each kind stay, and all bases of checkpoints in the folder, whether these are in the journal or
    not. Raises UnreadableError if a base is unknown.
    """
    journaled = journal.present()
    by_name = {path.name: _files(path, path.name in journaled) for path in target.iterdir() if _is_shown(path)}
    kinds: dict[str, list[str]] = {}
    for name in journaled:
        kinds.setdefault(group(name), []).append(name)
    kept = {name for names in kinds.values() for name in names[-keep:]} | (by_name.keys() - journaled)
    homes: dict[Hashes, set[str]] = {}
    for name, packed in by_name.items():
        for hashes in hashes_of(packed):
            homes.setdefault(hashes, set()).add(name)
    needed = list(kept)
    for name in needed:
        found = {home for base in _bases(by_name.get(name, [])) for home in homes.get(base, ())}
        needed += sorted(found - set(needed))
    return [name for name in journaled if by_name.get(name) and name not in set(needed)]


def why_not_deletable(path: Path) -> str:
    """Return why a packed checkpoint must not be deleted, since it holds more than squeeze wrote; "" if it may be.

    Raises SqueezeError and OSError if the checkpoint cannot be read.
    """
    if path.is_symlink():
        return "it is a link"
    if not path.is_dir():
        container.read(path)
        return ""
    listed = {*manifest.read(path).hashes, folder.MANIFEST}
    below = (one for one in sorted(path.rglob("*")) if one.is_symlink() or not one.is_dir())
    strangers = (name for one in below if (name := one.relative_to(path).as_posix()) not in listed)
    return next((f"it holds {printable(name)}, which squeeze did not write" for name in strangers), "")


def _files(path: Path, is_ours: bool) -> list[PackedFile]:
    """Return the packed files of a checkpoint; none if it is not packed and not in the journal."""
    try:
        if is_ours and path.is_symlink():
            raise FormatError(f"{path}: is a link")
        if not path.is_dir():
            return [container.read(path)]
        if not is_ours and not (path / folder.MANIFEST).is_file():
            return []
        return [container.read(path / name) for name in manifest.read(path).packed_names]
    except (OSError, SqueezeError) as error:
        if type(error) is FormatError and not is_ours and not path.is_dir():  # a damaged one is a DamagedError
            return []
        raise UnreadableError.of(path.name, error) from None


def _bases(files: list[PackedFile]) -> set[Hashes]:
    return {file.description.base for file in files} - {()}


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or may_be_coded(path.name))
