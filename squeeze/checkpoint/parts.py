"""Finished parts of a checkpoint, which a stopped run left: a file each, with checksums, joined to shards at last."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors.torch import load_file, save_file

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.checkpoint.checkpoint import MAX_SHARD, TORCH_DTYPES, disk_errors
from squeeze.checkpoint.weight_files import names_of
from squeeze.errors import DamagedError, FormatError
from squeeze.system.documents import parse_object
from squeeze.system.moving import synced

__all__ = ["Parts"]

_PIECE = 1 << 24
_SUMS = "checksums"  # of the tensors of a part, in its metadata
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True)
class Parts:
    """An unfinished checkpoint: one file for each finished part, which a resumed run reuses."""

    folder: Path

    def path(self, part: str) -> Path:
        return self.folder / f"{part}.part"

    def done(self, part: str) -> bool:
        return self.path(part).is_file()

    def put(self, part: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a part in one step."""
        unfinished = self.path(part).with_suffix(".unfinished")
        with disk_errors(unfinished):
            whole = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
            sums = {name: _checksum(part, name, tensor) for name, tensor in whole.items()}
            save_file(whole, unfinished, {_SUMS: json.dumps(sums)})
        unfinished.replace(self.path(part))

    def load(self, part: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a part. Raises DamagedError if they are not those that were put."""
        for _ in _payload(self._read(part), part):
            pass
        return load_file(self.path(part))

    def _read(self, part: str) -> tensorfile.TensorFile:
        """Read the header of a part. Raises DamagedError."""
        try:
            return tensorfile.read(self.path(part))
        except FormatError:
            raise _damaged(self.path(part)) from None

    def join(self, parts: Iterable[str], folder: Path, max_shard: int = MAX_SHARD, stem: str = "model") -> int:
        """Join parts to shards of at most `max_shard` bytes (or one part) and an index, and return the bytes of all
        tensors. Raises DamagedError if a part has other tensors than were put.

        Args:
            parts: names of the parts.
            folder: where to write.
            max_shard: most bytes of a shard.
            stem: of the files' names.
        """
        shards: list[list[tuple[str, tensorfile.TensorFile]]] = []
        room = -1
        for part in parts:
            file = self._read(part)
            size = file.size - len(file.header)
            if size > room or not shards:
                shards.append([])
                room = max_shard
            shards[-1].append((part, file))
            room -= size
        whole, listing = names_of(stem)
        if len(shards) == 1:
            return _concatenate(shards[0], folder / whole)
        places: dict[str, str] = {}
        total = 0
        for number, files in enumerate(shards, 1):
            name = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            total += _concatenate(files, folder / name)
            places |= {tensor: name for _, file in files for tensor in file.by_name}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / listing).write_text(json.dumps(index, indent=2) + "\n")
        return total


def _concatenate(files: list[tuple[str, tensorfile.TensorFile]], target: Path) -> int:
    """Write the tensors of several safetensors files to one, without decoding them, and return their bytes."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for _, file in files:
        for tensor in file.tensors:
            offsets = [offset, offset + tensor.size]
            entries[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
            offset += tensor.size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with target.open("wb") as sink, synced(sink):
        sink.write(len(header).to_bytes(8, "little") + header)
        for part, file in files:
            for piece in _payload(file, part):
                sink.write(piece)
    return offset


def _payload(file: tensorfile.TensorFile, part: str) -> Iterator[bytes]:
    """Yield the tensors of a part. Raises DamagedError if their checksums differ, or one is missing."""
    try:
        sums = parse_object((file.metadata or {}).get(_SUMS, "{}"))
    except FormatError:
        raise _damaged(file.path) from None
    if sums.keys() != file.by_name.keys():
        raise _damaged(file.path)
    with file.path.open("rb") as source:
        source.seek(len(file.header))
        for tensor in file.tensors:
            digest, rest = _started(part, tensor.name, tensor.dtype, tensor.shape), tensor.size
            while piece := source.read(min(_PIECE, rest)):
                digest.update(piece)
                rest -= len(piece)
                yield piece
            if digest.hexdigest() != sums[tensor.name]:
                raise _damaged(file.path)


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"{path}: finished work is damaged: repeat the command, which starts anew")


def _started(part: str, name: str, dtype: str, shape: tuple[int, ...]) -> xxhash.xxh3_64:
    """Return a checksum that has begun with what a tensor is, and of which part."""
    return xxhash.xxh3_64(json.dumps([part, name, dtype, shape]).encode())


def _checksum(part: str, name: str, tensor: torch.Tensor) -> str:
    dtype, shape = _NAMES.get(tensor.dtype, ""), tuple(tensor.shape)
    if dtype == "F4":  # torch stores two numbers in an element
        shape = (*shape[:-1], 2 * shape[-1])
    digest = _started(part, name, dtype, shape)
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
