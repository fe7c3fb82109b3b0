"""Lanes that are mixed and coded where their model runs: on a GPU, so that no frequencies leave it.

A GPU is taken where it gives the processor's bytes for lanes made up for that; elsewhere the processor does it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np

from squeeze.codecs.tokenwise import batches
from squeeze.codecs.tokenwise.counting import HOST, Counting
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.codecs.tokenwise.log import Cut
from squeeze.codecs.tokenwise.mixing import Batches
from squeeze.codecs.tokenwise.prefill import Paths
from squeeze.codecs.tokenwise.presets import BYTEWISE, TokenPreset
from squeeze.errors import DeviceError
from squeeze.lm.language_model import LanguageModel
from squeeze.numerics import trie
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.team import Team

__all__ = ["Device", "OnGpu", "by_gpu", "coder_on", "differing"]

_WORKERS = 256  # that code: each has a copy of the block
_COPIES = 1 << 32  # bytes of them all
_ROWS = 1024  # of frequencies at a time: 49,152 leaves make 400 kB a row
_NO_COUNTS = np.zeros((1, 1), np.uint64)


class Device(Protocol):
    """What is asked of `Gpu` of cuda.py."""

    name: str
    cut: Cut

    def put(self, values: Any) -> Any:
        """Raises DeviceError where there is no room for it, as the others do where the GPU fails."""

    def get(self, values: Any, out: np.ndarray) -> None: ...

    def room(self, *shape: int, kind: str = "int64") -> Any:
        """Zeros there."""

    def keep(self, name: str, values: Iterable[tuple[Any, ...]], while_there_is: Any) -> None: ...

    def run(self, name: str, arguments: tuple[Any, ...], threads: int | None = None) -> None: ...


class _Counting(Counting):
    """Of frequencies on a GPU, uint64 [rows, leaves + 1], cumulative."""

    rows = _ROWS

    def __init__(self, gpu: Device, t: trie.Trie):
        self._gpu, self._trie = gpu, gpu.put(t)

    def room(self, rows: int, leaves: int) -> Any:
        return self._gpu.room(rows, leaves + 1)

    def follow(
        self,
        t: trie.Trie,
        counts: Any,
        entries: np.ndarray,
        starts: np.ndarray,
        logits: np.ndarray,
        surprises: np.ndarray,
    ) -> None:
        sizes = np.where(entries < 0, 0, t.decisions[np.maximum(entries, 0)])
        begins = np.cumsum(np.concatenate([[0], sizes]))
        paths = np.zeros(begins[-1], np.int32)
        found = self._gpu.put((paths, surprises))
        self._gpu.run("follow", (self._trie, *self._gpu.put((counts, entries, begins[:-1])), *found), entries.size)
        for there, here in zip(found, (paths, surprises), strict=True):
            self._gpu.get(there, here)
        logits[np.repeat(starts - begins[:-1], sizes) + np.arange(paths.size)] = paths

    def add(self, counts: Any, rows: np.ndarray, entries: np.ndarray, gradient: np.ndarray) -> None:
        total = self._gpu.put(gradient)
        self._gpu.run("add", (*self._gpu.put((counts, rows[: entries.size], entries)), total), gradient.size)
        self._gpu.get(total, gradient)


class OnGpu(Batches):
    """Some lanes at a time, by the threads of a GPU."""

    def __init__(
        self,
        model: LanguageModel,
        layout: LaneLayout,
        preset: TokenPreset,
        gpu: Device,
        payload: bytes | None = None,
    ):
        workers = max(1, min(-(-layout.batch // layout.share), _WORKERS, _COPIES // sum(layout.lengths)))
        super().__init__(model, layout, preset, Team(1), payload, workers, gpu.cut)
        self.counting, self._gpu = _Counting(gpu, model.trie), gpu
        copies = gpu.room(*self.own.data.shape, kind="uint8")
        own = gpu.put(self.own._replace(data=copies))
        log = gpu.put(self.log._replace(cursor=self.own.cursor))
        m = gpu.put(self.model._replace(data=self.own.data[0], state=self.own.state))
        x = gpu.put(self.mix._replace(state=self.own.token_state))
        self._there = m, x, gpu.put(self.trie), log, own
        self._places, self._data = x.places, own.data
        self._ends = gpu.put(self.ends)
        self._codes_there = gpu.put(self._codes)
        self._noted = gpu.put(self._tickets)
        gpu.keep("code_batches", (*self._there, self._codes_there), self)

    def _code(
        self,
        entries: np.ndarray,
        active: np.ndarray,
        cdf: Any,
        rows: np.ndarray,
        paths: tuple[np.ndarray, np.ndarray, np.ndarray],
        decoding: bool,
        meter: tuple[Any, ...] = (),
    ) -> bool:
        assert not meter
        put, known = self._gpu.put, self._gpu.put(entries)
        steps = batches.Steps(
            known, put(cdf if decoding else _NO_COUNTS), put(rows), put(active), self._ends, *put(paths)
        )
        self._gpu.run("code_batches", (*self._there, steps, self._codes_there, decoding, self._noted))
        for there, here in ((self._places, self.mix.places), (self._noted, self._tickets), (known, entries)):
            self._gpu.get(there, here)
        return batches.is_sound(self._tickets)

    def finish(self) -> bytes:
        self._gpu.get(self._codes_there.coders, self._codes.coders)
        self._gpu.get(self._codes_there.coded, self._codes.coded)
        return super().finish()

    def restored(self) -> np.ndarray:
        self._gpu.get(self._data[0], self.data)
        return super().restored()


def by_gpu(model: LanguageModel, layout: LaneLayout, preset: TokenPreset, payload: bytes | None = None) -> OnGpu | None:
    """Lanes on the GPU that a model runs on, where it can code as the processor does and has room for them."""
    device = getattr(model, "device", "cpu")
    gpu = coder_on(device)[0] if device.startswith("cuda") else None
    if gpu is not None:
        with suppress(DeviceError):
            return OnGpu(model, layout, preset, gpu, payload)
    return None


@cache
def coder_on(device: str) -> tuple[Device | None, str]:
    """A GPU by torch's name, where it codes as the processor does, which is tried once; else None, and why."""
    if importlib.util.find_spec("numba_cuda") is None:
        return None, "numba-cuda is not installed"
    try:
        from squeeze.codecs.tokenwise.cuda import Gpu

        gpu: Device = Gpu(int(device.partition(":")[2] or 0))
        wrong = differing(gpu)
    except Exception as error:  # whatever a compiler or a driver raises: the processor serves as well
        return None, str(error).strip().partition("\n")[0] or type(error).__name__
    return (None, f"it gives other {wrong}") if wrong else (gpu, "")


