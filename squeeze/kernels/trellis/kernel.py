"""Decoding of trellis codes in Triton: a program takes some columns and a block of rows, and writes each level once."""

import torch
import triton
import triton.language as tl

from squeeze.kernels.trellis.reference import STATE_BITS, levels
from squeeze.numerics.constants import constant_on

_COLUMNS, _ROWS = 4, 256


@triton.jit  # type: ignore[untyped-decorator]
def _decode(  # type: ignore[no-untyped-def]
    out, codes, table, columns, rows, stride, rate, STATE_BITS: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[:, None]
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[None, :]
    present = (column < columns) & (row < rows)
    bit = row.to(tl.int64) * rate // 16
    byte = bit // 8
    state = tl.zeros((COLUMNS, ROWS), tl.int32)
    for i in tl.static_range(3):
        part = tl.load(codes + column * stride + byte + i, mask=present & (byte + i < stride), other=0)
        state |= part.to(tl.int32) << (8 * i)
    state = (state >> (bit % 8).to(tl.int32)) & ((1 << STATE_BITS) - 1)
    tl.store(out + column * rows + row, tl.load(table + state), mask=present)


def decode(codes: torch.Tensor, rows: int, rate: int) -> torch.Tensor:
    """Decode as `reference.decode` does; the columns of the result are contiguous."""
    codes = codes.contiguous()
    out = torch.empty((len(codes), rows), dtype=torch.float32, device=codes.device)
    if out.numel():
        grid = (triton.cdiv(len(codes), _COLUMNS), triton.cdiv(rows, _ROWS))
        with torch.cuda.device_of(out):
            _decode[grid](
                *(out, codes, constant_on(levels(), codes.device), len(codes), rows, codes.shape[1], rate),
                STATE_BITS=STATE_BITS,
                COLUMNS=_COLUMNS,
                ROWS=_ROWS,
                enable_fp_fusion=False,
            )
    return out.T
