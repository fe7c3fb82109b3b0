"""Measure a stream of weights: a small network trained by Adam, whose weights in bf16 follow at a receiver.

Each step is a real one of the optimiser, with master weights in float32. The bytes of its message and the time to make
and apply it are compared with the bf16 weights and the time to copy them. In the last row, 2 % of the values of a model
change at random places by one unit in the last place.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch

from bench.measure import Measure, Row
from bench.shared.training import Training, Weights
from bench.tables import Column, Listing
from squeeze.packing.deltas import Receiver, Stream

_RATES = (1e-6, 1e-5, 1e-4)
_SPARSE = 0.02
_STEPS, _WARMUP = 8, 30  # steps that are measured, and those of training before them


def rows(_: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each learning rate, and one for values that change at random."""
    torch.manual_seed(0)
    for rate in _RATES:
        yield {"change": f"Adam, {rate:g}"} | _measured(*_trained(rate))
    yield {"change": "2 % by one ulp"} | _measured(*_random())


def _trained(rate: float) -> tuple[Weights, Callable[[], None]]:
    """Return weights in bf16 and a function that takes a step of training, after some at a larger rate."""
    run = Training(_WARMUP, seed=0)
    run.continue_at(rate, seed=1)
    run.step()
    return run.weights, run.step


def _random() -> tuple[Weights, Callable[[], None]]:
    """Return weights in bf16 and a function that changes some of their values."""
    weights = {f"layer.{number}": torch.randn(1024, 4096).mul(0.02).bfloat16() for number in range(24)}

    def step() -> None:
        for tensor in weights.values():
            signs = torch.randint(0, 2, tensor.shape, dtype=torch.int16) * 2 - 1
            tensor.view(torch.int16).add_(signs * (torch.rand(tensor.shape) < _SPARSE))

    return weights, step


def _measured(weights: Weights, step: Callable[[], None]) -> Row:
    """Return medians over some steps; the receiver's weights are compared after each."""
    copies = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    stream = Stream(weights, threads=1)
    receiver = Receiver(copies, threads=1)
    receiver.apply(stream.snapshot())
    target = {name: torch.empty_like(tensor) for name, tensor in weights.items()}
    found: list[tuple[float, ...]] = []
    for _ in range(_STEPS + 1):
        before = {name: tensor.clone() for name, tensor in weights.items()}
        step()
        changed = sum(int((before[name] != tensor).sum()) for name, tensor in weights.items())
        times = [time.perf_counter()]
        for name, tensor in weights.items():
            target[name].copy_(tensor)
        times.append(time.perf_counter())
        message = stream.step(weights)
        times.append(time.perf_counter())
        receiver.apply(message)
        times.append(time.perf_counter())
        if not all(torch.equal(copies[name].view(torch.int16), t.view(torch.int16)) for name, t in weights.items()):
            raise SystemExit("Error: the receiver has other weights")
        found.append((changed, len(message), *(end - start for start, end in pairwise(times))))
    changed, size, copied, encoded, applied = (statistics.median(column) for column in zip(*found[1:], strict=True))
    values = sum(tensor.numel() for tensor in weights.values())
    row: Row = {"values": values, "changed": changed / values, "message": int(size)}
    return row | {"of bf16": size / stream.size, "of memcpy": (encoded + applied) / copied}


MEASURE = Measure(
    rows,
    key=("change",),
    time=3,
    tables={
        "stream": Listing(
            Column("change of a step", "change"),
            Column("values that change", "changed", ".2%"),
            Column("bytes of a message", "message", ","),
            Column("of bf16", "of bf16", ".2%"),
            Column("encode + apply, of a copy's time", "of memcpy", ".1f"),
        )
    },
)
