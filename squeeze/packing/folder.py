"""Folders of models: which files are taken, what is kept true in them, and moving results into place.

Files that a packed folder must change (the index's total size, config.json's
`quantization_config`) stand unchanged in the manifest, squeeze.json, with the
SHA-256 of every file; `unpack` restores them from there.
"""

import base64
import errno
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from squeeze.checkpoint import safetensors as tensorfile, weight_files
from squeeze.checkpoint.hub_cache import dangling, is_repository, repositories_in, snapshot_of, why_missing
from squeeze.checkpoint.weight_files import read_index, shard_at
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError, printable
from squeeze.packing import container, sources
from squeeze.packing.description import unfolded
from squeeze.packing.sources import CODED
from squeeze.system import files, moving
from squeeze.system.json_object import check, read_object
from squeeze.system.limits import Limits
from squeeze.system.names import below, relative
from squeeze.system.storage import remote

SUFFIX = sources.SUFFIX
MANIFEST = weight_files.MANIFEST
CONTENT = "content"  # in the work folder
METHOD = "squeeze"  # of the quantization_config
CONVERTED = ("fp8", "mxfp4")  # quantised forms that transformers itself makes weights of, while it loads them
METHODS = (METHOD, *(f"{METHOD}+{form}" for form in CONVERTED))
_INDEX = ".safetensors.index.json"
_FORMAT = 1
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_MAX_KEPT = 1 << 26
_SCHEMA = {"format": int, "files": {...: str}, "kept": {...: str}, "packed?": [str]}

move_into_place = moving.move_into_place


def place(root: Path, name: str) -> Path:
    """The file `name` of the checkpoint `root`, which is the file itself where the name is empty."""
    return root / name if name else root


@dataclass(frozen=True)
class Contents:
    """What is packed of a checkpoint: its files by their names, that of a file by itself being empty; what of it is
    left out, and what else there is to say, in words."""

    root: Path
    files: dict[str, Path]
    left_out: tuple[str, ...]
    notes: list[str]


def contents_of(source: Path, strict: bool) -> Contents:
    """Return what is packed of a file or folder. strict: raises SqueezeError if anything is left out.

    Raises FormatError if nothing has tensors, or a repository of the Hugging Face cache has several snapshots, and none
    is main's; FileNotFoundError.
    """
    root, notes = _checkpoint_at(source)
    names = files_to_take(root)
    found = {name: place(root, name) for name in names}
    return Contents(root, found, left_out(root, strict), [*notes, *_packed_twice(root, names)])


def _checkpoint_at(source: Path) -> tuple[Path, list[str]]:
    """Return the checkpoint that is packed, and what there is to say of that in words: of a repository of the Hugging
    Face cache, in which every file is twice, a snapshot. Raises FormatError if that has several, and none is main's."""
    if not is_repository(source):
        return source, []
    snapshot = snapshot_of(source)
    return snapshot, [
        f"{printable(source)}: a repository of the Hugging Face cache; packed is its snapshot {snapshot.name}"
    ]


def _packed_twice(source: Path, names: Iterable[str]) -> list[str]:
    """Return, in words, which files are links to others that are packed as well: each becomes a file of its own."""
    if remote(source) or not source.is_dir():
        return []
    real = {path.resolve(): name for name in names if not (path := source / name).is_symlink()}
    links = [(source / name, real.get((source / name).resolve())) for name in names if (source / name).is_symlink()]
    return [
        f"{printable(link)}: is a link to {printable(other)}, and packed as a file" for link, other in links if other
    ]


def files_to_take(source: Path) -> list[str]:
    """Names of all files below a folder, or the empty name for a file. Raises FormatError where none has tensors,
    and FileNotFoundError."""
    _check_exists(source)
    if not source.is_dir():
        if source.suffix not in CODED:
            raise FormatError(
                f"{source}: not a checkpoint: pack takes {SUFFIX} files, those of torch ({', '.join(CODED[1:])}), and "
                "folders that hold them"
            )
        return [""]
    if is_repository(source):
        raise FormatError(f"{source}: {why_missing(source, 'weights')}")
    if caches := repositories_in(source):
        raise FormatError(
            f"{source}: holds repositories of the Hugging Face cache: name one of them, such as {caches[0]}"
        )
    found = _below(source)
    paths = [path for path in found if path.is_file()]
    names = [_name(source, path) for path in paths]
    if not any(name.endswith(CODED) for name in names):
        for path in found:
            if path.name.endswith(CODED) and path.is_symlink():
                raise FormatError(f"{path}: {dangling(path)}")
        raise FormatError(f"{source}: no {SUFFIX} file is in this folder, and none of torch")
    for name in names:
        if name.endswith(_INDEX):
            _check_index(source, name)
    return names


def _name(source: Path, path: Path) -> str:
    """Raises FormatError for a name that a manifest could not hold."""
    try:
        return relative(path.relative_to(source).as_posix())
    except FormatError as error:
        raise FormatError(f"{source}: {error}: rename it") from None


