"""The files of a model's folder that are not its weights: they are copied to every folder made from it.

Other copies of the weights, which would be the original's, and training states are not copied. They are named, so that
nothing is lost silently.
"""

import os
import re
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from squeeze.checkpoint.pretrained import has_tokenizer
from squeeze.checkpoint.weight_files import TORCH, check_inside, is_adapter, names_of, read_index, stem_of, weight_files
from squeeze.errors import FormatError, printable

__all__ = ["copy_other_files", "copy_tokenizer", "left_out"]

_SAFE = ".safetensors"
_COPIES = (".gguf", ".h5", ".msgpack", ".ot", ".onnx", ".onnx_data", ".tflite", ".mlmodel")  # whole networks
_STATES = ("optimizer", "scheduler", "scaler", "rng_state")  # prefixes of files that a trainer writes
_TRAINING = re.compile(r"checkpoint-\d+")
_KEPT = "training_args.bin"  # settings, not weights
_BESIDE = "adapter"  # folder of an adapter that was next to the weights
_TEMPLATES = "additional_chat_templates"
_TOKENIZER = re.compile(
    r"tokenizer.*|.*\.model|vocab\.(json|txt)|merges\.txt|added_tokens\.json|special_tokens_map\.json|chat_template.*"
)
_WEIGHTS = "weights in another file, which are the original's"
_TRAINED = "a state of training"


def copy_other_files(source: Path, target: Path) -> tuple[str, ...]:
    """Copy all files and subfolders of a model's folder except its weights, and return what was left out, in words.

    Raises FormatError if a file is a link out of the folder.
    """
    kept, place = _adapter(source), _free_name(source)
    for name, reason in _files(source):
        if reason is None:
            check_inside(source, name)
            path = target / (f"{place}/{name}" if name in kept else name)
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, path)
    moved = (f"kept in {place}/, not merged: {_listed(sorted(kept))}: a LoRA adapter of the original",)
    return (*left_out(source), *(moved if kept else ()))


def copy_tokenizer(source: Path, target: Path) -> None:
    """Replace the tokenizer and chat templates of a folder by those of another, if that has any.

    A tokenizer is replaced as a whole, since files of two do not fit together. A source that has only chat templates
    replaces only these. Raises FormatError if a file is a link out of the folder.
    """
    names = _tokenizer(source)
    if not has_tokenizer(source):
        names = [name for name in names if _is_template(name)]
    whole = not all(map(_is_template, names))
    for name in _tokenizer(target) if names else ():
        if whole or _is_template(name):
            (target / name).unlink()
    for name in names:
        check_inside(source, name)
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _tokenizer(folder: Path) -> list[str]:
    """Return the files of a folder that belong to its tokenizer, by relative path."""
    names = [path.name for path in folder.iterdir() if path.is_file() and _TOKENIZER.fullmatch(path.name)]
    return names + [f"{_TEMPLATES}/{path.name}" for path in (folder / _TEMPLATES).glob("*") if path.is_file()]


def _is_template(name: str) -> bool:
    return name.startswith((_TEMPLATES, "chat_template"))


def _free_name(source: Path) -> str:
    """Return a name for the folder of an adapter that nothing in the source has."""
    names = (_BESIDE if number == 1 else f"{_BESIDE}-{number}" for number in count(1))
    return next(name for name in names if not (source / name).exists())


def _adapter(source: Path) -> set[str]:
    """Return the files of a LoRA adapter next to a model's weights.

    With peft, transformers would load the base that such a file names, not the weights next to it.
    """
    names = {path.name for path in source.glob("adapter_*") if path.is_file()}
    return names if "adapter_config.json" in names and len(names) > 1 else set()


def left_out(source: Path) -> tuple[str, ...]:
    """Return what `copy_other_files` leaves out, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in _files(source):
        if reason:
            reasons.setdefault(reason, []).append(name)
    return tuple(f"left out: {_listed(sorted(names))}: {reason}" for reason, names in reasons.items())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(printable(name) for name in names[:3]) + more


def _files(source: Path) -> Iterator[tuple[str, str | None]]:
    """Yield every file of a folder except the weights, by relative path, with the reason if it is left out, else
    None."""
    if is_adapter(source):
        return
    weights = {path.relative_to(source).as_posix() for path in weight_files(source)} | {*names_of(stem_of(source))}
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
    """Return why a file is left out; None if it is copied.

    Weights in subfolders are copied if they have a configuration of their own: the layers of a sentence encoder,
    adapters.
    """
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
    """Return whether an index in a subfolder is of files that are left out."""
    try:
        files = set(read_index(path).values())
        return any(_reason(path.parent / file, is_top=False) for file in files)
    except (OSError, ValueError, FormatError):
        return False
