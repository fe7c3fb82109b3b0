"""Typical launches of the decoder of planes, which promises the bits of its reference."""

from collections.abc import Iterator
from functools import partial

import torch

from squeeze.codecs.tensors.float_payload import geometry
from squeeze.kernels.df_decode import DevicePlane, Prepared, kernel
from squeeze.kernels.launch import Launch, meta

__all__ = ["launches"]

# Of a matrix of Llama-3.1-8B's sizes, drawn as bench/measures/gpu_decode.py draws it: what its plane has.
_COUNT = 4096 * 4096
_RAW_BITS, _PRECISION, _TABLES, _WORDS_A_VALUE = 5, 13, 8, 0.66


def _prepared() -> Prepared:
    lanes, rows = geometry(_COUNT)
    segments = -(-_COUNT // (lanes * rows))
    plane = DevicePlane(
        *(16, _RAW_BITS, _PRECISION, 0),
        table=meta(_TABLES, 1 << _PRECISION, dtype=torch.int32),
        prefixes=meta(_TABLES, 1 << _PRECISION, dtype=torch.int16),
        ids=meta(segments, dtype=torch.uint8),
        starts=meta(segments + 1, dtype=torch.int64),
        states=meta(segments, lanes, dtype=torch.int32),
        words=meta(int(_COUNT * _WORDS_A_VALUE), dtype=torch.int16),
        raw=meta(segments * lanes * -(-rows * _RAW_BITS // 32), dtype=torch.int32),
    )
    payload = meta(0, dtype=torch.uint8)
    return Prepared("BF16", 2 * _COUNT, payload, _COUNT, 16, True, lanes, rows, (plane,), None)


def launches() -> Iterator[Launch]:
    prepared = _prepared()
    (plane,), out = prepared.planes, meta(_COUNT, dtype=torch.int16)
    segments = meta(prepared.segments, dtype=torch.int64)
    yield Launch(
        name=f"df_decode bf16, {_COUNT} values",
        run=partial(kernel.decode_plane, prepared, plane, segments, out, prepared.rotated, False),
        operands=(segments, plane.table, plane.prefixes, plane.starts, plane.states, plane.words, plane.raw),
        result=out,
        operations=0,
        trips=lambda arguments: (arguments["rows"],),
        exact=True,
    )
