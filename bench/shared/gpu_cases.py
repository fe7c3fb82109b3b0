"""The cases of `python -m bench gpu`: kernels and torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from squeeze.checkpoint.quantized import words_for
from squeeze.kernels import w4a16
from squeeze.kernels.dequant import Packed, reference_dequantize
from squeeze.kernels.sparse24 import Packed24, kernel as sparse24
from squeeze.kernels.split_k import GEMV_ROWS
from squeeze.kv.attention import kernel as attention, tiles
from squeeze.kv.kivi import KIVI
from squeeze.kv.layer import PackedLayer
from squeeze.kv.scores import additive_mask
from squeeze.packing import device_decode
from squeeze.packing.device_decode.together import Together
from squeeze.packing.tensors import floats
from squeeze.prune.scores import Magnitude

__all__ = ["CASES", "Case", "Inputs"]

_SQUARE = 4096, 4096


@dataclass(frozen=True)
class Inputs:
    """Activations or queries `x`, what they meet as squeeze stores it and dense, and the correct result."""

    x: torch.Tensor
    stored: Any
    dense: torch.Tensor
    expected: torch.Tensor


Way = Callable[[Inputs], Callable[[], torch.Tensor]]  # makes a function of no arguments, which is timed


@dataclass(frozen=True)
class Case:
    """An operation with several implementations, which are compared with the first one.

    Args:
        name: name in the table
        inputs: function that makes the inputs on a device
        ways: implementations by name
        tolerance: relative error allowed; 0 for equal bits
        in_bytes: whether to show a speed in GB/s of the dense form
    """

    name: str
    inputs: Callable[[Any], Inputs]
    ways: Mapping[str, Way]
    tolerance: float = 1e-2
    in_bytes: bool = False


def _product(device: Any, rows: int, stored: Any, dense: torch.Tensor) -> Inputs:
    """Return the inputs of x [rows, I] times a weight [O, I]."""
    x = torch.randn(rows, dense.shape[1], device=device.where, dtype=dense.dtype)
    return Inputs(x, stored, dense, functional.linear(x.float(), dense.float()))


def _dense(data: Inputs) -> Callable[[], torch.Tensor]:
    return partial(functional.linear, data.x, data.dense)


def _shape(device: Any, shape: tuple[int, int] = _SQUARE) -> tuple[int, int]:
    return shape if device.large else (shape[0] // 64, shape[1] // 2048 * 128)


def _name(kind: str, rows: int, shape: tuple[int, int]) -> str:
    return f"{kind}{f' {shape[0]}x{shape[1]}' * (shape != _SQUARE)}, {rows} row{'s' * (rows > 1)}"


def _quantised(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    """Multiply as layers do, with the kernel that is fastest on this device."""

    def inputs(device: Any) -> Inputs:
        outputs, width = _shape(device, shape)
        words = torch.randint(-(1 << 31), 1 << 31, (outputs, words_for(width, 4)), device=device.where).to(torch.int32)
        scales = (torch.rand(1, outputs, width // 128, device=device.where) + 0.5) / 16 / width**0.5
        stored = Packed(words, scales.to(device.dtype), None, 4, 128, width)
        return _product(device, rows, stored, reference_dequantize(stored, device.dtype))

    ways = {"torch bf16": _dense, "squeeze": lambda data: partial(w4a16.matmul, data.x, data.stored)}
    return Case(_name("w4a16", rows, shape), inputs, ways)


def _sparse(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    def inputs(device: Any) -> Inputs:
        weight = Magnitude().apply(torch.randn(*_shape(device, shape)))
        stored = Packed24.of(weight, device.dtype).to(torch.device(device.where))
        return _product(device, rows, stored, weight.dequantize(device.dtype).to(device.where))

    def structured(data: Inputs) -> Callable[[], torch.Tensor]:
        from torch.sparse import to_sparse_semi_structured

        return partial(functional.linear, data.x, to_sparse_semi_structured(data.dense))

    run = sparse24.gemv if rows <= GEMV_ROWS else sparse24.gemm
    ways = {"torch bf16": _dense, "squeeze": lambda data: partial(run, data.x, data.stored)}
    return Case(_name("2:4", rows, shape), inputs, ways | {"torch semi-structured": structured})


def _coded(device: Any, outputs: int, inputs: int) -> tuple[torch.Tensor, device_decode.Prepared]:
    """Return a bf16 weight [outputs, inputs], whose scale differs by row, and its prepared payload."""
    scale = torch.exp(torch.randn(outputs, 1) * 0.3 - 4)
    dense = (torch.randn(outputs, inputs) * scale).bfloat16()
    payload = floats.encode(dense.view(torch.uint8).flatten().numpy().view(np.uint8), "BF16", threads=8)
    assert payload is not None
    stored = torch.from_numpy(payload).to(device.where)
    return dense.to(device.where), device_decode.prepare(stored, "BF16", dense.nbytes)


def _copied(data: Inputs) -> Callable[[], torch.Tensor]:
    return partial(torch.empty_like(data.dense).copy_, data.dense)


def _decode(data: Inputs) -> Callable[[], torch.Tensor]:
    out = torch.empty_like(data.dense)
    return lambda: device_decode.decode(data.stored, out).view(out.shape)


def _decoded() -> Case:
    """Decode a weight. No decoder can be faster than a copy of the weight."""

    def inputs(device: Any) -> Inputs:
        dense, prepared = _coded(device, *_shape(device))
        return Inputs(dense, prepared, dense, dense)

    return Case("coded bf16 weights decoded", inputs, {"copy": _copied, "squeeze": _decode}, 0, in_bytes=True)


def _block_decoded() -> Case:
    """Decode all matrices of a Llama-7B block in one launch."""

    def inputs(device: Any) -> Inputs:
        wide, narrow = (4096, 11008) if device.large else (64, 128)
        shapes = [(wide, wide)] * 4 + [(narrow, wide)] * 2 + [(wide, narrow)]  # q, k, v, o; gate, up; down
        weights = [_coded(device, *shape) for shape in shapes]
        dense = torch.cat([dense.view(-1) for dense, _ in weights]).view(torch.uint8)
        return Inputs(dense, Together([prepared for _, prepared in weights]), dense, dense)

    def ours(data: Inputs) -> Callable[[], torch.Tensor]:
        out = torch.empty_like(data.dense)  # sizes are multiples of what Together aligns to

        def decode() -> torch.Tensor:
            data.stored.decode(out)
            return out

        return decode

    name = "a block's coded bf16 weights decoded at once"
    return Case(name, inputs, {"copy": _copied, "squeeze": ours}, 0, in_bytes=True)


def _decoded_and_multiplied() -> Case:
    def inputs(device: Any) -> Inputs:
        dense, prepared = _coded(device, *_shape(device))
        return _product(device, 1, prepared, dense)

    def ours(data: Inputs) -> Callable[[], torch.Tensor]:
        decode = _decode(data)
        return lambda: functional.linear(data.x, decode())

    return Case("coded bf16 weights, decoded for 1 row", inputs, {"torch bf16": _dense, "squeeze": ours})


def _attention(bits: int, queries: int = 1) -> Case:
    """Attend with queries [B, 4 H, Q, D] over a coded layer; the last query sees all of it."""

    def inputs(device: Any) -> Inputs:
        batch, heads, tokens, size = (8, 8, 1 << 15, 128) if device.large else (1, 2, 96, 16)
        layer = PackedLayer(KIVI(bits=bits, group=64 if device.large else 16), 0)
        states = (torch.randn(batch, heads, tokens, size, device=device.where, dtype=device.dtype) for _ in range(2))
        layer.update(*states)
        query = torch.randn(batch, 4 * heads, queries, size, device=device.where, dtype=device.dtype)
        view = layer._view()
        bias = additive_mask(None, queries, view.length, True, query)
        keys_and_values = torch.stack([one.to(query.dtype) for one in view.dense()])
        return Inputs(query, (view, bias), keys_and_values, tiles.attend(query, view, bias, size**-0.5))

    def sdpa(data: Inputs) -> Callable[[], torch.Tensor]:
        _, bias = data.stored
        mask = None if bias is None else bias.to(data.x.dtype)
        return partial(functional.scaled_dot_product_attention, data.x, *data.dense, mask, enable_gqa=True)

    def ours(data: Inputs) -> Callable[[], torch.Tensor]:
        view, bias = data.stored
        scaling = data.x.shape[-1] ** -0.5
        if queries > 1:
            return partial(tiles.attend, data.x, view, bias, scaling)
        return partial(attention.attend, data.x, view, scaling)

    name = f"attention{f' of {queries} queries' * (queries > 1)} over 32,768 tokens of {bits} bits"
    return Case(name, inputs, {"SDPA bf16": sdpa, "squeeze": ours}, 2e-2)


CASES: tuple[Case, ...] = (
    *(_decoded(), _block_decoded(), _decoded_and_multiplied()),
    *(_quantised(rows) for rows in (1, 4, 16, 64)),
    *(_quantised(rows, shape) for shape in ((11008, 4096), (4096, 11008)) for rows in (1, 16, 64)),
    *(_sparse(rows, shape) for shape in (_SQUARE, (11008, 4096)) for rows in (1, 16)),
    *(_attention(bits) for bits in (4, 2, 8)),
    _attention(4, queries=16),
)
