"""Tables of numbers that are installed with the package; no level works without them.

Integers are stored as planes: transposed, so that neighbours are alike, and with the first, second, .. bytes of all
numbers together. A wheel's deflate makes a fifth less of them.
"""

import json
import lzma
from pathlib import Path

import numpy as np
import xxhash

from squeeze.errors import SqueezeError

TYPES: dict[str, type[np.generic]] = {
    "I8": np.int8,
    "U8": np.uint8,
    "I16": np.int16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
}


def tensors(file: Path, checksum: int) -> dict[str, np.ndarray]:
    """Read the tensors of a safetensors file, or of one inside an .xz file, by name.

    Python and NumPy alone read it, since the decoder of levels 1 to 6 needs no other packages.

    Args:
        file: path of the .safetensors or .safetensors.xz file.
        checksum: XXH3-64 of the safetensors file.

    Raises:
        SqueezeError: if the file is missing, or its checksum differs.
    """
    damaged = f"the file {file.name} of the package is missing or damaged: install squeeze again"
    try:
        data = file.read_bytes()
        data = lzma.decompress(data) if file.suffix == ".xz" else data
    except (OSError, lzma.LZMAError) as error:
        raise SqueezeError(f"{damaged} ({getattr(error, 'strerror', None) or error})") from error
    if xxhash.xxh3_64_intdigest(data) != checksum:
        raise SqueezeError(f"{damaged} (its checksum differs)")
    start = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:start])
    types, found = entries.pop("__metadata__", {}), {}
    for name, entry in entries.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        stored = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        found[name] = numbers(stored, TYPES[types[name]]) if name in types else stored
    return found


def planes(integers: np.ndarray) -> np.ndarray:
    """Return the planes of integers [i, j, ..], uint8 [size of a number, .., j, i].

    Numbers of more than one byte have their sign in the lowest bit, so that the high bytes of small ones are 0.
    """
    units = np.ascontiguousarray(integers.T).view(f"<i{integers.itemsize}")
    if integers.itemsize > 1:
        units = units << 1 ^ units >> 8 * integers.itemsize - 1
    return np.ascontiguousarray(np.moveaxis(units[..., None].view(np.uint8), -1, 0))


def numbers(stored: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    """Return the integers of a dtype whose `planes` these are."""
    units = np.ascontiguousarray(np.moveaxis(stored, 0, -1)).view(f"<u{len(stored)}")[..., 0]
    if len(stored) > 1:
        units = units >> 1 ^ -(units & 1)
    return np.ascontiguousarray(units.T).view(dtype)
