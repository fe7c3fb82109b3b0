"""The network of forward.py on torch's tensors: the same integers, to the bit, on any device.

MAIN PATH: `TorchLlama.states`. How integers are multiplied is in numerics/int8_tensors.py, how floats are rounded in
numerics/tensors.py, attention in torch_attention.py. All lanes and positions of a call go through together.
docs/exactness.md has the arithmetic, of which this is a second reading: arithmetic 2 alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError
from squeeze.lm.arrays import BLOCK
from squeeze.lm.config import Config
from squeeze.lm.exact_model import ExactModel
from squeeze.lm.in_flight import InFlight, free_memory, needed
from squeeze.lm.llama import cos_sin_table
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.torch_attention import SCORES, Attention, Cache, Norms
from squeeze.lm.weights import ARITHMETIC, Layer, Matrix, Weights
from squeeze.numerics import int8
from squeeze.numerics.int8_tensors import Products, products_of
from squeeze.numerics.rotation import block_of, factor
from squeeze.numerics.team import Team
from squeeze.numerics.tensors import check, cumulate, gated, normalise, quantise, rotate_sums

_COUNTED = 256  # rows of frequencies at once


@dataclass(frozen=True)
class _Matrix:
    """As `products` wants it, with a scale for each output."""

    values: Tensor
    scales: Tensor
    products: Products

    def __call__(self, x: Tensor, scale: Tensor) -> Tensor:
        """float32 [R, outputs] of integers [R, K] and their scales [R]: the row's scale first, then the output's."""
        return self.products(x, self.values, self.scales.numel()) * scale[:, None] * self.scales


@dataclass(frozen=True)
class _Layer:
    qkv: _Matrix
    qkv_bias: Tensor | None
    norms: Norms
    output: _Matrix
    output_bias: Tensor | None
    gate_up: _Matrix
    down: _Matrix


class TorchLlama(ExactModel):
    """A network ready to run on a device of torch's.

    Raises DeviceError for a model of arithmetic 1, and where the device has too little memory for the weights, or does
    not compute exactly.
    """

    def __init__(self, weights: Weights, tokenizer: Tokenizer, device: str):
        super().__init__(weights, tokenizer)
        if weights.arithmetic != ARITHMETIC:
            raise DeviceError("files of numerics version 1 are read by the processor alone: use --device cpu")
        self.device, config = device, weights.config
        with needed(device, f"the language model takes {self.size >> 20:,} MiB; use --device cpu"):
            check(device)
            self._products = products_of(device)
            self._table = torch.tensor(cos_sin_table(config.frequencies), device=device)
            self._embedding = self._tensor(weights.embedding)
            self._embedding_scales = self._tensor(weights.embedding_scales)
            self._layers = [self._layer(layer) for layer in weights.layers]
            self._head = self._matrix(weights.head)
        self._block = block_of(config.feed_forward)
        self._rotation = float(factor(self._block))

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.tensor(np.asarray(values), device=self.device)

    def _matrix(self, matrix: Matrix) -> _Matrix:
        values = int8.unpack(np.asarray(matrix.values), matrix.outputs, matrix.inputs)
        return _Matrix(self._products.prepared(values, self.device), self._tensor(matrix.scales), self._products)

    def _layer(self, layer: Layer) -> _Layer:
        def optional(values: np.ndarray | None) -> Tensor | None:
            return None if values is None else self._tensor(values)

        return _Layer(
            qkv=self._matrix(layer.qkv),
            qkv_bias=optional(layer.qkv_bias),
            norms=Norms(optional(layer.query_norm), optional(layer.key_norm), self.weights.config.epsilon),
            output=self._matrix(layer.output),
            output_bias=optional(layer.output_bias),
            gate_up=self._matrix(layer.gate_up),
            down=self._matrix(layer.down),
        )

    @property
    def size(self) -> int:
        """Bytes of int8 weights with their scales."""
        matrices = [m for layer in self.weights.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        arrays = [part for m in (*matrices, self.weights.head) for part in (m.values, m.scales)]
        return sum(array.nbytes for array in (*arrays, self.weights.embedding, self.weights.embedding_scales))

    def session(self, lanes: int, window: int, rows: int, team: Team) -> "TorchLanes":
        """New lanes. The team has no work here: torch has threads of its own."""
        return TorchLanes(self, lanes, window, rows)

    def as_written(self) -> torch.autocast:
        """In which a caller's own autocast rounds nothing to 16 bits."""
        return torch.autocast(torch.device(self.device).type, enabled=False)

    def states(self, tokens: np.ndarray, positions: np.ndarray, cache: Cache, window: int) -> tuple[Tensor, Tensor]:
        """int64 [lanes, n] tokens at their positions through all layers: what the head multiplies, integers as float32
        [lanes * n, width], and its scales [lanes * n]. window: blocks."""
        epsilon = self.weights.config.epsilon
        ids = torch.tensor(tokens.ravel(), device=self.device)
        attend = Attention(self.weights.config, cache, window, self._table, positions)
        x = self._embedding[ids].to(torch.float32) * self._embedding_scales[ids][:, None]
        for i, layer in enumerate(self._layers):
            qkv = _plus(layer.qkv(*normalise(x, epsilon)), layer.qkv_bias)
            x = x + layer.output(*quantise(attend(i, qkv, layer.norms), int8.TOP))
            x = _plus(x, layer.output_bias)
            gate, up = layer.gate_up(*normalise(x, epsilon)).chunk(2, 1)
            integers, scale = quantise(rotate_sums(gated(gate, up), self._block), int8.TOP)
            x = x + layer.down(integers, scale * self._rotation)
        return normalise(x, epsilon)

    def frequencies(self, states: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        """int64 [R, leaves]: cumulative frequencies after rows of `states`, with float32 [leaves] added to logits."""
        return cumulate(self._head(states, scales) + bias)


def _plus(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias


class TorchLanes:
    """The state of some lanes, each at a position of its own: `FreeLaneStates` of language_model.py.

    Where the device has no memory for the keys and values of all lanes, they stay with the processor, and those of some
    lanes at a time are moved over.
    """

    def __init__(self, model: TorchLlama, lanes: int, window: int, rows: int):
        config, device, deepest = model.weights.config, model.device, -(-rows // lanes)
        self._model, self._window = model, window // BLOCK
        self.positions, self.leaves = np.zeros(lanes, np.int64), model.leaves.size
        ring = self._window + (deepest + BLOCK - 2) // BLOCK
        with needed(device):
            self._states = torch.zeros((lanes * deepest, config.width), dtype=torch.float32, device=device)
            self._scales = torch.zeros(lanes * deepest, dtype=torch.float32, device=device)
        self._fed = np.zeros(0, np.int64)  # rows of them that hold what was fed last
        slots = BLOCK * (1 + ring)
        kept, work, free = slots * model.size_of_position, _work_of_lane(config, deepest, slots), free_memory(device)
        most, here = lanes, None
        if free is None or lanes * kept + work <= free:
            with suppress(torch.OutOfMemoryError):
                here = Cache.zeros(config, lanes, ring, device)
        self._is_here = here is not None
        self._cache = Cache.zeros(config, lanes, ring, "cpu") if here is None else here
        if free is not None:
            most = (free - lanes * kept) // work if self._is_here else free // (kept + work)
        self._in_flight, self._counted = InFlight(min(most, lanes), device), InFlight(_COUNTED, device)

    def forward(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Feed tokens int64 [lanes, n] (the first lanes of the session): n positions of each, or the first `counts`
        int64 [lanes] of them, at most rows / lanes of the session.

        All lanes take n positions, so that they go through together: keys and values of those that are not fed lie
        where nothing looks before they are written again.
        """
        lanes, n = tokens.shape
        counts = np.full(lanes, n) if counts is None else counts
        fed = np.arange(n) < counts[:, None]
        tokens, positions = np.where(fed, tokens, 0), self.positions[:lanes, None] + np.arange(n)
        self._fed = np.flatnonzero(fed)

        def work(begin: int, end: int) -> None:
            with self._cache_of(begin, end) as cache:
                states, scales = self._model.states(tokens[begin:end], positions[begin:end], cache, self._window)
            self._states[begin * n : end * n], self._scales[begin * n : end * n] = states, scales

        with self._model.as_written():
            self._in_flight.run(lanes, work)
        self.positions[:lanes] += counts

    @contextmanager
    def _cache_of(self, begin: int, end: int) -> Iterator[Cache]:
        kept = self._cache.lanes(begin, end)
        if self._is_here:
            yield kept
            return
        moved = kept.moved(self._model.device)
        yield moved
        kept.take(moved)

    def take_back(self, counts: np.ndarray) -> None:
        """Forget the latest int64 [lanes] positions of each of the first lanes, all of them fed in one call."""
        self.positions[: counts.size] -= counts

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: np.ndarray, places: np.ndarray) -> None:
        """Cumulative frequencies of the given rows of the last `forward`, to the rows `places` of `out`, uint64
        [*, leaves + 1].

        bias: float32 [leaves], added to the logits.
        """

        def work(begin: int, end: int) -> None:
            picked, added = (
                torch.tensor(values, device=self._model.device) for values in (self._fed[rows[begin:end]], bias)
            )
            found = self._model.frequencies(self._states[picked], self._scales[picked], added).cpu().numpy()
            out[places[begin:end], 0] = 0
            out[places[begin:end], 1:] = found.view(np.uint64)

        with self._model.as_written():
            self._counted.run(rows.size, work)


def _work_of_lane(config: Config, n: int, slots: int) -> int:
    """About how many bytes a lane of n positions takes on its way through a layer."""
    scores = 10 * min(n * config.heads * slots, max(SCORES, config.heads * slots))
    seen = 2 * config.kv_heads * slots * config.head_size
    states = 8 * n * (config.width + 2 * config.feed_forward + 3 * config.heads * config.head_size)
    return 4 * (scores + seen + states)
