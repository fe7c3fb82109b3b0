"""Reading GGUF files: metadata, and tensors that the gguf package dequantises a few rows at a time.

The package's own reader takes seconds for a vocabulary, and in a damaged file trusts any count. Here no memory is
allocated for what a file only claims, and nothing is mapped: a file that becomes shorter meanwhile is an error.
"""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from squeeze.system.unchanged import UnchangedFile

if TYPE_CHECKING:
    from gguf.constants import GGMLQuantizationType

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20  # bytes


@dataclass(frozen=True)
class _Place:
    """The place of a tensor; `stored` is its shape in bytes, rows first."""

    begin: int
    stored: tuple[int, ...]
    kind: "GGMLQuantizationType"

    @property
    def end(self) -> int:
        return self.begin + math.prod(self.stored)


class GgufFile:
    """A GGUF file with its metadata `fields`, and the `shapes` of its tensors, rows first.

    Raises ValueError, struct.error or LookupError if it is not a valid GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self._file = UnchangedFile(path)
        with path.open("rb") as file:
            head = _Head(file, self._file.size)
            version, tensors, count = head.unpack("4xIQQ")
            if version not in (2, 3):
                raise ValueError(f"GGUF version {version} is unknown")
            self.fields: dict[str, Any] = {}
            for _ in range(count):
                key = head.string()
                if key in self.fields:
                    raise ValueError(f"the metadata says {key!r} twice")
                self.fields[key] = head.value(head.unpack("I")[0])
            self.shapes: dict[str, tuple[int, ...]] = {}
            places: dict[str, tuple[int, int]] = {}
            for _ in range(tensors):
                name, shape, kind, offset = head.tensor()
                if name in places:
                    raise ValueError(f"there are two tensors {name!r}")
                self.shapes[name], places[name] = shape, (kind, offset)
            start = head.at + -head.at % _alignment(self.fields)
        self._places = {name: _place(self.shapes[name], kind, start + at) for name, (kind, at) in places.items()}
        _check_places(self._places, head.size)

    def kind(self, name: str) -> "GGMLQuantizationType":
        """Return the type of a tensor's numbers."""
        return self._places[name].kind

    def float_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of a tensor as float32.

        Args:
            name: of the tensor.
            start: first row.
            stop: the row after the last.

        Raises:
            ValueError: if the file has changed since it was opened.
        """
        from gguf.quants import dequantize

        place = self._places[name]
        if len(place.stored) == 1:
            return dequantize(self._read(name, 0, place.stored[0]), place.kind).astype(np.float32)[start:stop]
        first, last, _ = slice(start, stop).indices(place.stored[0])
        row = math.prod(place.stored[1:])
        data = self._read(name, first * row, max(last - first, 0) * row)
        with np.errstate(all="ignore"):  # callers check that values are finite
            # The package takes 16 rows at a time, which takes longer for short ones than all of them as one.
            return (
                dequantize(data.reshape(1, -1), place.kind)
                .astype(np.float32, copy=False)
                .reshape(-1, *self.shapes[name][1:])
            )

    def _read(self, name: str, offset: int, size: int) -> np.ndarray:
        return self._file.read(self._places[name].begin + offset, size)


class _Head:
    """The bytes before the tensors; `at` have been read of a file of `size`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self.size, self.at = file, size, 0

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read the name, shape, type and offset of a tensor."""
        name, (dimensions,) = self.string(), self.unpack("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(self.unpack(f"{dimensions}Q")))
        if 0 in shape:
            raise ValueError(f"tensor {name!r} has no elements")
        kind, offset = self.unpack("IQ")
        return name, shape, kind, offset

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.unpack(_scalar(kind))[0]
        item, count = self.unpack("IQ")
        if item == _ARRAY:
            raise ValueError("the metadata has an array of arrays")
        if item != _STRING:
            self._check(count)
            return list(self.unpack(f"{count}{_scalar(item)}"))
        return [self.string() for _ in range(self._check(8 * count) // 8)]

    def string(self) -> str:
        return str(self._take(self.unpack("Q")[0]), "utf-8")

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack("<" + layout, self._take(struct.calcsize("<" + layout)))

    def _take(self, count: int) -> bytes:
        data = self._file.read(self._check(count))
        if len(data) < count:
            raise ValueError("the file was changed while it was read")
        self.at += count
        return data

    def _check(self, count: int) -> int:
        """Return a number of bytes if the file has them, else raise ValueError."""
        if count > self.size - self.at:
            raise ValueError("the metadata is cut off")
        return count


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"the metadata has a value of the unknown kind {kind}")
    return _SCALARS[kind]


def _alignment(fields: dict[str, Any]) -> int:
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
        raise ValueError("the metadata has an impossible general.alignment")
    return alignment


def _place(shape: tuple[int, ...], kind: int, begin: int) -> _Place:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quant_shape_to_byte_shape

    known = GGMLQuantizationType(kind)
    return _Place(begin, tuple(map(int, quant_shape_to_byte_shape(shape, known))), known)


def _check_places(places: dict[str, _Place], size: int) -> None:
    """Check that tensors are inside the file, and do not overlap.

    Raises:
        ValueError: if not.
    """
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].begin):
        if place.end > size:
            raise ValueError(f"tensor {name!r} is cut off")
        if place.begin < end:
            raise ValueError(f"tensor {name!r} overlaps the one before")
        end = place.end
