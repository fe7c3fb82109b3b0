"""Folders of the Hugging Face hub's cache: a repository's blobs, and the snapshots whose files are links to them.

models--ORG--NAME/{blobs,refs,snapshots}: every file is there once as a blob, and once more as a link for each snapshot
that has it. So whoever takes all that is below such a folder takes each file several times.
"""

from pathlib import Path
from typing import cast

from squeeze.errors import FormatError, printable
from squeeze.system.storage import remote

__all__ = ["dangling", "is_repository", "repositories_in", "snapshot_of", "why_missing"]

_BLOBS, _SNAPSHOTS, _REFS = "blobs", "snapshots", "refs"
_NAMED = 3  # in a message


def is_repository(folder: Path) -> bool:
    """Return whether a folder is a repository of the cache, with all its snapshots."""
    return not remote(folder) and (folder / _BLOBS).is_dir() and (folder / _SNAPSHOTS).is_dir()


def snapshot_of(folder: Path) -> Path:
    """Return the snapshot that a repository of the cache is: that of the branch main, or else the only one.

    Raises FormatError if there are several, or none.
    """
    snapshots = sorted(path for path in (folder / _SNAPSHOTS).iterdir() if path.is_dir())
    main = folder / _REFS / "main"
    named = main.read_text("utf-8", "replace").strip() if main.is_file() else ""
    chosen = [path for path in snapshots if path.name == named] or snapshots
    if len(chosen) == 1:
        return chosen[0]
    found = f"{len(snapshots)} snapshots" if snapshots else "no snapshot"
    shown = ", ".join(printable(path) for path in snapshots[:_NAMED])
    raise FormatError(
        f"{folder}: a repository of the Hugging Face cache with {found}"
        + (f": name one of them: {shown}{', ...' * (len(snapshots) > _NAMED)}" if snapshots else ": download it again")
    )


def dangling(link: Path) -> str:
    """Return what a message says of a link to a file that is not there."""
    return f"is a link to {printable(link.readlink())}, which is not there"


def why_missing(folder: Path, name: str) -> str:
    """Return why a model's folder does not have a file."""
    if (folder / name).is_symlink():
        return f"its {name} {dangling(folder / name)}"
    if is_repository(folder):
        return f"it is a repository of the Hugging Face cache: name its snapshot, {snapshot_of(folder)}"
    return f"it has no {name}"


def repositories_in(folder: Path) -> list[Path]:
    """Return the repositories that lie in a folder, such as the cache itself."""
    if remote(folder):
        return []
    below = cast("list[Path]", sorted(folder.iterdir()))
    return [path for path in below if path.is_dir() and is_repository(path)]