def indexes_in(source: Path, names: Iterable[str]) -> list[Path]:
    """Return the indexes among the files of a folder."""
    return [source / name for name in names if name.endswith(_INDEX)]


def _check_exists(source: Path) -> None:
    if not source.exists():
        is_link = not remote(source) and source.is_symlink()
        raise FileNotFoundError(errno.ENOENT, dangling(source) if is_link else os.strerror(errno.ENOENT), str(source))


def _below(source: Path) -> list[Path]:
    """All that a folder holds, in order; links to folders are not followed. OSError where it cannot be read."""

    def fail(error: OSError) -> None:
        raise error

    if prefix := remote(source):
        return [cast(Path, path) for path in prefix.below()]
    walk = os.walk(source, onerror=fail)
    return sorted(Path(root, name) for root, folders, names in walk for name in (*folders, *names))


def left_out(source: Path, strict: bool) -> tuple[str, ...]:
    """What a packed folder does not bring back, each in words. strict: raises SqueezeError where there is any."""
    reasons = [(path, _reason_left(path)) for path in _below(source)] if source.is_dir() else []
    omitted = tuple(f"{printable(path)}: {reason}" for path, reason in reasons if reason)
    if strict and omitted:
        raise SqueezeError(f"{omitted[0]}, which would be left out; move it away, or pack without `strict`")
    return omitted


def _reason_left(path: Path) -> str | None:
    if path.is_file():
        return None
    if path.is_symlink():
        return "is a link to a folder" if path.is_dir() else dangling(path)
    if path.is_dir():
        return None if any(path.iterdir()) else "is an empty folder"
    return "is no regular file"


def _check_index(source: Path, name: str) -> None:
    """Raises FormatError where an index names shards or tensors that are not there."""
    shards: dict[str, set[str]] = {}
    for tensor, shard in read_index(source / name).items():
        shards.setdefault(shard, set()).add(tensor)
    for shard, tensors in shards.items():
        path = shard_at((source / name).parent, shard)
        try:
            missing = tensors - set(tensorfile.read(path).by_name)
        except FormatError as error:
            raise type(error)(f"{path}: {error}") from None
        if missing:
            raise FormatError(f"{source / name}: tensor {printable(repr(min(missing)))} is not in {shard}")


def check_apart(source: Path, target: Path) -> None:
    """Raises SqueezeError where one of two checkpoints, both on the disk or both at URLs, would lie in the other."""
    if bool(remote(source)) != bool(remote(target)):
        return
    if target.resolve() == source.resolve() or (target.exists() and target.samefile(source)):
        raise SqueezeError("input and output are the same")
    if source.is_dir() and source.resolve() in target.resolve().parents:
        raise SqueezeError("the output may not lie in the input folder")
    if target.resolve() in source.resolve().parents:
        raise SqueezeError("the input may not lie in the output folder")


def check_target(source: Path, target: Path, overwrite: bool) -> None:
    """Raises SqueezeError where `target` may not be written from `source`."""
    _check_exists(source)
    if not target.parent.is_dir():
        raise SqueezeError(f"the folder {target.parent} does not exist")
    check_apart(source, target)
    if os.path.lexists(target):
        if target.is_dir() != source.is_dir():
            kind = "folder" if target.is_dir() else "file"
            raise SqueezeError(f"{target} exists and is a {kind}; choose another name")
        if not overwrite and (not target.is_dir() or any(target.iterdir())):
            raise moving.in_the_way(target)


@dataclass(frozen=True)
class Manifest:
    """What squeeze.json says: SHA-256 of every original file, the files that were changed, as they were, and those of
    torch that are packed."""

    hashes: dict[str, str]
    kept: dict[str, bytes]
    packed: frozenset[str] = frozenset()

    @property
    def coded(self) -> set[str]:
        """All files that are packed: those of safetensors, and of torch."""
        return {name for name in self.hashes if name.endswith(SUFFIX)} | self.packed


def write_manifest(source: Path, packed: Path, hashes: dict[str, str], states: list[str]) -> int:
    """Adapt indexes and config.json in the packed folder and write its manifest; returns the bytes this added. states:
    the files of torch that are packed."""
    changed = adapted(source, packed, hashes)
    text = manifest_text(source, changed, hashes, states)
    added = len(text)
    for name, data in changed.items():
        added += len(data) - (packed / name).stat().st_size
        (packed / name).unlink()  # a copy of what is read-only is so, too
        (packed / name).write_bytes(data)
        files.copy_status(source / name, packed / name)
    (packed / MANIFEST).write_bytes(text)
    return added


def adapted(source: Path, packed: Path, names: Iterable[str]) -> dict[str, bytes]:
    """What stands in the packed folder instead of the source's indexes and config.json."""
    found: dict[str, bytes] = {}
    for name in names:
        changed = None
        if name.endswith(_INDEX):
            changed = _adapted_index(source / name, (packed / name).parent)
        elif Path(name).name == "config.json":
            changed = _adapted_config(source / name, (packed / name).parent)
        if changed is not None:
            found[name] = changed
    return found


