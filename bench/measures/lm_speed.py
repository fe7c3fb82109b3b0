"""Measure tokens per second of level 8, compared with llama.cpp on the same weights and threads.

All runs take turns and the medians count. Decoded text is compared.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bench.measure import Measure, Row, in_turns, option
from bench.shared.llamacpp import opened
from bench.shared.texts import find_file
from bench.tables import Column, Listing
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes
from squeeze.lm import models

DECODED_LANES = (32, 16, 1)
BASE = "llama.cpp, one token at a time"
_TEXT, _ENCODED, _DECODED = Path("enwik8.1m"), 100_000, 40_000  # bytes; one lane decodes a 16th


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"Note: other work (load {load:.1f}) slows llama.cpp most: its threads spin", file=sys.stderr)
    speeds = in_turns({name: partial(speed, run) for name, run in runs(options).items()}, options.repeat)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    for name, value in medians.items():
        row = {"what": name, "tokens_per_second": round(value, 1), "ratio": round(value / medians[BASE], 3)}
        yield row | {"threads": options.threads}


def speed(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    return run() / (time.perf_counter() - start)


def runs(options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Return the functions that are timed, by name. Each returns the number of tokens it processed."""
    model, threads = models.find(None).network, options.threads
    data = find_file(_TEXT).read_bytes()[:_ENCODED]
    entries = model.encode(data)
    found = llama_cpp_runs(threads, model.leaves[np.maximum(entries, 0)].tolist())
    preset = levels.LEVELS[8].text.preset(len(data), model.context, None, None)

    def encode() -> int:
        assert lanes.encode(data, model, preset, threads)
        return entries.size

    def decoding(count: int) -> Callable[[], int]:
        part = data[: _DECODED // (16 if count == 1 else 1)]
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


def llama_cpp_runs(threads: int, tokens: list[int]) -> dict[str, Callable[[], int]]:
    """Return the functions that run llama.cpp on the same weights, by name."""
    path = models.bundled_path()
    assert path is not None, models.HELP
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
    needs=("a corpus", "the bundled model", "llama_cpp_python"),
    rivals=("llama_cpp_python",),
    time=12,
    options=(
        option("--threads", type=int, default=2, help="threads, default: 2"),
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
