"""What `python -m bench gpu` measures: every kernel beside torch's own product, and rivals where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from bench.measures.gpu_decode import draw as draw_weights
from bench.measures.w4a16 import draw as draw_codes, moved
from bench.shared import attention_cases, fused_cases, gpu_rivals as rivals
from bench.shared.contest import Call, Case, Contender
from squeeze.codecs.tensors import floats
from squeeze.kernels import df_decode, w4a16
from squeeze.kernels.blr import kernel as blr, reference as blocks
from squeeze.kernels.dequant import Packed, kernel as dequant, reference as expansion
from squeeze.kernels.df_decode.together import Together
from squeeze.kernels.lowrank import kernel as lowrank, reference as pairs
from squeeze.kernels.recurrence import kernel as recurrence, reference as recurrences
from squeeze.kernels.roofline import constants_of, known, predict
from squeeze.kernels.sparse24 import Packed24, kernel as sparse24
from squeeze.kernels.split_k import GEMV_ROWS
from squeeze.kernels.trellis import column_bytes, kernel as trellis, reference as levels
from squeeze.kernels.tt import kernel as tt, reference as trains
from squeeze.kernels.w4a16.order import Ordered
from squeeze.prune.magnitude import Magnitude

_LOOSE = 0.2  # of 4-bit weights that are not ours


@dataclass(frozen=True)
class Product:
    """x [R, I] by a weight: as we store it, and dense [O, I]. copies: of either, so that none stays in a cache."""

    x: torch.Tensor
    stored: Any
    dense: torch.Tensor
    device: Any

    def expected(self) -> torch.Tensor:
        return functional.linear(self.x.float(), self.dense.float())

    def copies(self, nbytes: int | None = None) -> int:
        return max(1, self.device.apart // (nbytes or self.dense.nbytes))

    def ours(self, run: Callable[[torch.Tensor, Any], torch.Tensor], nbytes: int, copy: Callable[[Any], Any]) -> Any:
        """Calls on copies of what is stored, which has so many bytes."""
        stored = [copy(self.stored) for _ in range(self.copies(nbytes))]
        return [partial(run, self.x, one) for one in stored]


def _dense(data: Product) -> Sequence[Call]:
    return [partial(functional.linear, data.x, data.dense.clone()) for _ in range(data.copies())]


DENSE = Contender("torch bf16", _dense)


_SQUARE = 4096, 4096


def _shape(device: Any, shape: tuple[int, int] = _SQUARE) -> tuple[int, int]:
    return shape if device.large else (shape[0] // 64, shape[1] // 2048 * 128)


def _x(device: Any, rows: int, inputs: int) -> torch.Tensor:
    return torch.randn(rows, inputs, device=device.where, dtype=device.dtype)


def clone(weight: Any) -> Any:
    """A dataclass with copies of its tensors."""
    found = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return replace(weight, **{name: one.clone() for name, one in found.items() if isinstance(one, torch.Tensor)})


def _quantised(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    """As layers multiply, with codes in the order and by the kernel that is fastest where this runs; and reshuffled."""

    def data(device: Any) -> Product:
        outputs, inputs = _shape(device, shape)
        packed = draw_codes(outputs, inputs, 4, 128, False)
        stored = Packed(packed.words, packed.scales.to(device.dtype), None, 4, 128, inputs)
        stored = moved(stored, device.where)
        return Product(_x(device, rows, inputs), stored, expansion.dequantize(stored, device.dtype), device)

    def calls(weight: Packed | Ordered, data: Product) -> Sequence[Call]:
        found = replace(data, stored=weight).ours(w4a16.matmul, weight.words.nbytes, clone)
        for call in found:  # which measures, and lets what follows begin early
            call()
        return cast(Sequence[Call], found)

    def contender(name: str, weight_of: Callable[[Product], Packed | Ordered]) -> Contender:
        return Contender(
            name,
            lambda data: calls(weight_of(data), data),
            kernel=lambda data: w4a16.way_of(data.x, weight_of(data)),
        )

    def rival(make: Callable[..., Sequence[Call]]) -> Callable[[Product], Sequence[Call]]:
        return lambda data: make(data.x, data.dense, data.copies(data.dense.nbytes // 4))

    return Case(
        f"w4a16{f' {shape[0]}x{shape[1]}' * (shape != _SQUARE)}, {rows} row{'s' * (rows > 1)}",
        data,
        Product.expected,
        (
            DENSE,
            contender("squeeze", lambda data: w4a16.arranged(data.stored, data.x.dtype)),
            contender("squeeze, reshuffled", lambda data: Ordered.of(data.stored)),
            Contender("Marlin", rival(rivals.marlin), "vllm", _LOOSE),
            Contender("bitsandbytes NF4", rival(rivals.bitsandbytes), "bitsandbytes", _LOOSE),
        ),
    )


def _sparse(rows: int, shape: tuple[int, int] = _SQUARE) -> Case:
    def data(device: Any) -> Product:
        outputs, inputs = _shape(device, shape)
        weight = Magnitude().apply(torch.randn(outputs, inputs))
        stored = Packed24.of(weight, device.dtype).to(torch.device(device.where))
        return Product(_x(device, rows, inputs), stored, weight.dequantize(device.dtype).to(device.where), device)

    def ours(data: Product) -> Sequence[Call]:
        run = sparse24.gemv if rows <= GEMV_ROWS else sparse24.gemm

        def copy(one: Packed24) -> Packed24:
            return Packed24(one.values.clone(), one.places.clone(), one.inputs)

        return data.ours(run, data.stored.values.nbytes, copy)

    def structured(data: Product) -> Sequence[Call]:
        from torch.sparse import to_sparse_semi_structured

        count = data.copies(data.dense.nbytes * 9 // 16)
        return [partial(functional.linear, data.x, to_sparse_semi_structured(data.dense.clone())) for _ in range(count)]

    def advised(data: Product) -> dict[str, float]:
        """As `squeeze advise` says for the GPU by its name, where that is known, or for the one at hand."""
        constants = constants_of(data.device.name() if known(data.device.name()) else data.device.where)
        seconds = predict(constants, *data.dense.shape, rows, 16)
        ways = {"squeeze": "kernel", "torch semi-structured": "structured"}
        return {way: seconds["dense"] / seconds[name] for way, name in ways.items() if name in seconds}

    contenders = DENSE, Contender("squeeze", ours), Contender("torch semi-structured", structured)
    name = f"2:4{f' {shape[0]}x{shape[1]}' * (shape != _SQUARE)}, {rows} row{'s' * (rows > 1)}"
    return Case(name, data, Product.expected, contenders, advised=advised)


def _factors(
    name: str, shapes: Callable[[int, int], Sequence[tuple[int, ...]]], ours: Any, plain: Any, rows: int
) -> Case:
    """ours, plain: what squeeze does, a kernel or not, and its reference, of x and the factors."""

    def data(device: Any) -> Product:
        outputs, inputs = _shape(device)
        sizes = shapes(outputs, inputs)
        factors = tuple(torch.randn(size, device=device.where, dtype=device.dtype) / size[-1] ** 0.5 for size in sizes)
        eye = torch.eye(inputs, device=device.where)
        dense = plain(eye, *(factor.float() for factor in factors)).T.to(device.dtype)
        return Product(_x(device, rows, inputs), factors, dense, device)

    def calls(run: Any) -> Callable[[Product], Sequence[Call]]:
        def copy(factors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(factor.clone() for factor in factors)

        return lambda data: data.ours(
            lambda x, factors: run(x, *factors), sum(factor.nbytes for factor in data.stored), copy
        )

    def expected(data: Product) -> torch.Tensor:
        return plain(data.x.float(), *(factor.float() for factor in data.stored))

    contenders = (
        Contender("torch bf16", _dense, tolerance=3e-2),
        Contender("squeeze", calls(ours), tolerance=3e-2),
        Contender("torch, factor by factor", calls(plain), tolerance=3e-2),
    )
    return Case(f"{name}, {rows} row{'s' * (rows > 1)}", data, expected, contenders)


def _expanded() -> Case:
    def calls(run: Any) -> Callable[[Product], Sequence[Call]]:
        return lambda data: data.ours(
            lambda x, one: run(one, x.dtype), data.stored.words.nbytes, lambda one: moved(one, data.device.where)
        )

    return Case(
        "4-bit weights expanded",
        _quantised(1).data,
        lambda data: data.dense,
        (
            Contender("torch", calls(expansion.dequantize), tolerance=0),
            Contender("squeeze", calls(dequant.dequantize), tolerance=0),
        ),
        nbytes=lambda data: data.dense.nbytes,
    )


def _levels() -> Case:
    """Of trellis codes of 2 bits, column by column."""

    def data(device: Any) -> tuple[torch.Tensor, int]:
        outputs, inputs = _shape(device)
        return torch.randint(256, (inputs, column_bytes(outputs, 32)), dtype=torch.uint8, device=device.where), outputs

    def calls(run: Callable[[torch.Tensor, int, int], torch.Tensor]) -> Callable[[Any], Sequence[Call]]:
        return lambda given: [lambda: run(*given, 32).T]

    return Case(
        "2-bit trellis codes expanded",
        data,
        lambda given: levels.decode(*given, 32).T,
        (
            Contender("torch", calls(levels.decode), tolerance=0),
            Contender("squeeze", calls(trellis.decode), tolerance=0),
        ),
        nbytes=lambda given: 4 * given[0].shape[0] * given[1],
    )


def _recurrence() -> Case:
    """As the network of levels 5 and 6 has it while it is trained."""

    def data(device: Any) -> tuple[torch.Tensor, ...]:
        batch, time, width = (768, 512, 160) if device.large else (2, 70, 5)
        decay, update = (torch.rand(batch, time, width, device=device.where) for _ in range(2))
        return decay, update, torch.rand(batch, width, device=device.where)

    def calls(run: Callable[..., torch.Tensor]) -> Callable[[tuple[torch.Tensor, ...]], Sequence[Call]]:
        return lambda given: [partial(run, *given)]

    contenders = Contender("torch", calls(recurrences.scan)), Contender("squeeze", calls(recurrence.forward))
    return Case("recurrence", data, lambda given: recurrences.scan(*given), contenders)


def _coded(outputs: int, inputs: int, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A bf16 weight and its payload."""
    values = draw_weights(outputs * inputs, inputs)
    payload = floats.encode(values.view(np.uint8), "BF16", threads=8)
    assert payload is not None
    dense = torch.from_numpy(values.view(np.int16)).to(device.where).view(torch.bfloat16).view(outputs, inputs)
    return dense, torch.from_numpy(payload).to(device.where)


