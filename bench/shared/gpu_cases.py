"""The cases of `python -m bench gpu`: kernels and torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from squeeze.checkpoint.quantized import words_for
from squeeze.kernels import w4a16
from squeeze.kernels.dequant import Packed, kernel as dequant, reference_dequantize
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

__all__ = ["CASES", "Call", "Case", "Way", "draw"]

Call = Callable[[], Any]
_SQUARE = 4096, 4096


@dataclass(frozen=True)
class Way:
    """An implementation of a case.

    Args:
        name: name in the table
        calls: function from the data of a case to calls, one per copy of the weight
        tolerance: relative error allowed; 0 for equal bits
    """

    name: str
    calls: Callable[[Any], Sequence[Call]]
    tolerance: float = 1e-2


@dataclass(frozen=True)
class Case:
    """An operation with several implementations, which are compared with the first one.

    Args:
        name: name in the table
        data: function that makes the inputs on a device
        expected: function from the data to the correct result
        ways: implementations
        nbytes: function from the data to bytes, for a speed in GB/s; None for no speed
    """

    name: str
    data: Callable[[Any], Any]
    expected: Callable[[Any], torch.Tensor]
    ways: tuple[Way, ...]
    nbytes: Callable[[Any], int] | None = None


@dataclass(frozen=True)
class Product:
    """x [R, I] times a weight, as squeeze stores it and dense [O, I].

    Copies of both are used in turn, so that none remains in a cache.
    """

    x: torch.Tensor
    stored: Any
    dense: torch.Tensor
    device: Any

    def expected(self) -> torch.Tensor:
        return functional.linear(self.x.float(), self.dense.float())

    def copies(self, nbytes: int | None = None) -> int:
        return max(1, self.device.apart // (nbytes or self.dense.nbytes))

    def ours(self, run: Callable[[torch.Tensor, Any], torch.Tensor], nbytes: int) -> Sequence[Call]:
        """Return calls on copies of the stored weight, which has `nbytes` bytes."""
        return [partial(run, self.x, clone(self.stored)) for _ in range(self.copies(nbytes))]


def clone(weight: Any) -> Any:
    """Copy a dataclass and its tensors."""
    found = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return replace(weight, **{name: one.clone() for name, one in found.items() if isinstance(one, torch.Tensor)})


def _dense(data: Product) -> Sequence[Call]:
    return [partial(functional.linear, data.x, data.dense.clone()) for _ in range(data.copies())]


def _shape(device: Any, shape: tuple[int, int] = _SQUARE) -> tuple[int, int]:
    return shape if device.large else (shape[0] // 64, shape[1] // 2048 * 128)


def _name(kind: str, rows: int, shape: tuple[int, int]) -> str:
    return f"{kind}{f' {shape[0]}x{shape[1]}' * (shape != _SQUARE)}, {rows} row{'s' * (rows > 1)}"


def _quantised(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    """Multiply as layers do, with the kernel that is fastest on this device."""

    def data(device: Any) -> Product:
        outputs, inputs = _shape(device, shape)
        words = torch.randint(-(1 << 31), 1 << 31, (outputs, words_for(inputs, 4)), device=device.where).to(torch.int32)
        scales = (torch.rand(1, outputs, inputs // 128, device=device.where) + 0.5) / 16 / inputs**0.5
        stored = Packed(words, scales.to(device.dtype), None, 4, 128, inputs)
        x = torch.randn(rows, inputs, device=device.where, dtype=device.dtype)
        return Product(x, stored, reference_dequantize(stored, device.dtype), device)

    def ours(data: Product) -> Sequence[Call]:
        calls = data.ours(w4a16.matmul, data.stored.words.nbytes)
        for call in calls:  # measures which kernel is fastest, before anything is timed
            call()
        return calls

    ways = Way("torch bf16", _dense), Way("squeeze", ours)
    return Case(_name("w4a16", rows, shape), data, Product.expected, ways)


def _sparse(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    def data(device: Any) -> Product:
        weight = Magnitude().apply(torch.randn(*_shape(device, shape)))
        stored = Packed24.of(weight, device.dtype).to(torch.device(device.where))
        x = torch.randn(rows, stored.inputs, device=device.where, dtype=device.dtype)
        return Product(x, stored, weight.dequantize(device.dtype).to(device.where), device)

    def ours(data: Product) -> Sequence[Call]:
        run = sparse24.gemv if rows <= GEMV_ROWS else sparse24.gemm
        return data.ours(run, data.stored.values.nbytes)

    def structured(data: Product) -> Sequence[Call]:
        from torch.sparse import to_sparse_semi_structured

        count = data.copies(data.dense.nbytes * 9 // 16)
        return [partial(functional.linear, data.x, to_sparse_semi_structured(data.dense.clone())) for _ in range(count)]

    ways = Way("torch bf16", _dense), Way("squeeze", ours), Way("torch semi-structured", structured)
    return Case(_name("2:4", rows, shape), data, Product.expected, ways)


def _expanded() -> Case:
    def calls(run: Any) -> Callable[[Product], Sequence[Call]]:
        return lambda data: data.ours(lambda x, one: run(one, x.dtype), data.stored.words.nbytes)

    named = ("torch", reference_dequantize), ("squeeze", dequant.dequantize)
    ways = tuple(Way(name, calls(run), tolerance=0) for name, run in named)
    name, data = "4-bit weights expanded", _quantised(1).data
    return Case(name, data, lambda data: data.dense, ways, lambda data: data.dense.nbytes)


def draw(outputs: int, inputs: int) -> torch.Tensor:
    """Return bf16 weights [outputs, inputs] whose scale differs by row."""
    scale = torch.exp(torch.randn(outputs, 1) * 0.3 - 4)
    return (torch.randn(outputs, inputs) * scale).bfloat16()


def _coded(outputs: int, inputs: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a bf16 weight and its payload."""
    dense = draw(outputs, inputs)
    payload = floats.encode(dense.view(torch.uint8).flatten().numpy().view(np.uint8), "BF16", threads=8)
    assert payload is not None
    return dense.to(device.where), torch.from_numpy(payload).to(device.where)


