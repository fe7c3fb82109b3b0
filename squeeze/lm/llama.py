"""A Llama-family network in exact arithmetic: many positions at once, or one position of many lanes.

The main path is `forward` of forward.py. Rows of tokens, each with its lane and position, go through the network
together. A prefill is a run of positions of a lane, a step is one position of every lane. The results of a row depend
on its lane's tokens alone, never on other rows, on threads, or on how the tokens were cut.

A lane always sees its first 16 positions, and after them a sliding window of `window` positions in blocks of 16
(attention sinks: Xiao et al. 2023, arXiv:2309.17453). Queries beyond the window see the first 16 keys at a fixed
distance, so a lane may have any length.
"""

from typing import Any

import numpy as np

from squeeze.lm import forward
from squeeze.lm.arrays import BLOCK, DOUBLINGS, Cache, LlamaArrays, Work
from squeeze.lm.config import Config
from squeeze.lm.language_model import ExactModel
from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights
from squeeze.numerics import int8
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.int8_vectors import STEP
from squeeze.numerics.machine_code import PANEL
from squeeze.numerics.rotation import block_of, factor
from squeeze.numerics.team import Team

_QUERIES = 6  # rows of one product in attention
_ROWS_APART = 16  # rows of a thread from which it takes them alone


def _cosine_and_sine(angle: float) -> tuple[float, float]:
    """Return cosine and sine of an angle within ±MAX_ANGLE by the power series in integers: the same float64
    everywhere."""
    one = 1 << 160
    numerator, denominator = angle.as_integer_ratio()
    x = (numerator << 160) // denominator
    sums, term, k = [0, 0], one, 0
    while term:
        sums[k & 1] += -term if k & 2 else term
        k += 1
        term = term * x // (k * one) if term * x >= 0 else -(-term * x // (k * one))
    return sums[0] / one, sums[1] / one


def cos_sin_table(frequencies: tuple[float, ...]) -> np.ndarray:
    """Return cosine and sine of 2^i times each angle, float64 [2, DOUBLINGS, n], by repeated doubling."""
    table = np.empty((2, DOUBLINGS, len(frequencies)))
    table[:, 0] = np.array([_cosine_and_sine(angle) for angle in frequencies]).T
    for i in range(1, DOUBLINGS):
        c, s = table[:, i - 1]
        table[0, i] = c * c - s * s
        table[1, i] = c * s + c * s
    return table


def _arrays(weights: Weights) -> LlamaArrays:
    config, layers = weights.config, weights.layers

    def stacked(values: list[Any]) -> np.ndarray:
        if values[0] is None:
            return np.zeros((0, 0), np.float32)
        return np.stack(values)

    return LlamaArrays(
        sizes=np.array(
            [
                config.layers,
                config.width,
                config.heads,
                config.kv_heads,
                config.head_size,
                config.feed_forward,
                block_of(config.feed_forward),
            ],
            np.int64,
        ),
        epsilon=np.array([config.epsilon], np.float32),
        factor=np.array([config.attention_factor]),
        cos_sin=cos_sin_table(config.frequencies),
        embedding=np.array(weights.embedding),
        embedding_scales=np.array(weights.embedding_scales),
        qkv=stacked([layer.qkv.values for layer in layers]),
        qkv_scales=stacked([layer.qkv.scales for layer in layers]),
        qkv_bias=stacked([layer.qkv_bias for layer in layers]),
        query_norm=stacked([layer.query_norm for layer in layers]),
        key_norm=stacked([layer.key_norm for layer in layers]),
        output=stacked([layer.output.values for layer in layers]),
        output_scales=stacked([layer.output.scales for layer in layers]),
        output_bias=stacked([layer.output_bias for layer in layers]),
        gate_up=stacked([layer.gate_up.values for layer in layers]),
        gate_up_scales=stacked([layer.gate_up.scales for layer in layers]),
        down=stacked([layer.down.values for layer in layers]),
        down_scales=stacked([layer.down.scales for layer in layers]),
        head=np.array(weights.head.values),
        head_scales=np.array(weights.head.scales),
        rotation=np.array([factor(block_of(config.feed_forward))]),
    )


class Llama(ExactModel):
    """A network that the compiled engine runs."""

    def __init__(self, weights: Weights, tokenizer: Tokenizer):
        super().__init__(weights, tokenizer)
        self.network = _arrays(weights)

    @property
    def size(self) -> int:
        return sum(array.nbytes for array in self.network)

    def session(self, lanes: int, window: int, rows: int, team: Team) -> "LlamaLanes":
        return LlamaLanes(self, lanes, window, rows, team)


