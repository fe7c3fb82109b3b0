"""Finding tensors, and pieces of 64 KiB of tensors, whose bytes occur before in the files that are packed together.

The first bytes of each piece are looked up, and a piece that may be a repetition is compared with the earlier one byte
for byte. So a checkpoint without repetitions is read only at one place in 64 KiB. A tensor that repeats another one is
never repeated in turn, so that references are one step long.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from squeeze.checkpoint.safetensors import Bytes, Tensor, TensorFile
from squeeze.packing.shared import LITERAL, PIECE, Joined, Run, Table
from squeeze.packing.tensors.content import Content, InFile
from squeeze.system.binary import Positional
from squeeze.system.storage import remote

__all__ = ["Sharing", "find"]

_KEY = 64  # bytes at the start of a piece that are looked up
_PERIOD = 8  # bytes: a key that repeats so few is that of a constant, which is coded shortly anyway
_LEAST = 1024  # bytes of the smallest tensor that is looked up
_LEAST_SHARE = 16  # a tensor is coded in pieces if one in so many of its bytes is shared


@dataclass(frozen=True)
class Sharing:
    """The bytes that a tensor shares with earlier ones. places: the original file and offset of each source."""

    table: Table
    places: tuple[tuple[Path, int], ...]

    def content(self, opened: ExitStack) -> Content:
        """Return the bytes of all runs of other tensors, end to end; files are closed with `opened`."""
        files = {path: Positional(opened.enter_context(path.open("rb"))) for path, _ in self.places}
        runs = [run for run in self.table.runs if run.source != LITERAL]
        return Joined(
            [
                InFile(files[path], begin + run.begin, run.size)
                for run in runs
                for path, begin in [self.places[run.source]]
            ]
        )


@dataclass(frozen=True)
class _Place:
    """A piece of a tensor that is coded whole: the file's name, the tensor, and the number of the piece."""

    file: str
    tensor: Tensor
    piece: int


@dataclass
class _Known:
    """The pieces so far by their first bytes, and the files that they are in."""

    pieces: dict[bytes, _Place] = field(default_factory=dict)
    data: dict[str, Bytes] = field(default_factory=dict)

    def bytes_at(self, place: _Place, size: int) -> Bytes | None:
        """Return `size` bytes of a piece, or None if the tensor ends before."""
        begin = place.tensor.begin + place.piece * PIECE
        return self.data[place.file][begin : begin + size] if begin + size <= place.tensor.end else None


def find(files: Mapping[str, TensorFile]) -> dict[str, dict[str, Sharing]]:
    """Return what the tensors of files on disk share with earlier ones, by name of the file and of the tensor.

    Args:
        files: files by name. Those of safetensors, and with the shortest paths, count as earlier.
    """
    known, found = _Known(), dict[str, dict[str, Sharing]]()
    for name, file in sorted(files.items(), key=lambda item: _rank(*item)):
        if remote(file.path) or not file.size:
            continue
        known.data[name] = np.asarray(np.memmap(file.path, np.uint8, "r"))  # whose slices are made faster
        for tensor in file.tensors:
            if tensor.size < _LEAST or tensor.end > known.data[name].size:
                continue
            keys = _keys(known.data[name][tensor.begin : tensor.end])
            if sharing := _sharing(known, name, tensor, keys, files):
                found.setdefault(name, {})[tensor.name] = sharing
            else:
                _add(known, name, tensor, keys)
    return found


def _rank(name: str, file: TensorFile) -> tuple[int, bool, str]:
    return name.count("/"), file.path.suffix != ".safetensors", name


def _keys(data: Bytes) -> list[bytes]:
    """Return the first bytes of each piece of a tensor; those of a constant are empty."""
    keys, last = [], data.size // PIECE * PIECE
    if last:
        rows = data[:last].reshape(-1, PIECE)[:, :_KEY]
        text, constant = rows.tobytes(), (rows[:, _PERIOD:] == rows[:, :-_PERIOD]).all(1).tolist()
        keys = [b"" if one else text[k * _KEY : (k + 1) * _KEY] for k, one in enumerate(constant)]
    if last < data.size:
        key = data[last : last + _KEY].tobytes()
        keys.append(b"" if key[_PERIOD:] == key[:-_PERIOD] else key)
    return keys


def _add(known: _Known, name: str, tensor: Tensor, keys: Sequence[bytes]) -> None:
    for piece, key in enumerate(keys):
        if key:
            known.pieces.setdefault(key, _Place(name, tensor, piece))


def _sharing(
    known: _Known, name: str, tensor: Tensor, keys: Sequence[bytes], files: Mapping[str, TensorFile]
) -> Sharing | None:
    """Return what a tensor shares with those so far, or None if that is little.

    Args:
        known: the pieces so far.
        name: the name of the tensor's file.
        tensor: the tensor.
        keys: of its pieces.
        files: files by name.
    """
    if known.pieces.keys().isdisjoint(keys):
        return None
    data = known.data[name][tensor.begin : tensor.end]
    runs = list(_runs(known, data, keys))
    shared = sum(size for place, size in runs if place)
    if shared < min(tensor.size, PIECE) or _LEAST_SHARE * shared < tensor.size:
        return None
    sources: dict[tuple[str, str], tuple[Path, int]] = {}
    for place, _ in runs:
        if place:
            key = "" if place.file == name else place.file, place.tensor.name
            sources[key] = files[place.file].path, place.tensor.begin
    numbers = {key: number for number, key in enumerate(sources)}
    table = Table(tuple(sources), tuple(_run(place, size, name, numbers) for place, size in runs))
    return Sharing(table, tuple(sources.values()))


def _run(place: _Place | None, size: int, name: str, numbers: dict[tuple[str, str], int]) -> Run:
    if place is None:
        return Run(LITERAL, 0, size)
    return Run(numbers["" if place.file == name else place.file, place.tensor.name], place.piece * PIECE, size)


def _runs(known: _Known, data: Bytes, keys: Sequence[bytes]) -> Iterator[tuple[_Place | None, int]]:
    """Yield runs of a tensor: where each occurs, if it does, and its bytes. keys: of its pieces."""
    begin, length = None, 0  # of the run so far
    for number, key in enumerate(keys):
        piece = data[number * PIECE : (number + 1) * PIECE]
        after = _Place(begin.file, begin.tensor, begin.piece + length // PIECE) if begin else None
        first = known.pieces.get(key)
        place = next((one for one in (after, first) if one and _is_at(known, one, piece)), None)
        if length and place != after:
            yield begin, length
            begin, length = place, 0
        elif not length:
            begin = place
        length += piece.size
    if length:
        yield begin, length


def _is_at(known: _Known, place: _Place, piece: Bytes) -> bool:
    """Return whether a piece is the same as one so far."""
    other = known.bytes_at(place, piece.size)
    return other is not None and np.array_equal(other, piece)
