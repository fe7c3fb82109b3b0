"""GGUF files as memory maps: metadata, and tensors that the gguf package dequantises a few rows at a time.

The package's own reader takes seconds for a vocabulary and, in a damaged file, believes any count.
"""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


class GgufFile:
    """`fields`: the metadata; `shapes` of the tensors, rows first.

    Raises ValueError (or struct.error, or OverflowError) where the file is not a sound GGUF file.
    """

    def __init__(self, path: Path) -> None:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import quant_shape_to_byte_shape

        self._data = np.memmap(path, np.uint8, "r")
        self._view, self._at = self._data.data, 4
        version, tensors, count = self._unpack("IQQ")
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is unknown")
        self.fields: dict[str, Any] = {}
        for _ in range(self._bounded(count)):
            key = self._string()
            self.fields[key] = self._value(self._unpack("I")[0])
        self.shapes: dict[str, tuple[int, ...]] = {}
        places = {}
        for _ in range(self._bounded(tensors)):
            name, (dimensions,) = self._string(), self._unpack("I")
            if not 1 <= dimensions <= _MAX_DIMENSIONS:
                raise ValueError(f"tensor {name} has {dimensions} dimensions")
            self.shapes[name] = tuple(reversed(self._unpack(f"{dimensions}Q")))
            places[name] = self._unpack("IQ")
        start = self._at + -self._at % max(1, int(self.fields.get("general.alignment", 32)))
        self._tensors: dict[str, tuple[np.ndarray, GGMLQuantizationType]] = {}
        for name, (number, offset) in places.items():
            kind = GGMLQuantizationType(number)
            stored = quant_shape_to_byte_shape(self.shapes[name], kind)
            begin, size = start + offset, math.prod(stored)
            if begin + size > len(self._data):
                raise ValueError(f"tensor {name} is cut off")
            self._tensors[name] = self._data[begin : begin + size].view(np.ndarray).reshape(stored), kind

    def float_rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """float32 rows of the first dimension."""
        from gguf.quants import dequantize

        data, kind = self._tensors[name]
        if data.ndim == 1:
            return dequantize(data, kind).astype(np.float32)[start:stop]
        return dequantize(data[start:stop], kind).astype(np.float32)

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self._view, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def _bounded(self, count: int) -> int:
        """A count of things of at least one byte each."""
        if count > len(self._data) - self._at:
            raise ValueError("the metadata is cut off")
        return count

    def _string(self) -> str:
        size = self._bounded(self._unpack("Q")[0])
        self._at += size
        return str(self._view[self._at - size : self._at], "utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._unpack(_SCALARS[kind])[0]
        item, count = self._unpack("IQ")
        if item in _SCALARS:
            return list(self._unpack(f"{self._bounded(count)}{_SCALARS[item]}"))
        if item != _STRING:
            raise ValueError("the metadata has an array of arrays")
        return [self._string() for _ in range(self._bounded(count))]
