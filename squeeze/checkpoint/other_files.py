"""The files of a model's folder that are not its weights: they go along to every folder that is made of it.

What does not go along are other copies of the weights, which would still be the original's, and states of training.
Each is named, so that nothing is lost without a word.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from squeeze.checkpoint.weight_files import INDEX, TORCH, WEIGHTS, check_inside, read_index, weight_files
from squeeze.errors import FormatError, printable

__all__ = ["copy_other_files", "left_out"]

_SAFE = ".safetensors"
_COPIES = (".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".mlmodel")  # of whole networks
_STATES = ("optimizer", "scheduler", "scaler", "rng_state")  # what a trainer leaves begins with these
_TRAINING = re.compile(r"checkpoint-\d+")
_KEPT = "training_args.bin"  # settings, no weights
_WEIGHTS = "weights in another file, which are the original's"
_TRAINED = "a state of training"


def copy_other_files(source: Path, target: Path) -> tuple[str, ...]:
    """Copy all files and subfolders of a model's folder but its weights; what stays behind is returned, in words.

    Raises FormatError if one of them is a link out of the folder.
    """
    for name, reason in _files(source):
        if reason is None:
            check_inside(source, name)
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, path)
    return left_out(source)


def left_out(source: Path) -> tuple[str, ...]:
    """Return in words what `copy_other_files` leaves behind, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in _files(source):
        if reason:
            reasons.setdefault(reason, []).append(name)
    return tuple(f"left out: {_listed(sorted(names))}: {reason}" for reason, names in reasons.items())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(printable(name) for name in names[:3]) + more


def _files(source: Path) -> Iterator[tuple[str, str | None]]:
    """Everything in a folder but the weights that are read, by its path below the folder; None for what goes along,
    else why it does not."""
    weights = {path.relative_to(source).as_posix() for path in weight_files(source)} | {WEIGHTS, INDEX}
    for root, folders, files in os.walk(source):
        place = Path(root)
        for folder in sorted(folders):
            if reason := _reason_of_folder(place / folder, is_top=place == source):
                folders.remove(folder)
                yield f"{(place / folder).relative_to(source).as_posix()}/", reason
        folders.sort()
        for file in sorted(files):
            name = (place / file).relative_to(source).as_posix()
            if name not in weights and (place / file).is_file():
                yield name, _reason(place / file, is_top=place == source)


def _reason_of_folder(folder: Path, is_top: bool) -> str | None:
    if folder.is_symlink():
        return "a link to a folder"
    if folder.name.startswith("."):
        return "a hidden folder"
    return _TRAINED if is_top and _TRAINING.fullmatch(folder.name) else None


def _reason(path: Path, is_top: bool) -> str | None:
    """Why a file stays behind; None if it goes along. Weights below the folder go along if they are a part of their
    own, with a configuration beside them: the layers of a sentence encoder, adapters."""
    name, suffix, index = path.name, path.suffix, path.name.endswith(".index.json")
    if name == _KEPT or (name.startswith("adapter_model.") and (path.parent / "adapter_config.json").is_file()):
        return None
    if suffix in TORCH and name.startswith(_STATES):
        return _TRAINED
    if suffix in _COPIES or (index and (is_top or _weight_map(path))):
        return _WEIGHTS
    if suffix not in (*TORCH, _SAFE):
        return None
    is_part = not is_top and (suffix == _SAFE or (path.parent / "config.json").is_file())
    return None if is_part else _WEIGHTS


def _weight_map(path: Path) -> bool:
    """Whether an index in a subfolder is of files that stay behind."""
    try:
        files = set(read_index(path).values())
        return any(_reason(path.parent / file, is_top=False) for file in files)
    except (OSError, ValueError, FormatError):
        return False
