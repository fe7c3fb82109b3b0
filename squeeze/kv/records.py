"""Tensors of a saved KV cache as entropy-coded bytes, each with a record of how, and a checksum.

Coded by codecs/tensors/floats.py; rows of codes also as differences from one token to the next, where that is shorter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from squeeze.codecs.tensors import floats
from squeeze.errors import DamagedError, SqueezeError
from squeeze.kv.packing import pack, unpack

__all__ = ["decoded", "encoded"]

_DTYPES = {"U8": torch.uint8, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


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
    checksum = xxhash.xxh3_64_hexdigest(raw.tobytes())
    return payload, {"coding": coding, "dtype": dtype, "shape": list(plain.shape), "width": width, "xxh3": checksum}


def _differences(codes: torch.Tensor, width: int, back: bool = False) -> torch.Tensor:
    """Packed codes [B, H, n, rows, bytes]: each code less the one before it in its row, modulo 2^width, or `back`."""
    count = codes.shape[-1] * 8 // width
    values = unpack(codes, width, count)
    joined = values.transpose(2, 3).flatten(3)  # rows over all blocks
    if back:
        changed = joined.to(torch.int64).cumsum(-1)
    else:
        changed = joined.to(torch.int64).diff(dim=-1, prepend=joined.new_zeros((*joined.shape[:-1], 1)).to(torch.int64))
    changed = (changed & ((1 << width) - 1)).to(torch.uint8)
    return pack(changed.unflatten(3, (-1, count)).transpose(2, 3), width)


def decoded(name: str, payload: np.ndarray, record: Any) -> torch.Tensor:
    """The inverse of `encoded`. Raises DamagedError where payload and record do not go together."""
    try:
        dtype, shape, coding, width = (record[key] for key in ("dtype", "shape", "coding", "width"))
        kind, size = _DTYPES[dtype], int(np.prod(shape, dtype=np.int64)) * _DTYPES[dtype].itemsize
        if coding not in ("rans", "delta", "stored") or (coding == "stored" and payload.size != size):
            raise DamagedError(f"tensor {name!r}: its record is impossible")
        raw = payload if coding == "stored" else floats.decode(payload, dtype, size)
        if coding == "delta":
            packed = torch.from_numpy(np.asarray(raw)).view(torch.uint8).view(*shape)
            raw = _differences(packed, width, back=True).contiguous().numpy().reshape(-1)
        raw = np.asarray(raw).view(np.uint8).reshape(-1)
        if xxhash.xxh3_64_hexdigest(raw.tobytes()) != record["xxh3"]:
            raise DamagedError(f"tensor {name!r} does not decode to its checksum: the file has changed")
        return torch.from_numpy(raw.copy()).view(kind).view(*shape) if raw.size else torch.empty(shape, dtype=kind)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise DamagedError(f"tensor {name!r}: its record is impossible") from None
