"""Typical launches of the decoders of planes, which promise the bits of their reference."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.packing.device_decode import DevicePlane, Prepared, kernel
from squeeze.packing.tensors.float_payload import geometry
from tests.kernels.launches.launch import Launch, meta

__all__ = ["launches"]

# Drawn as bench/shared/gpu_cases.py draws matrices: what their planes have.
_RAW_BITS, _PRECISION, _TABLES, _SYMBOLS, _WORDS_A_VALUE = 5, 13, 8, 256, 0.66
_MATRIX = 4096 * 4096
# Values of the matrices of a block of Llama-3.1-8B: query, key, value, output, gate, up, down.
_BLOCK = (_MATRIX, 4096 * 1024, 4096 * 1024, _MATRIX, 4096 * 14336, 4096 * 14336, 4096 * 14336)


def _prepared(count: int) -> Prepared:
    lanes, rows = geometry(count, "BF16")
    segments = -(-count // (lanes * rows))
    plane = DevicePlane(
        *(16, _RAW_BITS, _PRECISION, 0),
        table=meta(_TABLES, 1 << _PRECISION, dtype=torch.uint8),
        entries=meta(_TABLES, _SYMBOLS, dtype=torch.int64),
        ids=meta(segments, dtype=torch.uint8),
        starts=meta(segments + 1, dtype=torch.int64),
        states=meta(segments, lanes, dtype=torch.int32),
        words=meta(int(count * _WORDS_A_VALUE), dtype=torch.int16),
        raw=meta(segments * lanes * -(-rows * _RAW_BITS // 32), dtype=torch.int32),
    )
    payload = meta(0, dtype=torch.uint8)
    return Prepared("BF16", 2 * count, payload, count, 16, True, lanes, rows, (plane,), None)


def launches() -> Iterator[Launch]:
    prepared = _prepared(_MATRIX)
    (plane,), out = prepared.planes, meta(_MATRIX, dtype=torch.int16)
    segments = meta(prepared.segments, dtype=torch.int64)
    yield Launch(
        name=f"device_decode bf16, {_MATRIX} values",
        run=partial(kernel.decode_plane, prepared, plane, segments, out, prepared.rotated, False),
        exact=True,
    )
    block = [_prepared(count) for count in _BLOCK if geometry(count, "BF16") == geometry(_BLOCK[-1], "BF16")]
    owners = meta(sum(one.segments for one in block), dtype=torch.int32)
    places = meta(len(block), kernel.COLUMNS, dtype=torch.int64)
    yield Launch(
        name=f"device_decode bf16, {len(block)} tensors of {_BLOCK[-1]} values at once",
        run=partial(kernel.decode_several, block[0], block[0].planes[0], block[0].rotated, owners, places),
        exact=True,
    )
