"""Speeds of coding checkpoints beside zipnn, tensors in memory, taking turns; every round trip is compared."""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import numpy as np

from bench.entry import Row
from bench.shared.floats import Run, main_type, tensors_of, theirs
from squeeze.codecs.tensors import floats
from squeeze.system.in_order import in_order

WAYS = ("encode", "decode")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for path in options.paths:
        tensors, size = tensors_of(path)
        runs = {"squeeze": ours(tensors)}
        if zipnn := theirs(path, main_type(tensors)):
            runs["zipnn"] = zipnn
        yield {"checkpoint": path.stem, **speeds(runs, size, options.runs)}


def speeds(runs: dict[str, Run], size: int, count: int) -> Row:
    """MB/s both ways of each on one thread, what two threads bring, and ours as multiples of zipnn's."""
    usual = {threads: medians(runs, threads, count) for threads in (1, 2)}
    row: Row = {}
    for name in runs:
        for way, one, two in zip(WAYS, usual[1][name], usual[2][name], strict=True):
            row[f"{name} {way} MB/s"] = round(size / 1e6 / one, 1)
            row[f"{name} {way} on two threads"] = round(one / two, 3)
    if "zipnn" in runs:
        for threads, told in ((1, ""), (2, ", two threads")):
            pairs = zip(WAYS, usual[threads]["squeeze"], usual[threads]["zipnn"], strict=True)
            row |= {f"{way} of zipnn{told}": round(its / mine, 3) for way, mine, its in pairs}
    return row


def medians(runs: dict[str, Run], threads: int, count: int) -> dict[str, tuple[float, float]]:
    """Seconds of both ways; the first run of each warms up."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(count + 1):
        for name, run in runs.items():
            times[name].append(run(threads)[1])
    return {name: (median(a for a, _ in kept[1:]), median(b for _, b in kept[1:])) for name, kept in times.items()}


def encode(dtype: str, data: np.ndarray, threads: int) -> np.ndarray | None:
    return floats.encode(data, dtype, threads) if data.size else None


def decode(dtype: str, data: np.ndarray, payload: np.ndarray | None, threads: int) -> np.ndarray:
    return data if payload is None else floats.decode(payload, dtype, data.size, threads)


def ours(tensors: list) -> Run:
    def run(threads: int) -> tuple[int, tuple[float, float]]:
        start = time.perf_counter()
        payloads = list(in_order(((data.size, partial(encode, dtype, data)) for dtype, data in tensors), threads))
        middle = time.perf_counter()
        coded = zip(payloads, tensors, strict=True)
        back = list(in_order(((data.size, partial(decode, dtype, data, p)) for p, (dtype, data) in coded), threads))
        end = time.perf_counter()
        assert all(np.array_equal(one, data) for one, (_, data) in zip(back, tensors, strict=True))
        return 0, (middle - start, end - middle)

    return run
