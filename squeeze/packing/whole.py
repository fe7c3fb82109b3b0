"""Whether a checkpoint of a training run is whole, or still being written."""

import re
from pathlib import Path

from squeeze.checkpoint import safetensors as tensorfile, torch_file
from squeeze.errors import FormatError, LimitError, TruncatedError
from squeeze.packing import folder
from squeeze.packing.sources import CODED, SUFFIX, source_of

__all__ = ["Stamp", "may_be", "missing", "stamp"]

Stamp = tuple[tuple[str, int, int], ...]  # name, size and time of each file
_OF_TRAINER = re.compile(r"checkpoint-\d+")
_FIRST, _LAST = "training_args.bin", "trainer_state.json"  # what transformers' Trainer writes early, and at the end


def may_be(path: Path) -> bool:
    """Whether `path` is a file or folder of tensors, or may become one. By names: those of a folder lie in it, or in a
    folder below. A file of torch's by itself holds some."""
    if path.is_dir():
        return not path.is_symlink() and any(
            below.name.endswith(CODED) for pattern in ("*", "*/*") for below in path.glob(pattern)
        )
    if path.suffix not in torch_file.SUFFIXES:
        return path.name.endswith(CODED)
    try:
        return source_of(path, alone=False) is not None or bool(_of_file(path))
    except FileNotFoundError:
        return False


def stamp(path: Path) -> Stamp | None:
    """What changes while somebody writes to a file or folder; None where it goes meanwhile."""
    try:
        paths = sorted(path.rglob("*")) if path.is_dir() else [path]
        found = [(str(one), one.lstat()) for one in paths]
    except FileNotFoundError:
        return None
    return tuple((name, status.st_size, status.st_mtime_ns) for name, status in found)


def missing(path: Path) -> str:
    """What shows that a checkpoint is not whole yet; empty where nothing does."""
    try:
        return _of_folder(path) if path.is_dir() else _of_file(path)
    except (FormatError, FileNotFoundError) as error:
        return str(error)


def _of_folder(path: Path) -> str:
    if _OF_TRAINER.fullmatch(path.name) and (path / _FIRST).is_file() and not (path / _LAST).is_file():
        return f"has no {_LAST} yet"
    for name in folder.files_to_take(path):
        if name.endswith(".distcp") and not (path / name).with_name(".metadata").is_file():
            return f"has no .metadata beside {name} yet"
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
        return ""  # as far as it can be told
    return ""
