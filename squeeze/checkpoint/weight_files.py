"""The files of a model's folder with its weights: local safetensors only. Also folders of the Hugging Face hub's cache.

PyTorch's own files can contain programs, so they are never read; the error says how to convert them.

A repository in the cache is models--ORG--NAME/{blobs,refs,snapshots}: every file is stored once as a blob, and as a
link in each snapshot that has it. Walking over such a folder would find each file several times.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from squeeze.errors import FormatError, printable
from squeeze.system.documents import read_object
from squeeze.system.storage import join_untrusted, remote

__all__ = [
    "INDEX",
    "MANIFEST",
    "TORCH",
    "WEIGHTS",
    "absent",
    "check_inside",
    "dangling",
    "how_to_convert",
    "is_adapter",
    "is_repository",
    "names_of",
    "own_files",
    "place_of_shard",
    "read_index",
    "repositories_in",
    "shard_at",
    "snapshot_of",
    "stem_of",
    "weight_files",
    "why_missing",
]

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MANIFEST = "squeeze.json"  # in a packed folder
_DIFFUSERS = "diffusion_pytorch_model"  # stem of its files of weights
_STEMS = ("model", _DIFFUSERS)
TORCH = (".bin", ".pt", ".pth", ".ckpt")


def weight_files(folder: Path) -> list[Path]:
    """Return the file of all weights, or the shards that the index names. Raises FormatError if they are missing."""
    whole, index = names_of(stem_of(folder))
    if (folder / whole).is_file():
        names = [whole]
    elif (folder / index).is_file():
        names = sorted(set(read_index(folder / index).values()))
    else:
        programs = sorted(path for path in folder.iterdir() if path.suffix in TORCH and path.is_file())
        if programs and (folder / MANIFEST).is_file():
            raise FormatError(f"{programs[0]}: is a PyTorch file in a packed folder: use `squeeze unpack` first")
        if programs:
            raise FormatError(how_to_convert(programs[0]))
        if links := [name for name in (WEIGHTS, INDEX) if (folder / name).is_symlink()]:
            raise FormatError(f"{folder}: {why_missing(folder, links[0])}")
        if variants := sorted(folder.glob(f"{_DIFFUSERS}.*.safetensors*")):
            raise FormatError(
                f"{folder}: has only a variant of its weights, {printable(variants[0].name)}: load it in diffusers "
                "with `variant=`, and save it without"
            )
        raise FormatError(f"{folder}: has neither {WEIGHTS} nor {INDEX}")
    return [shard_at(folder, name) for name in names]


def stem_of(folder: Path) -> str:
    """Return the stem of the names of a folder's files of weights: that of transformers or that of diffusers."""
    stems = (stem for stem in _STEMS if any((folder / name).is_file() for name in names_of(stem)))
    return next(stems, _STEMS[0])


def names_of(stem: str) -> tuple[str, str]:
    """Return the names of the file of all weights and of the index of shards with this stem."""
    return f"{stem}.safetensors", f"{stem}.safetensors.index.json"


def read_index(path: Path) -> dict[str, str]:
    """Return the shard of each tensor from an index. Raises FormatError if the index is invalid."""
    table = read_object(path).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(name, str) for name in table.values()):
        raise FormatError(f"{path}: its weight_map is not a table of tensors and the files that they are in")
    return table


def own_files(tensors: Mapping[Path, Iterable[str]], indexes: Iterable[Path]) -> dict[str, Path]:
    """Return the file of each tensor by name; if several files have it, the one that an index names.

    `tensors` are the names in each file. Raises FormatError if the indexes do not decide.
    """
    holders: dict[str, list[Path]] = {}
    for path, names in tensors.items():
        for name in names:
            holders.setdefault(name, []).append(path)
    named: dict[str, set[Path]] = {}
    for index in indexes if any(len(paths) > 1 for paths in holders.values()) else ():
        for name, shard in read_index(index).items():
            named.setdefault(name, set()).add(index.parent / shard)
    for name, paths in holders.items():
        own = [path for path in paths if path in named.get(name, ())] if len(paths) > 1 else paths
        if len(own) != 1:
            raise FormatError(
                f"{paths[1]}: tensor {printable(repr(name))} is in {printable(paths[0])}, too, and no index says which "
                "counts: name one of the files"
            )
        holders[name] = own
    return {name: paths[0] for name, paths in holders.items()}


