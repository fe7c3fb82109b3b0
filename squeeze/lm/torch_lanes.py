"""The state of lanes of torch_engine.py: keys and values, positions, and the number of lanes at once that fit in
memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from squeeze.lm.arrays import DOUBLINGS
from squeeze.lm.config import Config
from squeeze.lm.fused.attention import BLOCK, LayerCache
from squeeze.lm.fused.attention.reference import SCORES
from squeeze.lm.fused.operations import TORCH, Operations
from squeeze.lm.gpu_calls import InFlight, Record, Recorded, free_memory, memory_as_device_error
from squeeze.lm.weights import Weights
from squeeze.numerics.frequencies import GROUP, Cdf


class Cache(NamedTuple):
    """Keys (0) and values (1) of some lanes, quantised when they are written, and never changed."""

    integers: Tensor  # int8 [layers, 2, lanes, kv heads, slots, head size]
    scales: Tensor  # float32 [layers, 2, lanes, kv heads, slots]

    @classmethod
    def zeros(cls, config: Config, lanes: int, ring: int, device: str) -> "Cache":
        """Allocate an empty cache.

        Args:
            config: of the network.
            lanes: number of lanes.
            ring: blocks of the ring, besides the first block, which stays.
            device: its name in torch.
        """
        shape = (config.layers, 2, lanes, config.kv_heads, BLOCK * (1 + ring))
        integers = torch.zeros((*shape, config.head_size), dtype=torch.int8, device=device)
        return cls(integers, torch.zeros(shape, dtype=torch.float32, device=device))

    def layer(self, number: int) -> LayerCache:
        """Return a view of one layer."""
        return LayerCache(self.integers[number], self.scales[number])

    def lanes(self, begin: int, end: int) -> "Cache":
        """Return a view of some lanes."""
        return Cache(*(tensor[:, :, begin:end] for tensor in self))

    def moved(self, device: str) -> "Cache":
        """Return a copy on another device."""
        return Cache(*(tensor.to(device, copy=True) for tensor in self))

    def take(self, other: "Cache") -> None:
        """Copy the contents of `other`, on whichever device it is."""
        for mine, theirs in zip(self, other, strict=True):
            mine.copy_(theirs)


_COUNTED = 256  # rows of frequencies at once
_STEPS = 8  # most positions of a lane in recorded calls: a token, and guesses after it


class Network(Protocol):
    """The part of TorchLlama that lanes use."""

    device: str
    weights: Weights
    leaves: np.ndarray
    operations: Operations
    record: Record | None

    @property
    def size_of_position(self) -> int: ...

    def running(self) -> AbstractContextManager[None]: ...

    def room(self, rows: int) -> Tensor: ...

    def states(
        self, tokens: Tensor, positions: Tensor, cache: Cache, window: int, most: int
    ) -> tuple[Tensor, Tensor]: ...

    def frequencies(self, states: Tensor, scales: Tensor, bias: Tensor) -> Tensor: ...


class TorchLanes:
    """Some lanes, each at its own position: FreeLaneStates of language_model.py.

    If the device has too little memory for the keys and values of all lanes, they stay in main memory. Those of some
    lanes at a time are then copied over.
    """

    def __init__(self, model: Network, lanes: int, window: int, rows: int):
        config, device, deepest = model.weights.config, model.device, -(-rows // lanes)
        self._model, self._window = model, window // BLOCK
        self.positions, self.leaves = np.zeros(lanes, np.int64), model.leaves.size
        ring = self._window + (deepest + BLOCK - 2) // BLOCK
        with memory_as_device_error(device):
            self._states = model.room(lanes * deepest)
            self._scales = torch.zeros(lanes * deepest, dtype=torch.float32, device=device)
        self._fed = np.zeros(0, np.int64)  # their rows of the last call
        slots = BLOCK * (1 + ring)
        kept, free = slots * model.size_of_position, free_memory(device)
        work = _work_of_lane(config, deepest, slots if model.operations is TORCH else 0)
        most, here = lanes, None
        if free is None or lanes * kept + work <= free:
            with suppress(torch.OutOfMemoryError):
                here = Cache.zeros(config, lanes, ring, device)
        self._is_here = here is not None
        self._cache = Cache.zeros(config, lanes, ring, "cpu") if here is None else here
        if free is not None:
            most = (free - lanes * kept) // work if self._is_here else free // (kept + work)
        self._in_flight, self._counted = InFlight(min(most, lanes), device), InFlight(_COUNTED, device)
        self._recorded: dict[int, Recorded] | None = {} if model.record and self._is_here and most >= lanes else None

    def forward(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Feed tokens int64 [lanes, n] to the first lanes: n positions of each, or the first `counts` int64 [lanes] of
        them.

        All lanes compute n positions, so that they run together: surplus keys and values are overwritten before they
        are read.
        """
        lanes, n = tokens.shape
        counts = np.full(lanes, n) if counts is None else counts
        fed = np.arange(n) < counts[:, None]
        self._fed = np.flatnonzero(fed)
        tokens = np.where(fed, tokens, 0)
        with self._model.running():
            if not self._replayed(tokens):
                self._run(tokens, self.positions[:lanes, None] + np.arange(n))
        self.positions[:lanes] += counts

    def _run(self, tokens: np.ndarray, positions: np.ndarray) -> None:
        """Run int64 [lanes, n], as many lanes at once as fit."""
        n, most, device = tokens.shape[1], int(positions.max(initial=0)), self._model.device

        def work(begin: int, end: int) -> None:
            fed, at = (torch.tensor(part[begin:end], device=device) for part in (tokens, positions))
            with self._cache_of(begin, end) as cache:
                found = self._model.states(fed, at, cache, self._window, most)
            self._keep(found, begin * n)

        self._in_flight.run(len(tokens), work)

    def _keep(self, found: tuple[Tensor, ...], begin: int) -> None:
        """Store states and scales of rows from `begin` on."""
        states, scales = found
        self._states[begin : begin + len(states), : states.shape[1]] = states
        self._scales[begin : begin + len(states)] = scales

    def _replayed(self, tokens: np.ndarray) -> bool:
        """Run a recorded call of all lanes, and return whether there is one; surplus lanes get tokens that do not
        count."""
        lanes, n = tokens.shape
        if self._recorded is None or not 0 < n <= _STEPS:
            return False
        given = np.zeros((self.positions.size, n), np.int64)
        given[:lanes] = tokens
        positions = self.positions[:, None] + np.arange(n)
        try:
            if n not in self._recorded:
                self._recorded[n] = self._record(given, positions)
        except torch.OutOfMemoryError:
            self._recorded = None
            return False
        self._keep(self._recorded[n](given, positions), 0)
        return True

    def _record(self, tokens: np.ndarray, positions: np.ndarray) -> Recorded:
        model, most = self._model, (1 << DOUBLINGS) - 1
        assert model.record

        def work(tokens: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
            return model.states(tokens, positions, self._cache, self._window, most)

        return Recorded(model.record, work, tokens, positions, device=model.device)

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
        """Forget the last int64 [lanes] positions of each of the first lanes, all of them fed in one call."""
        self.positions[: counts.size] -= counts

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: Cdf | Tensor, places: np.ndarray) -> None:
        """Write frequencies of the leaves after some rows of the last `forward`.

        Args:
            rows: int64 [R].
            bias: float32 [leaves], added to the logits.
            out: a Cdf, or cumulative frequencies int64 [*, leaves + 1] on this device.
            places: int64 [R], rows of `out`.
        """
        width = self._model.weights.config.width

        def work(begin: int, end: int) -> None:
            picked, added = (
                torch.tensor(values, device=self._model.device) for values in (self._fed[rows[begin:end]], bias)
            )
            states, scales = self._states[picked, :width], self._scales[picked]
            found = self._model.frequencies(states, scales, added)
            if isinstance(out, Tensor):
                out[torch.tensor(places[begin:end], device=out.device), 1:] = found  # column 0 stays 0
            else:
                _put(found, out, places[begin:end])

        with self._model.running():
            self._counted.run(rows.size, work)