def _decoded() -> Case:
    """A copy of the weight stands for what no decoder can be faster than."""

    def data(device: Any) -> Product:
        dense, payload = _coded(*_shape(device), device)
        return Product(torch.randn_like(dense[:1]), df_decode.prepare(payload, "BF16", dense.nbytes), dense, device)

    def copied(data: Product) -> Sequence[Call]:
        out = torch.empty_like(data.dense)
        return [partial(out.copy_, data.dense.clone()) for _ in range(data.copies())]

    def ours(data: Product) -> Sequence[Call]:
        out = torch.empty_like(data.dense)
        return [lambda: df_decode.decode(data.stored, out).view(out.shape)]

    def nvcomp(data: Product) -> Sequence[Call]:
        return [lambda call=call: call().view(data.dense.shape) for call in rivals.nvcomp(data.dense.view(-1), 1)]

    return Case(
        "coded bf16 weights decoded",
        data,
        lambda data: data.dense,
        (
            Contender("copy", copied, tolerance=0),
            Contender("squeeze", ours, tolerance=0),
            Contender("nvCOMP ANS", nvcomp, "nvidia.nvcomp", 0),
        ),
        nbytes=lambda data: data.dense.nbytes,
    )


@dataclass(frozen=True)
class Block:
    """The coded weights of a block of a model, and their values one after the other, as bytes."""

    together: Together
    dense: torch.Tensor