_LANES, _STEPS, _BATCH = 12, 9, 8


def differing(gpu: Device) -> str | None:
    """What a GPU does otherwise than the processor, for a few lanes of numbers of all sizes; None where there is
    nothing."""
    random = np.random.default_rng(1)
    alphabet = [bytes([byte]) for byte in range(256)]
    leaves = sorted(
        {*alphabet, *(bytes(random.choice([32, 10, 97, 101, 200], n)) for n in range(2, 9) for _ in "12345")}
    )
    model = cast(LanguageModel, SimpleNamespace(trie=trie.build(leaves), leaves=np.arange(len(leaves))))
    table = random.integers(-256, len(leaves), (_LANES, _STEPS)) // random.choice([1, 40], (_LANES, _STEPS))
    sizes = np.where(table < 0, 1, np.diff(model.trie.offsets)[np.maximum(table, 0)])
    lengths = tuple(int(n) for n in sizes.sum(1))
    layout = LaneLayout(table.size, _LANES, 16, lengths, _BATCH, 2)
    preset = TokenPreset(BYTEWISE, _LANES, 16, _BATCH)
    counts = np.zeros((table.size, len(leaves) + 1), np.uint64)
    counts[:, 1:] = (np.exp(random.normal(0, 4, (table.size, len(leaves)))) * 2**20).astype(np.uint64).cumsum(1) + 1
    counts[:, 1:] += np.arange(len(leaves), dtype=np.uint64)

    here = _paths(model.trie, HOST, Cdf(counts, None), table)
    there = _paths(model.trie, _Counting(gpu, model.trie), counts, table)
    if not all(map(np.array_equal, here[0], there[0])):
        return "logits of the model"
    if not np.array_equal(here[1], there[1]):
        return "gradients of biases"
    coded = []
    for state in (Batches(model, layout, preset, Team(1)), OnGpu(model, layout, preset, gpu)):
        for part in (slice(0, 4), slice(4, _STEPS)):
            columns, starts, surprises = (
                np.ascontiguousarray(values[:, part]) for values in (table, here[0][1], here[0][2])
            )
            state.encode(columns, np.full(columns.shape[1], _LANES), Paths(here[0][0], starts, surprises))
        coded.append(state.finish())
    if coded[0] != coded[1]:
        return "coded bytes"
    state = OnGpu(model, layout, preset, gpu, coded[0])
    for step in range(_STEPS):
        entries = np.full((_LANES, 1), -1, np.int64)
        state.decode(entries, _LANES, 0, counts, np.arange(_LANES) * _STEPS + step, ())
        if not np.array_equal(entries[:, 0], table[:, step]):
            return "decoded tokens"
    return None


def _paths(
    t: trie.Trie, counting: Counting, counts: Any, table: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    entries = np.ascontiguousarray(table.ravel())
    sizes = np.where(entries < 0, 0, t.decisions[np.maximum(entries, 0)])
    starts = np.cumsum(np.concatenate([[0], sizes]))
    logits, surprises = np.zeros(starts[-1], np.int32), np.zeros(entries.size, np.int64)
    counting.follow(t, counts, entries, starts[:-1], logits, surprises)
    gradient = np.zeros(t.offsets.size - 1, np.int32)
    counting.add(counts, np.arange(entries.size), entries, gradient)
    return (logits, starts[:-1].reshape(table.shape), surprises.reshape(table.shape)), gradient