def _work_of_lane(config: Config, n: int, slots: int) -> int:
    """Estimate the bytes that a lane of n positions takes in a layer.

    Args:
        config: of the network.
        n: positions.
        slots: keys that all heads are compared with at once; 0 for kernels, which keep no scores.
    """
    scores = 10 * min(n * config.heads * slots, max(SCORES, config.heads * slots))
    seen = 2 * config.kv_heads * slots * config.head_size
    states = 8 * n * (config.width + 2 * config.feed_forward + 3 * config.heads * config.head_size)
    return 4 * (scores + seen + states)


def _put(cumulative: Tensor, cdf: Cdf, places: np.ndarray) -> None:
    """Write sums with each leaf, int64 [n, leaves] on a device, to the rows `places` of `cdf`.

    Differences are taken on the device, which halves the bytes to copy. A frequency less 1 must be a float32.
    """
    assert cdf.parts is not None
    leaves, groups = cumulative.shape[1], cdf.sums.shape[1] - 1
    ends = torch.arange(1, groups + 1, device=cumulative.device).mul_(GROUP).clamp_(max=leaves) - 1
    less = cumulative.diff(dim=1, prepend=torch.zeros_like(cumulative[:, :1])).sub_(1)
    cdf.sums[places, 0] = 0
    cdf.sums[places, 1:] = cumulative[:, ends].cpu().numpy().view(np.uint64)
    cdf.parts[places] = less.to(torch.float32).cpu().numpy()