def _block_decoded() -> Case:
    """Of Llama-7B, where weights of one shape have the same values."""

    def data(device: Any) -> Block:
        wide, narrow = (4096, 11008) if device.large else (64, 128)
        shapes = [(wide, wide)] * 4 + [(narrow, wide)] * 2 + [(wide, narrow)]  # q, k, v, o; gate, up; down
        drawn = {shape: _coded(*shape, device) for shape in dict.fromkeys(shapes)}
        weights = [drawn[shape] for shape in shapes]
        prepared = [df_decode.prepare(payload.clone(), "BF16", dense.nbytes) for dense, payload in weights]
        return Block(Together(prepared), torch.cat([dense.view(-1) for dense, _ in weights]).view(torch.uint8))

    def copied(data: Block) -> Sequence[Call]:
        return [partial(torch.empty_like(data.dense).copy_, data.dense)]

    def ours(data: Block) -> Sequence[Call]:
        out = torch.empty_like(data.dense)  # which `together` fills: sizes are multiples of what it aligns to

        def decode() -> torch.Tensor:
            data.together.decode(out)
            return out

        return [decode]

    contenders = Contender("copy", copied, tolerance=0), Contender("squeeze", ours, tolerance=0)
    return Case(
        "a block's coded bf16 weights decoded at once",
        data,
        lambda data: data.dense,
        contenders,
        nbytes=lambda data: data.dense.nbytes,
    )


