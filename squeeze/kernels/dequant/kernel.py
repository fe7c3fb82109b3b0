"""Dequantisation in Triton: a program takes some rows and a block of inputs, and writes each weight once."""

import torch
import triton
import triton.language as tl

from squeeze.kernels.dequant import Packed

_ROWS, _COLUMNS = 4, 256
_MAX_ROWS = _ROWS * ((1 << 16) - 1)  # of a launch: a grid has at most 65,535 programs in its second dimension


@triton.jit  # type: ignore[untyped-decorator]
def load_codes(words, start, k, present, BITS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load code `k` of each row as int32, 0 if it is not `present`; the words of a row begin at `start`."""
    bit = k * BITS
    shift = bit % 32
    low = tl.load(words + start + bit // 32, mask=present, other=0).to(tl.uint32, bitcast=True)
    code = low >> shift.to(tl.uint32)
    if 32 % BITS != 0:
        spills = present & (shift + BITS > 32)
        high = tl.load(words + start + bit // 32 + 1, mask=spills, other=0).to(tl.uint32, bitcast=True)
        code |= high << ((32 - shift) % 32).to(tl.uint32)
    return (code & ((1 << BITS) - 1)).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _dequantize(  # type: ignore[no-untyped-def]
    out, words, scales, zeros, codebook, global_scale, outputs, inputs, stride, groups, group_size, levels,
    BITS: tl.constexpr, PLANES: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_CODEBOOK: tl.constexpr,
    HAS_GLOBAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    present = (row < outputs) & (column < inputs)
    code = load_codes(words, row * stride, column, present, BITS)
    group = row * groups + column // group_size
    if HAS_CODEBOOK:
        weight = tl.zeros((ROWS, COLUMNS), tl.float32)
        for plane in tl.static_range(PLANES):
            scale = tl.load(scales + plane * outputs * groups + group, mask=present, other=0)
            weight += tl.load(codebook + plane * levels + code, mask=present, other=0) * scale.to(tl.float32)
    else:
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=present, other=0).to(tl.int32)
        else:
            zero = 1 << (BITS - 1)
        weight = (code - zero).to(tl.float32) * tl.load(scales + group, mask=present, other=0).to(tl.float32)
    if HAS_GLOBAL:
        weight *= tl.load(global_scale)
    tl.store(out + row * inputs + column, weight.to(out.dtype.element_ty), mask=present)


def dequantize(packed: Packed, dtype: torch.dtype) -> torch.Tensor:
    """Dequantise as `reference_dequantize` does, with the same bits."""
    out = torch.empty((packed.outputs, packed.inputs), dtype=dtype, device=packed.words.device)
    for first in range(0, packed.outputs, _MAX_ROWS):
        last = min(first + _MAX_ROWS, packed.outputs)
        _launch(packed if last - first == packed.outputs else packed.rows(first, last), out[first:last])
    return out


def _launch(packed: Packed, out: torch.Tensor) -> None:
    words, scales = packed.words.contiguous(), packed.scales.contiguous()
    zeros = words if packed.zeros is None else packed.zeros.contiguous()
    codebook = words if packed.codebook is None else packed.codebook.contiguous()
    grid = (triton.cdiv(packed.inputs, _COLUMNS), triton.cdiv(packed.outputs, _ROWS))
    if out.numel():
        with torch.cuda.device_of(out):
            _dequantize[grid](
                *(out, words, scales, zeros, codebook, words if packed.global_scale is None else packed.global_scale),
                *(packed.outputs, packed.inputs, words.shape[1], scales.shape[2]),
                *(packed.group_size, codebook.shape[-1]),
                BITS=packed.bits,
                PLANES=scales.shape[0],
                HAS_ZEROS=packed.zeros is not None,
                HAS_CODEBOOK=packed.codebook is not None,
                HAS_GLOBAL=packed.global_scale is not None,
                ROWS=_ROWS,
                COLUMNS=_COLUMNS,
                enable_fp_fusion=False,
            )