def _copied(data: Any) -> Sequence[Call]:
    return [partial(torch.empty_like(data.dense).copy_, data.dense.clone()) for _ in range(data.copies())]


def _decoded(multiplied: bool = False) -> Case:
    """Decode a weight, or decode it and multiply by it. No decoder can be faster than a copy of the weight."""

    def data(device: Any) -> Product:
        dense, payload = _coded(*_shape(device), device)
        x = torch.randn(1, dense.shape[1], device=device.where, dtype=torch.bfloat16)
        return Product(x, device_decode.prepare(payload, "BF16", dense.nbytes), dense, device)

    def ours(data: Product) -> Sequence[Call]:
        out = torch.empty_like(data.dense)

        def decode() -> torch.Tensor:
            weight = device_decode.decode(data.stored, out).view(out.shape)
            return functional.linear(data.x, weight) if multiplied else weight

        return [decode]

    if multiplied:
        ways = Way("torch bf16", _dense), Way("squeeze", ours)
        return Case("coded bf16 weights, decoded for 1 row", data, Product.expected, ways)
    exact = Way("copy", _copied, tolerance=0), Way("squeeze", ours, tolerance=0)
    size = lambda data: data.dense.nbytes  # noqa: E731
    return Case("coded bf16 weights decoded", data, lambda data: data.dense, exact, size)


def _block_decoded() -> Case:
    """Decode all matrices of a Llama-7B block in one launch."""

    def data(device: Any) -> Product:
        wide, narrow = (4096, 11008) if device.large else (64, 128)
        shapes = [(wide, wide)] * 4 + [(narrow, wide)] * 2 + [(wide, narrow)]  # q, k, v, o; gate, up; down
        drawn = {shape: _coded(*shape, device) for shape in dict.fromkeys(shapes)}
        weights = [drawn[shape] for shape in shapes]
        prepared = [device_decode.prepare(payload.clone(), "BF16", dense.nbytes) for dense, payload in weights]
        dense = torch.cat([dense.view(-1) for dense, _ in weights]).view(torch.uint8)
        return Product(dense[:1], Together(prepared), dense, device)

    def ours(data: Product) -> Sequence[Call]:
        out = torch.empty_like(data.dense)  # sizes are multiples of what Together aligns to

        def decode() -> torch.Tensor:
            data.stored.decode(out)
            return out

        return [decode]

    ways = Way("copy", _copied, tolerance=0), Way("squeeze", ours, tolerance=0)
    name = "a block's coded bf16 weights decoded at once"
    return Case(name, data, lambda data: data.dense, ways, lambda data: data.dense.nbytes)


@dataclass(frozen=True)
class Attention:
    """Queries [B, 4 H, Q, D] over a coded layer; the last query sees all of it."""

    query: torch.Tensor
    view: Any

    @property
    def scaling(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    @property
    def bias(self) -> torch.Tensor | None:
        return additive_mask(None, self.query.shape[2], self.view.length, True, self.query)

    def expected(self) -> torch.Tensor:
        return tiles.attend(self.query, self.view, self.bias, self.scaling)


def _attention(bits: int, queries: int = 1) -> Case:
    def data(device: Any) -> Attention:
        batch, heads, tokens, size = (8, 8, 1 << 15, 128) if device.large else (1, 2, 96, 16)
        layer = PackedLayer(KIVI(bits=bits, group=64 if device.large else 16), 0)
        states = (torch.randn(batch, heads, tokens, size, device=device.where, dtype=device.dtype) for _ in range(2))
        layer.update(*states)
        query = torch.randn(batch, 4 * heads, queries, size, device=device.where, dtype=device.dtype)
        return Attention(query, layer._view())

    def sdpa(data: Attention) -> Sequence[Call]:
        keys, values = (one.to(data.query.dtype).contiguous() for one in data.view.dense())
        mask = None if data.bias is None else data.bias.to(data.query.dtype)
        attend = functional.scaled_dot_product_attention
        return [partial(attend, data.query, keys, values, mask, scale=data.scaling, enable_gqa=True)]

    def ours(data: Attention) -> Sequence[Call]:
        if queries > 1:
            return [partial(tiles.attend, data.query, data.view, data.bias, data.scaling)]
        return [partial(attention.attend, data.query, data.view, data.scaling)]

    named = ("SDPA bf16", sdpa), ("squeeze", ours)
    name = f"attention{f' of {queries} queries' * (queries > 1)} over 32,768 tokens of {bits} bits"
    return Case(name, data, Attention.expected, tuple(Way(way, calls, tolerance=2e-2) for way, calls in named))


CASES: tuple[Case, ...] = (
    _decoded(),
    _block_decoded(),
    _decoded(multiplied=True),
    _expanded(),
    *(_quantised(rows) for rows in (1, 4, 16, 64)),
    *(_quantised(rows, shape) for shape in ((11008, 4096), (4096, 11008)) for rows in (1, 16, 64)),
    *(_sparse(rows, shape) for shape in (_SQUARE, (11008, 4096)) for rows in (1, 16)),
    *(_attention(bits) for bits in (4, 2, 8)),
    _attention(4, queries=16),
)