def _decoded_and_multiplied() -> Case:
    decoded = _decoded()

    def ours(data: Product) -> Sequence[Call]:
        out = torch.empty_like(data.dense)
        return [lambda: functional.linear(data.x, df_decode.decode(data.stored, out).view(out.shape))]

    def dfloat11(data: Product) -> Sequence[Call]:
        return rivals.dfloat11(data.x, data.dense, 1)

    contenders = DENSE, Contender("squeeze", ours), Contender("DFloat11", dfloat11, "dfloat11")
    return Case("coded bf16 weights, decoded for 1 row", decoded.data, Product.expected, contenders)


def _train(x: torch.Tensor, *cores: torch.Tensor) -> torch.Tensor:
    return trains.multiply(x, cores)


def _monarch_of(outputs: int, inputs: int) -> list[tuple[int, ...]]:
    count = 16 if outputs >= 4096 else 2  # of blocks in either direction
    return [(count, outputs // count, count * 32), (count, count * 32, inputs // count)]


def _blast_of(outputs: int, inputs: int) -> list[tuple[int, ...]]:
    count, rank = 16 if outputs >= 4096 else 2, inputs // 8
    return [(count, outputs // count, rank), (count, count, rank), (count, rank, inputs // count)]


def _pair_of(outputs: int, inputs: int) -> list[tuple[int, ...]]:
    return [(outputs, inputs // 4), (inputs // 4, inputs)]


def _train_of(outputs: int, inputs: int) -> list[tuple[int, ...]]:
    side, rank = (64, 256) if outputs >= 4096 else (8, 10)
    return [(1, outputs // side, inputs // side, rank), (rank, side, side, 1)]


def _multiplied_by_cores(x: torch.Tensor, *cores: torch.Tensor) -> torch.Tensor:
    return tt.multiply(x, cores)


CASES: tuple[Case, ...] = (
    _decoded(),
    _block_decoded(),
    _decoded_and_multiplied(),
    _expanded(),
    _levels(),
    *(_quantised(rows) for rows in (1, 4, 16, 64)),
    *(_quantised(rows, shape) for shape in ((11008, 4096), (4096, 11008)) for rows in (1, 16, 64)),
    *(_sparse(rows) for rows in (1, 16)),
    *(_sparse(rows, (11008, 4096)) for rows in (1, 16, 64)),
    *attention_cases.CASES,
    *(_factors("low rank", _pair_of, lowrank.multiply, pairs.multiply, rows) for rows in (1, 16)),
    *(_factors("Monarch", _monarch_of, blr.monarch, blocks.monarch, rows) for rows in (1, 16)),
    *(_factors("BLAST", _blast_of, blocks.blast, blocks.blast, rows) for rows in (1, 16)),
    *(_factors("tensor train", _train_of, _multiplied_by_cores, _train, rows) for rows in (1, 16)),
    _recurrence(),
    *fused_cases.CASES,
)
