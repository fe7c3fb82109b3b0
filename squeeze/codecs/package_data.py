"""Tables of numbers that are installed with the package; no level works without them."""

import json
import lzma
from pathlib import Path

import numpy as np
import xxhash

from squeeze.errors import SqueezeError

_TYPES = {"I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "U32": np.uint32, "F32": np.float32}


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
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found