def manifest_text(source: Path, changed: Iterable[str], hashes: dict[str, str], states: list[str]) -> bytes:
    """The manifest of a packed folder. changed: the names of the files that `adapted` tells of."""
    if MANIFEST in hashes:
        raise FormatError(f"{source}: has a {MANIFEST}: it seems to be packed already")
    kept = {name: zlib.compress((source / name).read_bytes(), 9) for name in changed}
    described: dict[str, Any] = {
        "format": _FORMAT,
        "files": hashes,
        "kept": {name: base64.b64encode(data).decode() for name, data in kept.items()},
    }
    if states:
        described["packed"] = states
    return json.dumps(described, indent=1).encode()


def _adapted_index(path: Path, packed: Path) -> bytes:
    """An index whose total size is that of the payloads."""
    index = read_object(path)
    shards = {str(shard) for shard in dict(index.get("weight_map") or {}).values()}
    total = sum(tensor.size for shard in shards for tensor in tensorfile.read(below(packed, shard)).tensors)
    metadata = index.get("metadata")
    index["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "total_size": total}
    return json.dumps(index, indent=2).encode() + b"\n"


def _adapted_config(path: Path, packed: Path) -> bytes | None:
    """A config.json that tells transformers or diffusers how the weights are coded; None where it has a quantization
    already, of which they cannot be given the tensors."""
    try:
        config = read_object(path)
    except FormatError:
        return None
    described = config.get("quantization_config")
    form = described.get("quant_method") if isinstance(described, dict) else None
    converted = form in CONVERTED and "model_type" in config
    if not {"model_type", "_class_name"} & config.keys() or ("quantization_config" in config and not converted):
        return None
    if not any(_weights(packed)):
        return None
    ours: dict[str, Any] = {"quant_method": METHOD, "dtype": _float_type(packed)}
    if form:
        ours |= {"quant_method": f"{METHOD}+{form}", "quantization": described}
    config["quantization_config"] = ours
    return json.dumps(config, indent=2).encode() + b"\n"


def _float_type(packed: Path) -> str | None:
    """torch's name of the float type that most of a packed folder's weights have."""
    sizes: dict[str, int] = {}
    for path in _weights(packed):
        for record in container.read(path).description.records:
            if record.dtype in _FLOATS:
                sizes[record.dtype] = sizes.get(record.dtype, 0) + record.size
    return _FLOATS[max(sizes, key=lambda dtype: sizes[dtype])] if sizes else None


def _weights(packed: Path) -> Iterator[Path]:
    """The files of safetensors in a packed folder itself."""
    return (path for path in sorted(packed.iterdir()) if path.suffix == SUFFIX)


def read_manifest(packed: Path, limits: Limits | None = None) -> Manifest:
    """Raises FormatError where the folder has none, DamagedError where it says what no writer says, and LimitError
    where reading it takes more memory than `limits` allow."""
    path = packed / MANIFEST
    if not path.is_file():
        raise FormatError(f"{packed}: not a packed folder: it has no {MANIFEST}")
    limits = limits or Limits()
    described = read_object(path, limits)
    version = described.get("format")
    if type(version) is not int or version != _FORMAT:
        raise FormatError(f"{path}: format {printable(version)} is unknown: use a newer squeeze")
    try:
        return _manifest(described, limits)
    except FormatError as error:
        raise DamagedError(f"{path}: is damaged: {error}") from None
    except (ValueError, KeyError, zlib.error):
        raise DamagedError(f"{path}: is damaged") from None
    except LimitError as error:
        raise LimitError(f"{path}: {error}") from None


def _manifest(described: dict[str, Any], limits: Limits) -> Manifest:
    """Raises FormatError, ValueError, KeyError or zlib.error if anything is not as it must be."""
    check(described, _SCHEMA)
    files, texts, states = described["files"], described["kept"], described.get("packed", [])
    if not texts.keys() <= files.keys() or not set(states) <= files.keys() - texts.keys():
        raise ValueError
    hashes = {relative(name): digest for name, digest in files.items() if re.fullmatch("[0-9a-f]{64}", digest)}
    if len(hashes) < len(files):
        raise ValueError
    kept, memory = {}, 0
    for name, text in texts.items():
        kept[name] = unfolded(text, _MAX_KEPT, limits, f"'{printable(name)}'")
        memory += 8 * len(kept[name])
        limits.need_memory(memory, "the manifest")
    return Manifest(hashes, kept, frozenset(states))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def has_packed(path: Path) -> bool:
    """Whether `path` is a packed folder, or a packed file of safetensors."""
    if path.is_dir():
        return (path / MANIFEST).is_file()
    return path.suffix == SUFFIX and container.is_packed(tensorfile.read(path))


def raw_size(source: Path) -> int:
    """Raw bytes of a checkpoint, packed or not, as far as headers tell them."""
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
