"""Files of torch.save and torch.distributed.checkpoint: the places of their storages, found without executing anything.

A file is expected to be what torch writes. That is an uncompressed zip archive, or several end to end in a file of a
distributed checkpoint; or, from before torch 1.6, pickles followed by storages. The other bytes of the file are its
`header`, so that header and storages together are every byte.
"""

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from squeeze.checkpoint import pickled
from squeeze.checkpoint.safetensors import ELEMENT_BITS, Tensor, TensorFile
from squeeze.checkpoint.torch_storages import Storage, can_run, storages
from squeeze.errors import FormatError, TruncatedError
from squeeze.system.limits import Limits

__all__ = ["SUFFIXES", "CompressedError", "TorchFile", "gap_bytes", "plain", "read", "tiled"]

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".distcp")
_MAX_PICKLE = 1 << 26  # bytes
_LEAST = 256  # fewest bytes of a storage that is coded
_MAX_GAP = 1 << 16  # most bytes between storages that belong to the header
_PIECE = 1 << 26  # bytes of longer gaps that are coded at a time
_MAGIC = 0x1950A86A20F9469CFC6C
_MAX_NAME = 1000
_MAX_PLACE = 1 << 63  # largest offset in a file
_LOCAL = 30  # bytes of a zip entry's local header without name and extra field


class CompressedError(FormatError):
    """A file that torch loads but does not write: its archive's entries are compressed, so they cannot be coded in
    place."""


@dataclass(frozen=True)
class TorchFile:
    """A file of torch.

    Attributes:
        file: its storages as tensors.
        can_run: names in its pickles that may execute code when torch loads it without weights_only.
    """

    file: TensorFile
    can_run: tuple[str, ...]

    @property
    def coded(self) -> int:
        """The bytes of its storages."""
        return sum(tensor.size for tensor in self.file.tensors)


def read(path: Path, limits: Limits | None = None) -> TorchFile:
    """Find the storages of a file.

    Raises:
        FormatError: the file is not torch's.
        CompressedError: its archive is compressed.
        TruncatedError: it was cut off.
        LimitError: its pickles need more memory than `limits` allow.
    """
    size, names = path.stat().st_size, set[str]()
    with path.open("rb") as file:
        start = file.read(4)
        if start[:2] == b"PK":
            found = list(_of_archives(file, size, names, limits))
        elif start[:1] == b"\x80":
            found = list(_of_pickles(file, size, names, limits))
        else:
            raise FormatError("not a file of torch.save")
        tensors = tuple(tiled(found, size))
        return TorchFile(TensorFile(path, size, gap_bytes(file, size, tensors), None, tensors), tuple(can_run(names)))


def plain(path: Path) -> TensorFile:
    """Return a file of unknown content as bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        tensors = tuple(tiled([], size))
        return TensorFile(path, size, gap_bytes(file, size, tensors), None, tensors)


def _of_archives(file: BinaryIO, size: int, names: set[str], limits: Limits | None) -> Iterator[tuple[int, Storage]]:
    """Yield the offset and description of each storage. Archives are found from the last to the first."""
    end, archives = size, 0
    while end:
        try:
            with zipfile.ZipFile(cast(BinaryIO, _Part(file, end))) as archive:
                entries = archive.infolist()
                begin = min(entry.header_offset for entry in entries)
                yield from _of_archive(file, archive, end, names, limits)
        except (FormatError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
            if archives:
                return  # the bytes before belong to no archive
            raise (error if isinstance(error, FormatError) else _truncated_error()) from None
        if not 0 <= begin < end:
            return
        end, archives = begin, archives + 1


def _truncated_error() -> TruncatedError:
    return TruncatedError("not a whole file of torch.save")


class _Part:
    """The first `end` bytes of a file, for zipfile to read."""

    def __init__(self, file: BinaryIO, end: int):
        self._file, self._end, self._position = file, end, 0

    def seekable(self) -> bool:
        return True

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        self._position = max(place + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}[whence], 0)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(self._end - self._position, 0)
        self._file.seek(self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


def _of_archive(
    file: BinaryIO, archive: zipfile.ZipFile, end: int, names: set[str], limits: Limits | None
) -> Iterator[tuple[int, Storage]]:
    entries = {entry.filename: entry for entry in archive.infolist()}
    pickle = next((name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1), None)
    if pickle is None or entries[pickle].file_size > _MAX_PICKLE:
        raise FormatError("not a file of torch.save")
    if entries[pickle].compress_type:
        raise CompressedError("a zip archive as torch.save makes them, but with its entries compressed")
    root = pickle.removesuffix("data.pkl")
    if f"{root}byteorder" in entries and _content(file, entries[f"{root}byteorder"], end) != b"little":
        return
    tree = pickled.read(BytesIO(_content(file, entries[pickle], end)), names, limits)
    for key, storage in storages(tree).items():
        entry = entries.get(f"{root}data/{key}")
        if entry and not entry.compress_type and entry.file_size == storage.size:
            yield _data_of(file, entry), storage


def _data_of(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Return the offset of an entry's bytes."""
    if not 0 <= entry.header_offset < _MAX_PLACE:
        raise _truncated_error()
    file.seek(entry.header_offset)
    header = file.read(_LOCAL)
    if len(header) < _LOCAL or header[:4] != b"PK\3\4":
        raise _truncated_error()
    name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:], "little")
    return entry.header_offset + _LOCAL + name + extra