def _new_cache(config: Config, lanes: int, window: int, ring: int) -> Cache:
    """Allocate a cache for lanes with `window` blocks in their windows, and `ring` blocks besides the first."""
    blocks = 1 + ring
    slots, dims = BLOCK * blocks, -(-config.head_size // PANEL)
    inputs = -(-config.head_size // STEP)
    return Cache(
        window=np.array([window, ring], np.int64),
        keys=np.zeros((config.layers, lanes, config.kv_heads, blocks, inputs, PANEL, STEP), np.uint8),
        key_scales=np.zeros((config.layers, lanes, config.kv_heads, slots), np.float32),
        values=np.zeros((config.layers, lanes, config.kv_heads, dims, slots // STEP, PANEL, STEP), np.uint8),
        value_scales=np.zeros((config.layers, lanes, config.kv_heads, slots), np.float32),
    )


def _new_work(config: Config, rows: int, slots: int, threads: int, products: int) -> Work:
    """Allocate buffers for `rows` tokens, and for each thread's products of `products` queries with `slots` keys."""

    def activations(size: int) -> np.ndarray:
        return np.zeros((rows, _padded(size)), int8.ACTIVATION)

    heads, dims, multiplied = config.heads * config.head_size, -(-config.head_size // PANEL), products * int8.PARTS
    return Work(
        x=np.zeros((rows, config.width), np.float32),
        normed=np.zeros((rows, max(config.width, 2 * config.head_size)), np.float32),
        cosine=np.zeros((rows, 2, config.head_size // 2), np.float32),
        sine=np.zeros((rows, 2, config.head_size // 2), np.float32),
        narrow=activations(config.width),
        attended=np.zeros((rows, heads), np.float32),
        attended_quantised=activations(heads),
        wide=activations(config.feed_forward),
        scales=np.zeros(rows, np.float32),
        row_sums=np.zeros(rows, np.int32),
        qkv=np.zeros((rows, heads + 2 * config.kv_heads * config.head_size), np.float32),
        gate_up=np.zeros((rows, 2 * config.feed_forward), np.float32),
        queries=np.zeros((rows, 2, config.heads, config.head_size), np.int16),
        query_scales=np.zeros((rows, 2, config.heads), np.float32),
        thread_sums=np.zeros((threads, int8.SCRATCH), np.int32),
        thread_scratch=np.zeros((threads, config.head_size), np.int16),
        thread_queries=np.zeros((threads, 2, multiplied * _padded(config.head_size)), int8.ACTIVATION),
        thread_shifts=np.zeros((threads, 2, products), np.int32),
        thread_scores=np.zeros((threads, multiplied * slots), np.int32),
        thread_weights=np.zeros((threads, multiplied * slots), int8.ACTIVATION),
        thread_narrow=np.zeros((threads, slots), np.int16),
        thread_added=np.zeros((threads, products), np.int64),
        thread_column=np.zeros((threads, 3, slots), np.float32),
        thread_products=np.zeros((threads, multiplied * dims * PANEL), np.int32),
        thread_exact=np.zeros((threads, products * dims * PANEL), np.int64),
        thread_factors=np.zeros((threads, products), np.float32),
    )


def _padded(size: int) -> int:
    return -(-size // STEP) * STEP


class LlamaLanes:
    """The state of some lanes, each at its own position; at most `rows` tokens run at once.

    `window` is in positions, a multiple of 16. After `forward`, `cdf` returns frequencies after some of its rows.
    """

    def __init__(self, llama: Llama, lanes: int, window: int, rows: int, team: Team):
        config = llama.weights.config
        self._llama, self._team, self._rows = llama, team, rows
        self.positions = np.zeros(lanes, np.int64)
        group = config.heads // config.kv_heads
        self._queries = max(1, _QUERIES // group)
        ring = window // BLOCK + (-(-rows // lanes) + BLOCK - 2) // BLOCK
        slots = BLOCK * (1 + ring)
        self._cache = _new_cache(config, lanes, window // BLOCK, ring)
        self._work = _new_work(config, rows, slots, team.size, max(group, _QUERIES))
        self.leaves = leaves = llama.weights.leaves.size
        self._logits = np.zeros((0, leaves), np.float32)

    def forward(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Feed tokens int64 [lanes, n] to the first lanes: n positions of each, or the first `counts` int64 [lanes] of
        them."""
        lanes, n = tokens.shape
        counts = np.full(lanes, n) if counts is None else counts
        fed = np.arange(n) < counts[:, None]
        flat, lane = tokens[fed], np.repeat(np.arange(lanes), counts)
        positions = (self.positions[:lanes, None] + np.arange(n))[fed]
        starts, network = np.cumsum(counts) - counts, self._llama.network
        asked = np.arange(0, n, self._queries)
        some = asked < counts[:, None]
        tasks = np.stack(
            [(starts[:, None] + asked)[some], np.minimum(self._queries, counts[:, None] - asked)[some]], axis=1
        )

        apart = self._are_apart(flat.size)

        def part(rank: int, size: int, barrier: np.ndarray) -> None:
            forward.forward(network, self._cache, self._work, flat, lane, positions, tasks, apart, barrier, rank, size)

        self._team.run(part, apart)
        self.positions[:lanes] += counts

    def take_back(self, counts: np.ndarray) -> None:
        """Forget the last int64 [lanes] positions of each of the first lanes, all of them fed in one call."""
        self.positions[: counts.size] -= counts

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: Cdf, places: np.ndarray) -> None:
        """Write frequencies of the leaves after some rows of the last `forward`.

        Args:
            rows: int64 [R].
            bias: float32 [leaves], added to the logits.
            out: the output.
            places: int64 [R], rows of `out`.
        """
        if self._logits.shape[0] < rows.size:
            self._logits = np.zeros((rows.size, self._logits.shape[1]), np.float32)
        states, sums, scales = (part[rows] for part in (self._work.narrow, self._work.row_sums, self._work.scales))
        logits, work = self._logits[: rows.size], self._work
        network, apart = self._llama.network, self._are_apart(rows.size)

        def part(rank: int, size: int, barrier: np.ndarray) -> None:
            forward.cumulate(network, work, states, sums, scales, bias, logits, out, places, apart, barrier, rank, size)

        self._team.run(part, apart)

    def _are_apart(self, rows: int) -> bool:
        """Return whether each thread takes its own rows: it then reads all weights, which pays from 16 rows per thread
        on."""
        return rows >= _ROWS_APART * self._team.size
