"""What `python -m bench gpu` measures of the language model of files: each fused kernel beside the same by plain torch,
and a step of the whole network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.shared.contest import Call, Case, Contender
from squeeze.fused.attention import BLOCK, Kept, Norms, Shape
from squeeze.fused.operations import TORCH, Operations, fused
from squeeze.fused.product import Product
from squeeze.lm.config import Config
from squeeze.lm.torch_engine import TorchLlama
from squeeze.lm.weights import Layer, Matrix, Weights
from squeeze.numerics import int8
from squeeze.numerics.rotation import block_of, factor
from squeeze.numerics.team import Team

_Way = Callable[[Operations], torch.Tensor]  # an operation by somebody, on the data of a case


def _case(name: str, data: Callable[[Any], _Way]) -> Case:
    def calls(by: Callable[[], Operations]) -> Callable[[_Way], Sequence[Call]]:
        return lambda way: [partial(way, by())]

    contenders = (
        Contender("torch", calls(lambda: TORCH), tolerance=0),
        Contender("squeeze", calls(fused), tolerance=0),
    )
    return Case(name, data, lambda way: way(TORCH), contenders)


def _floats(device: Any, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device=device.where, dtype=torch.float32)


def _product(device: Any, rows: int, columns: int) -> Product:
    sums = torch.randint(-(1 << 20), 1 << 20, (rows, columns), device=device.where, dtype=torch.int32)
    return Product(sums, *(_floats(device, size).abs() * 1e-4 for size in (rows, columns)))


def _sizes(device: Any) -> tuple[int, Config]:
    """Lanes, and a network as large as SmolLM2-135M."""
    lanes, layers, width, heads, groups, size, feed_forward, vocabulary = (
        (64, 30, 576, 9, 3, 64, 1536, 49152) if device.large else (2, 1, 24, 2, 1, 8, 32, 300)
    )
    frequencies = tuple(10000.0 ** (-2 * i / size) for i in range(size // 2))
    sizes = layers, width, heads, groups, size, feed_forward, vocabulary
    return lanes, Config("llama", *sizes, 2048, float(np.float32(1e-5)), frequencies, 1.0, 0)


def _norm(device: Any) -> _Way:
    lanes, config = _sizes(device)
    x, product = _floats(device, lanes, config.width), _product(device, lanes, config.width)
    out = torch.empty((lanes, config.width), dtype=torch.int8, device=device.where)

    def way(by: Operations) -> torch.Tensor:
        by.normalise(x, product, config.epsilon, out)
        return out

    return way


def _gate(device: Any) -> _Way:
    lanes, config = _sizes(device)
    product, block = _product(device, lanes, 2 * config.feed_forward), block_of(config.feed_forward)
    out = torch.empty((lanes, config.feed_forward), dtype=torch.int8, device=device.where)

    def way(by: Operations) -> torch.Tensor:
        by.gate(product, block, float(factor(block)), out)
        return out

    return way


def _counts(device: Any) -> _Way:
    lanes, config = _sizes(device)
    product = _product(device, lanes, config.vocabulary)
    return lambda by: by.cumulate(product)


def _attention(n: int) -> Callable[[Any], _Way]:
    """Turns, heads and attention of a layer, of n positions of each lane."""

    def data(device: Any) -> _Way:
        lanes, config = _sizes(device)
        window = 128 if device.large else 2
        shape = Shape(config.heads, config.kv_heads, config.head_size, window)
        slots, each = BLOCK * (2 + window + n // BLOCK), n if device.large else min(n, 3)
        kept = Kept(
            torch.randint(-127, 128, (2, lanes, shape.groups, slots, shape.size), device=device.where).to(torch.int8),
            _floats(device, 2, lanes, shape.groups, slots).abs(),
        )
        positions = 5000 + torch.arange(each, device=device.where).expand(lanes, each).contiguous()
        table = torch.randn((2, 24, shape.size // 2), device=device.where, dtype=torch.float64)
        product = _product(device, lanes * each, (shape.heads + 2 * shape.groups) * shape.size)
        norms = Norms(None, None, config.epsilon)

        def way(by: Operations) -> torch.Tensor:
            turned = by.turns(table, 1.0, positions, shape, 1 << 13)
            return by.attend(by.heads(product, shape, norms, turned, positions, kept), shape, positions, kept)

        return way

    return data


def _weights(config: Config) -> Weights:
    """Random ones."""
    random = np.random.default_rng(1)

    def scales(size: int) -> np.ndarray:
        return random.uniform(1e-4, 1e-3, size).astype(np.float32)

    def matrix(outputs: int, inputs: int) -> Matrix:
        values = int8.pack(random.integers(-127, 128, (outputs, inputs), np.int8))
        return Matrix(values, scales(outputs), outputs, inputs)

    attended = config.heads * config.head_size
    layers = tuple(
        Layer(
            qkv=matrix(attended + 2 * config.kv_heads * config.head_size, config.width),
            **dict.fromkeys(("qkv_bias", "query_norm", "key_norm", "output_bias")),
            output=matrix(config.width, attended),
            gate_up=matrix(2 * config.feed_forward, config.width),
            down=matrix(config.width, config.feed_forward),
        )
        for _ in range(config.layers)
    )
    embedding = random.integers(-127, 128, (config.vocabulary, config.width), np.int8)
    leaves = np.arange(config.vocabulary, dtype=np.int32)
    head = matrix(config.vocabulary, config.width)
    named = ("random", "", "")
    return Weights(config, layers, embedding, scales(config.vocabulary), head, leaves, (), *named)


def _step() -> Case:
    """A token of each lane through all layers, with what the processor and the GPU say to each other."""

    def data(device: Any) -> tuple[Weights, str, int]:
        lanes, config = _sizes(device)
        return _weights(config), device.where, lanes

    def states(given: tuple[Weights, str, int], by: Operations, recorded: bool) -> Call:
        weights, device, lanes = given
        model = TorchLlama(weights, None, device, by)  # type: ignore[arg-type]
        model.record = model.record if recorded else None
        session, tokens = model.session(lanes, 64, lanes, Team(1)), np.arange(lanes)[:, None]

        def call() -> torch.Tensor:
            session.forward(tokens)
            return session._states[:lanes, : weights.config.width].clone()

        return call

    contenders = (
        Contender("torch", lambda given: [states(given, TORCH, False)], tolerance=0),
        Contender("squeeze", lambda given: [states(given, fused(), False)], tolerance=0),
        Contender("squeeze, recorded", lambda given: [states(given, fused(), True)], tolerance=0),
    )
    return Case("language model, a step of 64 lanes", data, lambda given: states(given, TORCH, False)(), contenders)


CASES: tuple[Case, ...] = (
    _case("language model, norm of 64 rows", _norm),
    _case("language model, gates of 64 rows", _gate),
    _case("language model, attention, 64 lanes", _attention(1)),
    _case("language model, attention, 64 lanes of 32 positions", _attention(32)),
    _case("language model, frequencies of 64 rows", _counts),
    _step(),
)
