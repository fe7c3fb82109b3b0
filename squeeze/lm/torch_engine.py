"""The network of forward.py on torch: the same integers, to the bit, on any device.

The main path is `TorchLlama.states`. numerics/tensors.py multiplies integers, squeeze/lm/fused does every other
operation: in plain torch, or in GPU kernels that give its bits. All lanes and positions of a call run together;
torch_lanes.py has their state. docs/exactness.md has the arithmetic, of which this is a second implementation.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from squeeze.lm.fused.attention import Norms, Shape
from squeeze.lm.fused.operations import Operations, Sizes, choose_operations
from squeeze.lm.fused.reference import Product
from squeeze.lm.gpu_calls import Record, memory_as_device_error, recorder_of
from squeeze.lm.language_model import ExactModel
from squeeze.lm.llama import cos_sin_table
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.torch_lanes import Cache, TorchLanes
from squeeze.lm.weights import Layer, Matrix, Weights
from squeeze.numerics import int8
from squeeze.numerics.rotation import block_of, factor
from squeeze.numerics.team import Team
from squeeze.numerics.tensors import Products, check, products_of


@dataclass(frozen=True)
class _Matrix:
    """Weights prepared for `products`, with a scale for each output, and a bias or None."""

    values: Tensor
    scales: Tensor
    bias: Tensor | None
    products: Products

    def __call__(self, x: Tensor, scales: Tensor) -> Product:
        """Multiply padded integers with scales [R]."""
        return Product(self.products.sums(x, self.values), scales, self.scales, self.bias)


@dataclass(frozen=True)
class _Layer:
    qkv: _Matrix
    norms: Norms
    output: _Matrix
    gate_up: _Matrix
    down: _Matrix


class TorchLlama(ExactModel):
    """A network on a device of torch.

    `operations` are the operations between products; None chooses kernels if the device gives plain torch's bits with
    them, else plain torch, and `fallback` is the reason. Raises DeviceError if the device has too little memory for the
    weights, or does not compute exactly.
    """

    def __init__(self, weights: Weights, tokenizer: Tokenizer, device: str, operations: Operations | None = None):
        super().__init__(weights, tokenizer)
        self.device, config = device, weights.config
        self._block = block_of(config.feed_forward)
        self._rotation = float(factor(self._block))
        with memory_as_device_error(device, f"the language model takes {self.size >> 20:,} MiB; use `device='cpu'`"):
            check(device)
            self._products = products_of(device)
            self._table = torch.tensor(cos_sin_table(config.frequencies), device=device)
            self._embedding = self._tensor(weights.embedding)
            self._embedding_scales = self._tensor(weights.embedding_scales)
            self._layers = [self._layer(layer) for layer in weights.layers]
            self._head = self._matrix(weights.head)
            self.operations, self.fallback = (
                (operations, "") if operations else choose_operations(device, self._products, sizes_of(weights))
            )
        self.record: Record | None = recorder_of(device)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.tensor(np.asarray(values), device=self.device)

    def _optional(self, values: np.ndarray | None) -> Tensor | None:
        return None if values is None else self._tensor(values)

    def _matrix(self, matrix: Matrix, bias: np.ndarray | None = None) -> _Matrix:
        values = int8.unpack(np.asarray(matrix.values), matrix.outputs, matrix.inputs)
        prepared = self._products.prepared(values, self.device)
        return _Matrix(prepared, self._tensor(matrix.scales), self._optional(bias), self._products)

    def _layer(self, layer: Layer) -> _Layer:
        return _Layer(
            qkv=self._matrix(layer.qkv, layer.qkv_bias),
            norms=Norms(self._optional(layer.query_norm), self._optional(layer.key_norm), self.weights.config.epsilon),
            output=self._matrix(layer.output, layer.output_bias),
            gate_up=self._matrix(layer.gate_up),
            down=self._matrix(layer.down),
        )

    @property
    def size(self) -> int:
        """Bytes of int8 weights with their scales."""
        matrices = [m for layer in self.weights.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        arrays = [part for m in (*matrices, self.weights.head) for part in (m.values, m.scales)]
        return sum(array.nbytes for array in (*arrays, self.weights.embedding, self.weights.embedding_scales))

    def session(self, lanes: int, window: int, rows: int, team: Team) -> TorchLanes:
        """Return new lanes. The team is not used, since torch has its own threads."""
        return TorchLanes(self, lanes, window, rows)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Disable a caller's autocast, and make this device current."""
        device = torch.device(self.device)
        with torch.autocast(device.type, enabled=False):
            if device.type != "cuda":
                yield
                return
            with torch.cuda.device(device):
                yield

    def states(self, tokens: Tensor, positions: Tensor, cache: Cache, window: int, most: int) -> tuple[Tensor, Tensor]:
        """Run tokens through all layers.

        Args:
            tokens: int64 [lanes, n].
            positions: int64 [lanes, n].
            cache: keys and values of the lanes.
            window: blocks.
            most: at least the largest position.

        Returns:
            the head's input, integers [lanes * n, width], and its scales [lanes * n].
        """
        config, do = self.weights.config, self.operations
        rows, shape = tokens.numel(), _shape(self.weights, window)
        ids = tokens.flatten()
        x = self._embedding[ids].to(torch.float32) * self._embedding_scales[ids][:, None]
        rotary = do.rotary(self._table, config.attention_factor, positions, shape, most)
        normed, attended, gated = (
            self._products.room(rows, width, self.device)
            for width in (config.width, config.heads * config.head_size, config.feed_forward)
        )
        product: Product | None = None
        for i, layer in enumerate(self._layers):
            kept = cache.layer(i)
            x, scales = do.normalise(x, product, config.epsilon, normed)
            queries = do.heads(layer.qkv(normed, scales), shape, layer.norms, rotary, positions, kept)
            scales = do.quantise(do.attend(queries, shape, positions, kept), attended)
            x, scales = do.normalise(x, layer.output(attended, scales), config.epsilon, normed)
            scales = do.gate(layer.gate_up(normed, scales), self._block, self._rotation, gated)
            product = layer.down(gated, scales)
        _, scales = do.normalise(x, product, config.epsilon, normed)
        return normed[:rows, : config.width], scales

    def room(self, rows: int) -> Tensor:
        """Allocate the head's input for some rows."""
        return self._products.room(rows, self.weights.config.width, self.device)

    def frequencies(self, states: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        """Return cumulative frequencies int64 [R, leaves].

        Args:
            states: rows of `states`.
            scales: their scales.
            bias: float32 [leaves], added to logits.
        """
        room = self.room(len(states))
        room[: len(states), : states.shape[1]] = states
        return self.operations.cumulate(self._head(room, scales)._replace(bias=bias))


def _shape(weights: Weights, window: int) -> Shape:
    config = weights.config
    return Shape(config.heads, config.kv_heads, config.head_size, window)


def sizes_of(weights: Weights) -> Sizes:
    """Return the sizes for which kernels are chosen."""
    config, layer = weights.config, weights.layers[0]
    return Sizes(
        *(config.width, config.feed_forward, weights.leaves.size, _shape(weights, 2)),
        biased=layer.qkv_bias is not None or layer.output_bias is not None,
        normed=layer.query_norm is not None or layer.key_norm is not None,
        epsilon=config.epsilon,
        factor=config.attention_factor,
    )
