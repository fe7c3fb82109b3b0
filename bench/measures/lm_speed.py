"""Measure tokens per second of level 8, compared with llama.cpp on the same weights and threads.

All runs take turns and the medians count. Decoded text is compared.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bench.measure import Measure, Row, option
from bench.shared.llamacpp import opened
from bench.shared.texts import read
from bench.tables import Column, Listing
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes
from squeeze.lm import models

DECODED_LANES = (32, 16, 1)
BASE = "llama.cpp, one token at a time"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"Note: other work (load {load:.1f}) slows llama.cpp most: its threads spin", file=sys.stderr)
    medians = measure(runs(options), options.repeat)
    for name, value in medians.items():
        row = {"what": name, "tokens_per_second": round(value, 1), "ratio": round(value / medians[BASE], 3)}
        yield row | {"threads": options.threads}


def measure(tasks: dict[str, Callable[[], int]], repeat: int) -> dict[str, float]:
    """Return tokens per second of each run, after one warm-up that compiles."""
    tasks[next(reversed(tasks))]()
    speeds: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeat):
        for name, run in tasks.items():
            start = time.perf_counter()
            count = run()
            speeds[name].append(count / (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in speeds.items()}


def runs(options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Return the functions that are timed, by name. Each returns the number of tokens it processed."""
    model, threads = models.find(options.model).network, options.threads
    data = read(options.file, "enwik8.1m", options.bytes)
    entries = model.encode(data)
    found = llama_cpp_runs(options, model.leaves[np.maximum(entries, 0)].tolist())
    preset = levels.LEVELS[8].text.preset(len(data), model.context, None, None)

    def encode() -> int:
        assert lanes.encode(data, model, preset, threads)
        return entries.size

    def decoding(count: int) -> Callable[[], int]:
        part = data[: options.decoded // (16 if count == 1 else 1)]
        preset = levels.LEVELS[8].text.preset(len(part), model.context, count, None)
        coded = lanes.encode(part, model, preset, threads)
        assert coded
        layout, payload = coded

        def run() -> int:
            if lanes.decode(payload, layout, model, preset, threads).tobytes() != part:
                sys.exit("Error: what was decoded differs")
            return layout.entries

        return run

    found["encode -8"] = encode
    for count in DECODED_LANES:
        found[f"decode, {count} lane{'s' * (count > 1)}"] = decoding(count)
    return found


def llama_cpp_runs(options: argparse.Namespace, tokens: list[int]) -> dict[str, Callable[[], int]]:
    """Return the functions that run llama.cpp on the same weights, by name."""
    path, threads = options.model or models.bundled_path(), options.threads
    network = opened(path, 1024, threads, n_batch=512)

    def singly() -> int:
        network.reset()
        for token in tokens[:128]:
            network.eval([token])
        return 128

    def prefill() -> int:
        network.reset()
        network.eval(tokens[:512])
        return 512

    return {BASE: singly, "llama.cpp, prefill of 512": prefill}


MEASURE = Measure(
    rows,
    key=("what",),
    needs=("a corpus", "llama_cpp_python"),
    rivals=("llama_cpp_python",),
    time=12,
    options=(
        option("file", nargs="?", type=Path, help="text to compress, default: enwik8.1m of the corpus"),
        option("--model", type=Path, help=".gguf file, default: the bundled model"),
        option("--threads", type=int, default=2, help="threads, default: 2"),
        option("--bytes", type=int, default=100_000, help="bytes to encode, default: 100000"),
        option("--decoded", type=int, default=40_000, help="bytes to decode (one lane: a 16th), default: 40000"),
        option("--repeat", type=int, default=3, help="runs of each, default: 3"),
    ),
    tables={
        "lm-speed": Listing(
            Column("task", "what"),
            Column("tokens a second", "tokens_per_second", ",.0f"),
            Column("x llama.cpp, one token at a time", "ratio", ".2f"),
        )
    },
)
