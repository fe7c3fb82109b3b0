"""Tensors of a saved KV cache as entropy-coded bytes, each with a record of how, and a checksum.

Coded by tensors/floats.py; rows of codes also as differences from one token to the next, where that is shorter.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.checkpoint.safetensors import named
from squeeze.errors import DamagedError, SqueezeError
from squeeze.kv.codes import pack, unpack
from squeeze.packing.tensors import floats

__all__ = ["Record", "decoded", "encoded"]

_DTYPES = {"U8": torch.uint8, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_WIDTHS = (2, 4, 8)  # of codes that are stored as differences
_MOST_RANK, _MOST_SIZE = 8, 1 << 40


@dataclass(frozen=True)
class Record:
    """How a tensor is stored. width: bits of its codes where they run along tokens, else 0. xxh3: of its bytes."""

    coding: str
    dtype: str
    shape: list[int]
    width: int
    xxh3: str

    @staticmethod
    def describes(record: Any) -> bool:
        """Whether what JSON gave are the fields of a record."""
        if not isinstance(record, dict) or record.keys() != {"coding", "dtype", "shape", "width", "xxh3"}:
            return False
        coding, dtype, shape, width, checksum = (record[k] for k in ("coding", "dtype", "shape", "width", "xxh3"))
        if not all(isinstance(text, str) for text in (coding, dtype, checksum)) or not isinstance(shape, list):
            return False
        return (
            coding in ("rans", "stored", "delta")
            and dtype in _DTYPES
            and len(shape) <= _MOST_RANK
            and all(type(size) is int and 0 <= size < _MOST_SIZE for size in shape)
            and type(width) is int
            and width in (0, *_WIDTHS)
            and (coding != "delta" or (width in _WIDTHS and dtype == "U8" and len(shape) == 5))
            and re.fullmatch("[0-9a-f]{16}", checksum) is not None
        )

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def memory(self) -> int:
        """Bytes that decoding takes, the tensor included: codes of differences are taken apart, a byte each."""
        return self.size * (2 + (5 * 8 // self.width if self.coding == "delta" else 0))


def encoded(tensor: torch.Tensor, width: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Payload, uint8, and record of a tensor; the shortest of three codings. width: bits of codes whose rows run along
    tokens, else 0. Raises SqueezeError for a dtype that the file cannot hold."""
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None:
        raise SqueezeError(f"a cache of {tensor.dtype} cannot be saved")
    plain = tensor.detach().cpu().contiguous()
    raw = plain.view(torch.uint8).numpy().reshape(-1) if plain.numel() else np.empty(0, np.uint8)
    candidates = {"rans": floats.encode(raw, dtype) if raw.size else None}
    if width and raw.size:
        candidates["delta"] = floats.encode(_differences(plain, width).numpy().reshape(-1), dtype)
    candidates["stored"] = raw
    coding = min((name for name, data in candidates.items() if data is not None), key=lambda n: candidates[n].size)  # type: ignore[union-attr]
    payload = np.ascontiguousarray(candidates[coding])
    return payload, asdict(Record(coding, dtype, list(plain.shape), width, xxhash.xxh3_64_hexdigest(raw.data)))


def _differences(codes: torch.Tensor, width: int, back: bool = False) -> torch.Tensor:
    """Packed codes [B, H, n, rows, bytes]: each code less the one before it in its row, modulo 2^width, or `back`."""
    count = codes.shape[-1] * 8 // width
    values = unpack(codes, width, count)
    joined = values.transpose(2, 3).flatten(3)  # rows over all blocks
    if back:
        changed = joined.cumsum(-1, dtype=torch.uint8)  # modulo 256, of which 2^width is a divisor
    else:
        changed = joined.diff(dim=-1, prepend=joined.new_zeros((*joined.shape[:-1], 1)))
    changed &= (1 << width) - 1
    return pack(changed.unflatten(3, (-1, count)).transpose(2, 3), width)


def decoded(name: str, payload: np.ndarray, record: Record) -> torch.Tensor:
    """The inverse of `encoded`. Raises DamagedError where payload and record do not go together."""
    kind, size, shape = _DTYPES[record.dtype], record.size, record.shape
    if record.coding == "stored" and payload.size != size:
        raise DamagedError(f"{named(name)}: its record is impossible")
    try:
        raw = payload if record.coding == "stored" else floats.decode(payload, record.dtype, size)
        if record.coding == "delta":
            raw = _differences(torch.from_numpy(raw).view(*shape), record.width, back=True).contiguous().numpy()
    except DamagedError as error:
        raise DamagedError(f"{named(name)}: {error}") from None
    except (ValueError, IndexError, RuntimeError):
        raise DamagedError(f"{named(name)}: its record is impossible") from None
    raw = raw.reshape(-1).view(np.uint8)
    if raw.size != size or xxhash.xxh3_64_hexdigest(raw.data) != record.xxh3:
        raise DamagedError(f"{named(name)} does not decode to its checksum: the file has changed")
    if not size:
        return torch.empty(shape, dtype=kind)
    if record.coding == "stored":
        raw = raw.copy()  # the payload is a part of the file
    return torch.from_numpy(raw).view(kind).view(*shape)
