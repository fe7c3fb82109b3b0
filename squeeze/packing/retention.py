"""Which packed checkpoints may go, so that none that stays loses what it is a difference from."""

from pathlib import Path

from squeeze.packing.base import Hashes, hashes_of, packed_files
from squeeze.packing.container import PackedFile
from squeeze.packing.journal import Journal, group
from squeeze.packing.sources import may_be_coded
from squeeze.system.limits import Limits

__all__ = ["superfluous"]


def superfluous(target: Path, journal: Journal, keep: int) -> list[str]:
    """Of the checkpoints that the journal names: those but the last `keep` of each kind, and but those that others in
    the folder, kept or not of the journal, are differences from."""
    known = {path.name: list(packed_files(path, Limits())) for path in target.iterdir() if _is_shown(path)}
    ours = journal.present()
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
    return [name for name in ours if name not in set(needed)]


def _bases(files: list[PackedFile]) -> set[Hashes]:
    return {file.description.base for file in files} - {()}


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".") and (path.is_dir() or may_be_coded(path.name))
