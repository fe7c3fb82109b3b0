"""Which packed checkpoints may go, so that none that stays loses what it is a difference from."""

from pathlib import Path

from squeeze.errors import FormatError, SqueezeError, printable
from squeeze.packing import container, folder, manifest
from squeeze.packing.beside import Hashes, hashes_of
from squeeze.packing.container import PackedFile
from squeeze.packing.journal import Journal, group
from squeeze.packing.sources import may_be_coded

__all__ = ["UnreadableError", "foreign", "superfluous"]


class UnreadableError(SqueezeError):
    """What the checkpoint `name` is a difference from is not known."""

    name = ""

    @classmethod
    def of(cls, name: str, error: Exception) -> "UnreadableError":
        """Return what is said of a checkpoint that cannot be read."""
        made = cls(f"cannot be read, so that no packed form is deleted: {error}")
        made.name = name
        return made


def superfluous(target: Path, journal: Journal, keep: int) -> list[str]:
    """Of the checkpoints that the journal names: those but the last `keep` of each kind, and but those that others in
    the folder, kept or not of the journal, are differences from. Raises UnreadableError where one of all these is."""
    ours = journal.present()
    known = {path.name: _files(path, path.name in ours) for path in target.iterdir() if _is_shown(path)}
    kinds: dict[str, list[str]] = {}
    for name in ours:
        kinds.setdefault(group(name), []).append(name)
    kept = {name for names in kinds.values() for name in names[-keep:]} | (known.keys() - ours)
    homes: dict[Hashes, set[str]] = {}
    for name, files in known.items():
        for hashes in hashes_of(files):
            homes.setdefault(hashes, set()).add(name)
    needed = list(kept)
    for name in needed:
        found = {home for base in _bases(known.get(name, [])) for home in homes.get(base, ())}
        needed += sorted(found - set(needed))
    return [name for name in ours if known.get(name) and name not in set(needed)]


def foreign(path: Path) -> str:
    """Return what shows that a packed checkpoint is not only what squeeze wrote, so that it may not be deleted.

    The text is empty if nothing shows that. Raises SqueezeError and OSError if the checkpoint cannot be read.
    """
    if path.is_symlink():
        return "it is a link"
    if not path.is_dir():
        container.read(path)
        return ""
    known = {*manifest.read(path).hashes, folder.MANIFEST}
    below = (one for one in sorted(path.rglob("*")) if one.is_symlink() or not one.is_dir())
    strangers = (name for one in below if (name := one.relative_to(path).as_posix()) not in known)
    return next((f"it holds {printable(name)}, which squeeze did not write" for name in strangers), "")


def _files(path: Path, is_ours: bool) -> list[PackedFile]:
    """The packed files of a checkpoint; none where it is not packed, as ours are."""
    try:
        if is_ours and path.is_symlink():
            raise FormatError(f"{path}: is a link")
        if not path.is_dir():
            return [container.read(path)]
        if not is_ours and not (path / folder.MANIFEST).is_file():
            return []
        return [container.read(path / name) for name in manifest.read(path).coded]
    except (OSError, SqueezeError) as error:
        if type(error) is FormatError and not is_ours and not path.is_dir():  # and no damaged one
            return []
        raise UnreadableError.of(path.name, error) from None


def _bases(files: list[PackedFile]) -> set[Hashes]:
    return {file.description.base for file in files} - {()}


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or may_be_coded(path.name))