def how_to_convert(path: Path) -> str:
    """Return an error message for a PyTorch file, with the command that converts it."""
    script = (
        "import torch; from safetensors.torch import save_file; "
        f"w = torch.load({path.name!r}, weights_only=True, map_location='cpu'); "
        f"save_file({{k: v.clone().contiguous() for k, v in w.items()}}, {path.stem + '.safetensors'!r})"
    )
    return f'{path}: PyTorch files can hold programs, so they are not read; convert it first: python -c "{script}"'


def place_of_shard(folder: Path, name: str) -> Path:
    """Return the path of a shard, which may be missing. Raises FormatError if its name leads out of the folder."""
    try:
        return join_untrusted(folder, name)
    except FormatError:
        raise FormatError(f"{folder}: the shard {printable(repr(name))} is not in the folder") from None


def shard_at(folder: Path, name: str) -> Path:
    """Return the path of a shard. Raises FormatError if it is missing, or outside the folder."""
    path = place_of_shard(folder, name)
    if not path.is_file():
        fault = dangling(path) if path.is_symlink() else "is missing"
        raise FormatError(f"{folder}: the shard {printable(name)} {fault}")
    check_inside(folder, name)
    return path


def check_inside(folder: Path, name: str) -> None:
    """Raise FormatError if a file of the folder is a link out of it."""
    path = (folder / name).resolve()
    if not any(path.is_relative_to(home) for home in _homes(folder)):
        raise FormatError(f"{folder}: {printable(name)} is a link out of the folder: put the file itself there")


def _homes(folder: Path) -> list[Path]:
    """Return the folders in which its files may be: itself, and the blobs of a hub cache."""
    home = folder.resolve()
    return [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]


_BLOBS, _SNAPSHOTS, _REFS = "blobs", "snapshots", "refs"
_NAMED = 3  # snapshots that a message names


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def is_repository(folder: Path) -> bool:
    """Return whether a folder is a repository of the cache, with all its snapshots."""
    return not remote(folder) and (folder / _BLOBS).is_dir() and (folder / _SNAPSHOTS).is_dir()


def snapshot_of(folder: Path) -> Path:
    """Return the snapshot of a repository in the cache: that of the branch main, or the only one.

    Raises FormatError if there are several, or none.
    """
    snapshots = sorted(path for path in (folder / _SNAPSHOTS).iterdir() if path.is_dir())
    main = folder / _REFS / "main"
    named = main.read_text("utf-8", "replace").strip() if main.is_file() else ""
    candidates = [path for path in snapshots if path.name == named] or snapshots
    if len(candidates) == 1:
        return candidates[0]
    found = f"{len(snapshots)} snapshots" if snapshots else "no snapshot"
    shown = ", ".join(printable(path) for path in snapshots[:_NAMED])
    raise FormatError(
        f"{folder}: a repository of the Hugging Face cache with {found}"
        + (f": name one of them: {shown}{', ...' * (len(snapshots) > _NAMED)}" if snapshots else ": download it again")
    )


def dangling(link: Path) -> str:
    """Return the words of a message on a link to a missing file."""
    return f"is a link to {printable(link.readlink())}, which is not there"


def why_missing(folder: Path, name: str) -> str:
    """Return why a model's folder does not have a file."""
    if (folder / name).is_symlink():
        return f"its {name} {dangling(folder / name)}"
    if is_repository(folder):
        return f"it is a repository of the Hugging Face cache: name its snapshot, {snapshot_of(folder)}"
    if name == "config.json" and (folder / "model_index.json").is_file():
        return "it is a pipeline of diffusers: name the folder of one of its models, such as transformer/ or unet/"
    if name == "config.json" and is_adapter(folder):
        return "it is a LoRA adapter: `squeeze densify` merges it with its --base"
    return f"it has no {name}"


def is_adapter(folder: Path) -> bool:
    """Return whether a folder is a LoRA adapter without a model."""
    return (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file()


def absent(folder: Path) -> str:
    """Return why a path that does not exist is no model's folder, with the command that fetches one for a hub's id."""
    if _HUB_ID.fullmatch(str(folder)) and not folder.parent.exists():
        return f"no such folder; from the hub: hf download {folder} --local-dir {folder.name}"
    return "no such folder"


def repositories_in(folder: Path) -> list[Path]:
    """Return the repositories in a folder, such as the cache itself."""
    if remote(folder):
        return []
    entries = cast("list[Path]", sorted(folder.iterdir()))
    return [path for path in entries if path.is_dir() and is_repository(path)]
