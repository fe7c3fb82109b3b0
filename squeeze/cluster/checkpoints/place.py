"""The place where a checkpoint is made: a work folder on the disk that moves into place at the end, or the target
URL.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.cluster.manifest import Manifest, read_manifest
from squeeze.errors import ClusterError, SqueezeError
from squeeze.packing import folder
from squeeze.system import storage
from squeeze.system.moving import in_the_way
from squeeze.system.remote_path import RemotePath
from squeeze.system.work import work_folder

__all__ = ["Output", "making", "tidy"]

_MARK = ".squeeze-{}"


@dataclass(frozen=True)
class Output:
    """The folder or URL in which the output is made, and the manifest of the run."""

    root: Path
    notes: Manifest

    @property
    def mark(self) -> str:
        """The end of temporary names."""
        return _MARK.format(self.notes.session)


@contextmanager
def making(
    source: Path, target: Path, operation: str, described: dict[str, Any], overwrite: bool, manifest: Path | None
) -> Iterator[Output]:
    """Yield the place of the output.

    On the disk it moves into place when the block succeeds. It is kept if the block raises ClusterError, so that the
    same command can resume.

    Args:
        source: The checkpoint.
        target: The output.
        operation: The operation.
        described: The settings of the run, fit for JSON.
        overwrite: Whether an existing target may be replaced.
        manifest: The manifest of a run to a URL, or None for the default.
    """
    if place := storage.remote(target):
        folder.check_apart(source, target)
        path = manifest or Path(f".{target.name}.{operation}.jsonl")
        with closing(Manifest(path, operation, {**described, "target": str(target)})) as notes:
            _check_free(place, notes, overwrite)
            try:
                yield Output(target, notes)
            except BaseException as error:
                if path.exists():
                    error.add_note(f"results are recorded in {path}: repeat the command to resume")
                raise
            notes.complete(read_manifest(path).done if path.exists() else 0)
        return
    if manifest:
        raise SqueezeError("`manifest` is for targets at URLs: on the disk, the manifest is next to the target")
    folder.check_target(source, target, overwrite)
    stopped: ClusterError | None = None
    try:
        with work_folder(target, f"{operation}ing", described) as inside:
            root = inside / folder.CONTENT
            with closing(Manifest(inside / "manifest.jsonl", operation, described)) as notes:
                try:
                    yield Output(root, notes)
                except ClusterError as error:
                    if not any(path.is_file() and path.parent != inside for path in inside.rglob("*")):
                        raise  # there is nothing to resume
                    stopped = error
                    raise _Stopped from None
            folder.move_into_place(root, target, overwrite)
    except _Stopped as error:
        assert stopped
        for note in error.__notes__:
            stopped.add_note(note)
        raise stopped from None


class _Stopped(Exception):
    """An exception that keeps a work folder as it is."""


def _check_free(target: RemotePath, notes: Manifest, overwrite: bool) -> None:
    """Raise SqueezeError if anything at a URL is not from an earlier run of the same command.

    The manifest of a packed folder that will be overwritten is deleted first.
    """
    going_on = bool(notes.earlier) and not notes.was_complete
    if target.exists() and not overwrite and not going_on:
        raise in_the_way(target)  # type: ignore[arg-type]
    if target.is_dir() and overwrite and (marker := target / folder.MANIFEST).exists():
        marker.unlink()


def tidy(root: Path, target: Path, names: set[str]) -> None:
    """Delete everything that is not part of a folder's output, such as parts and files that killed workers left."""
    if not root.is_dir():
        return
    for path in list(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and name not in names:
            path.unlink()
    if not storage.remote(root):
        for path in sorted((path for path in root.rglob("*.parts") if path.is_dir()), reverse=True):
            if not any(path.iterdir()):
                path.rmdir()
