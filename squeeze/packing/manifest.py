"""The manifest of a packed folder, and the files that packing has to change.

The total size in an index and `quantization_config` in config.json must differ in a packed folder. The original files
are in the manifest, squeeze.json, with the SHA-256 of every file; `unpack` restores them from there.
"""

import base64
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.weight_files import MANIFEST
from squeeze.errors import DamagedError, FormatError, LimitError, printable
from squeeze.packing import container
from squeeze.packing.description import unfolded
from squeeze.packing.sources import INDEX, SUFFIX
from squeeze.system import files
from squeeze.system.documents import check, read_object
from squeeze.system.limits import Limits
from squeeze.system.storage import join_untrusted, relative

__all__ = ["CONVERTED", "MANIFEST", "METHOD", "METHODS", "Manifest", "adapted", "read", "text_of", "write"]

METHOD = "squeeze"  # quant_method in quantization_config
CONVERTED = ("fp8", "mxfp4")  # quantised forms that transformers converts while it loads them
METHODS = (METHOD, *(f"{METHOD}+{form}" for form in CONVERTED))
_FORMAT = 1
_FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_MAX_KEPT = 1 << 26
_SCHEMA = {"format": int, "files": {...: str}, "kept": {...: str}, "packed?": [str]}


@dataclass(frozen=True)
class Manifest:
    """The content of squeeze.json.

    hashes: SHA-256 of every original file. changed_files: the original bytes of changed files. packed: the packed
    files of torch.
    """

    hashes: dict[str, str]
    changed_files: dict[str, bytes]
    packed: frozenset[str] = frozenset()

    @property
    def packed_names(self) -> set[str]:
        """The names of all packed files, of safetensors and of torch."""
        return {name for name in self.hashes if name.endswith(SUFFIX)} | self.packed


def write(source: Path, packed: Path, hashes: dict[str, str], states: list[str]) -> int:
    """Change indexes and config.json in the packed folder and write its manifest; return the bytes that this adds.

    Args:
        source: the original folder.
        packed: the packed folder.
        hashes: SHA-256 of every original file.
        states: names of the packed files of torch.
    """
    changed = adapted(source, packed, hashes)
    text = text_of(source, changed, hashes, states)
    added = len(text)
    for name, data in changed.items():
        added += len(data) - (packed / name).stat().st_size
        (packed / name).unlink()  # a copy of a read-only file is read-only, too
        (packed / name).write_bytes(data)
        files.copy_status(source / name, packed / name)
    (packed / MANIFEST).write_bytes(text)
    return added


def adapted(source: Path, packed: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Return the changed indexes and config.json of a packed folder, by name."""
    found: dict[str, bytes] = {}
    for name in names:
        changed = None
        if name.endswith(INDEX):
            changed = _adapted_index(source / name, (packed / name).parent)
        elif Path(name).name == "config.json":
            changed = _adapted_config(source / name, (packed / name).parent)
        if changed is not None:
            found[name] = changed
    return found


def text_of(source: Path, changed: Iterable[str], hashes: dict[str, str], states: list[str]) -> bytes:
    """Return the manifest of a packed folder as JSON. changed: names of the files that `adapted` returns."""
    if MANIFEST in hashes:
        raise FormatError(f"{source}: has a {MANIFEST}, so it seems to be packed already: unpack it first")
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
    """Return an index whose total size is that of the payloads."""
    index = read_object(path)
    shards = {str(shard) for shard in dict(index.get("weight_map") or {}).values()}
    total = sum(tensor.size for shard in shards for tensor in tensorfile.read(join_untrusted(packed, shard)).tensors)
    metadata = index.get("metadata")
    index["metadata"] = {**(metadata if isinstance(metadata, dict) else {}), "total_size": total}
    return json.dumps(index, indent=2).encode() + b"\n"


def _adapted_config(path: Path, packed: Path) -> bytes | None:
    """Return a config.json that tells transformers or diffusers how the weights are coded.

    It is None if the model has a quantization already whose tensors they cannot be given.
    """
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
    entry: dict[str, Any] = {"quant_method": METHOD, "dtype": _float_type(packed)}
    if form:
        entry |= {"quant_method": f"{METHOD}+{form}", "quantization": described}
    config["quantization_config"] = entry
    return json.dumps(config, indent=2).encode() + b"\n"


def _float_type(packed: Path) -> str | None:
    """Return torch's name of the most common float type of a packed folder's weights, by bytes."""
    sizes: dict[str, int] = {}
    for path in _weights(packed):
        for record in container.read(path).description.records:
            if record.dtype in _FLOATS:
                sizes[record.dtype] = sizes.get(record.dtype, 0) + record.size
    return _FLOATS[max(sizes, key=lambda dtype: sizes[dtype])] if sizes else None


def _weights(packed: Path) -> Iterator[Path]:
    """Return the packed files of safetensors directly in the folder."""
    return (path for path in sorted(packed.iterdir()) if path.suffix == SUFFIX)


def read(packed: Path, limits: Limits | None = None) -> Manifest:
    """Read the manifest of a packed folder.

    Raises:
        FormatError: if the folder has none, or one of another version.
        DamagedError: if its content is invalid.
        LimitError: if reading it takes more memory than `limits` allow.
    """
    path = packed / MANIFEST
    if not path.is_file():
        raise FormatError(f"{packed}: not a packed folder: it has no {MANIFEST}")
    limits = limits or Limits()
    described = read_object(path, limits)
    version = described.get("format")
    if type(version) is not int or version != _FORMAT:
        raise FormatError(f"{path}: format {printable(version)} is unknown: use a newer squeeze")
    try:
        return _parsed(described, limits)
    except FormatError as error:
        raise DamagedError(f"{path}: is damaged: {error}") from None
    except (ValueError, KeyError, zlib.error):
        raise DamagedError(f"{path}: is damaged") from None
    except LimitError as error:
        raise LimitError(f"{path}: {error}") from None


def _parsed(described: dict[str, Any], limits: Limits) -> Manifest:
    """Check and parse a manifest. Raises FormatError, ValueError, KeyError or zlib.error if it is invalid."""
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