def _content(file: BinaryIO, entry: zipfile.ZipInfo, end: int) -> bytes:
    begin = _data_of(file, entry)
    if begin + entry.file_size > end:
        raise _truncated_error()
    file.seek(begin)
    return file.read(entry.file_size)


def _of_pickles(file: BinaryIO, size: int, names: set[str], limits: Limits | None) -> Iterator[tuple[int, Storage]]:
    """Yield the storages of a file from before torch 1.6: five pickles, and each storage after its length."""
    file.seek(0)
    pickles = BytesIO(file.read(_MAX_PICKLE))
    if pickled.read(pickles, names, limits) != _MAGIC:
        raise FormatError("not a file of torch.save")
    pickled.read(pickles, names, limits)
    system = pickled.read(pickles, names, limits)
    by_key = storages(pickled.read(pickles, names, limits))
    keys = pickled.read(pickles, names, limits)
    if not isinstance(system, pickled.Node) or ("little_endian", True) not in system.items:
        return
    place = pickles.tell()
    for _, key in keys.items if isinstance(keys, pickled.Node) else ():
        if not isinstance(key, str) or key not in by_key or place + 8 + by_key[key].size > size:
            raise _truncated_error()
        yield place + 8, by_key[key]
        place += 8 + by_key[key].size


def tiled(storages: Sequence[tuple[int, Storage | Tensor]], size: int) -> Iterator[Tensor]:
    """Yield the storages that are worth coding as tensors in the order of their bytes, and pieces of long gaps."""
    end, names = 0, set[str]()
    for number, (begin, storage) in enumerate(sorted(storages, key=lambda one: one[0])):
        step = ELEMENT_BITS.get(storage.dtype, 8) // 8
        if storage.size < _LEAST or storage.size % step or begin < end or begin + storage.size > size:
            continue
        yield from _gap(end, begin, names)
        name = _unique(storage.name, f"storage {number}", names)
        yield Tensor(name, storage.dtype, storage.shape, begin, begin + storage.size)
        end = begin + storage.size
    yield from _gap(end, size, names)


def _gap(begin: int, end: int, names: set[str]) -> Iterator[Tensor]:
    for start in range(begin, end, _PIECE) if end - begin > _MAX_GAP else ():
        stop = min(start + _PIECE, end)
        yield Tensor(_unique("", f"bytes {start}", names), "U8", (stop - start,), start, stop)


def _unique(name: str, fallback: str, names: set[str]) -> str:
    """Return the name if it is valid in safetensors and not taken yet, else another."""
    is_name = name and name.isprintable() and name != "__metadata__" and len(name) < _MAX_NAME and name not in names
    chosen = name if is_name else fallback
    while chosen in names:
        chosen += "'"
    names.add(chosen)
    return chosen


def gap_bytes(file: BinaryIO, size: int, tensors: tuple[Tensor, ...]) -> bytes:
    """Return all bytes that belong to no tensor."""
    parts, end = [], 0
    for begin, stop in [*((tensor.begin, tensor.end) for tensor in tensors), (size, size)]:
        file.seek(end)
        parts.append(file.read(begin - end))
        end = stop
    return b"".join(parts)
