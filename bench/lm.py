"""Measures the language model and the levels that use it: speed beside llama.cpp, size beside float32, ablation.

SQUEEZE_CORPUS=data python bench/lm.py                       all three
python bench/lm.py speed --threads 2 --bytes 100000 FILE     tokens a second
python bench/lm.py size FILE                                 bits per byte
python bench/lm.py ablation FILE                             what each part of the mixing is worth
"""

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.lm import models
from squeeze.numerics.team import Team

DECODED_LANES = (32, 16, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=["all", "speed", "size", "ablation"])
    parser.add_argument("file", nargs="?", type=Path, help="default: enwik8.1m for speed, alice29.txt for sizes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bytes", type=int, default=100_000, help="of the file to encode for speed")
    parser.add_argument("--decoded", type=int, default=40_000, help="bytes to decode for speed; a 16th with one lane")
    parser.add_argument("--measured", type=int, default=40_000, help="bytes for sizes and ablation")
    parser.add_argument("--window", type=int, default=2048, help="tokens, for sizes and ablation")
    parser.add_argument("--repeat", type=int, default=3, help="interleaved repetitions, of which the medians count")
    parser.add_argument("--only", default="", help="leave out only parts whose name contains this")
    parser.add_argument("--model", type=Path, help="a .gguf file, default: the bundled one")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    options = parser.parse_args()
    rows: list[dict] = []
    if options.part in ("all", "speed"):
        rows += speed(options, read(options.file, "enwik8.1m", options.bytes))
    if options.part in ("all", "size"):
        rows += size(options, read(options.file, "alice29.txt", options.measured))
    if options.part in ("all", "ablation"):
        ablation(options, read(options.file, "alice29.txt", options.measured))


def read(path: Path | None, name: str, count: int) -> bytes:
    if path is None:
        corpus = os.environ.get("SQUEEZE_CORPUS")
        if not corpus:
            sys.exit("Error: name a file, or set SQUEEZE_CORPUS to a folder that holds text/enwik8.1m")
        path = Path(corpus, "text", name)
    return path.read_bytes()[:count]


def show(options: argparse.Namespace, template: str, **row: object) -> dict:
    print(json.dumps(row) if options.json else template.format(**row), flush=True)
    return row


def title(options: argparse.Namespace, text: str) -> None:
    if not options.json:
        print(f"\n{text}\n", flush=True)


def llama_cpp_runs(options: argparse.Namespace, tokens: list[int]) -> dict[str, Callable[[], int]]:
    """What llama.cpp does with the same weights: each returns how many tokens went through."""
    import llama_cpp

    path = options.model or models.bundled_path()
    threads = options.threads
    network = llama_cpp.Llama(
        str(path), n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def singly() -> int:
        network.reset()
        for token in tokens[:128]:
            network.eval([token])
        return 128

    def prefill() -> int:
        network.reset()
        network.eval(tokens[:512])
        return 512

    return {"llama.cpp, one token at a time": singly, "llama.cpp, prefill of 512": prefill}


def speed(options: argparse.Namespace, data: bytes) -> list[dict]:
    model, threads = models.find(options.model).network, options.threads
    title(options, f"Tokens a second, {threads} threads, medians of {options.repeat} interleaved repetitions")
    if (load := os.getloadavg()[0]) > 0.5:
        print(f"Note: other work (load {load:.1f}) slows llama.cpp most: its threads spin", file=sys.stderr)
    entries = model.encode(data)
    ids = model.leaves[np.maximum(entries, 0)].tolist()
    runs = llama_cpp_runs(options, ids)

    def encoding(preset: TokenPreset) -> Callable[[], int]:
        def run() -> int:
            assert lanes.encode(data, model, preset, threads)
            return entries.size

        return run

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

    runs[f"encode -8, {len(data):,} bytes"] = encoding(
        levels.LEVELS[8].text.preset(len(data), model.context, None, None)
    )
    for count in DECODED_LANES:
        runs[f"decode, {count} lane{'s' * (count > 1)}"] = decoding(count)
    runs[next(reversed(runs))]()  # what is compiled on first use
    measured: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.repeat):
        for name, run in runs.items():
            start = time.perf_counter()
            count = run()
            measured[name].append(count / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in measured.items()}
    base = medians["llama.cpp, one token at a time"]
    return [
        show(options, "{name:<34} {speed:>8.0f} {ratio:>6.2f} x", name=name, speed=value, ratio=value / base)
        for name, value in medians.items()
    ]


def size(options: argparse.Namespace, data: bytes) -> list[dict]:
    import torch
    from reference import CHUNK, Reference

    torch.set_num_threads(options.threads)
    found = models.find(options.model)
    model = found.network
    preset = levels.LEVELS[9].text.preset(len(data), model.context, 1, options.window)
    title(options, f"Bits per byte of {len(data):,} bytes, one lane, a window of {preset.window} tokens")
    entries = model.encode(data)
    fed = lanes._ids(model, np.concatenate([[-1], entries[:-1]]))
    team, reference = Team(options.threads), Reference(found.weights, preset.window)
    session = model.session(1, preset.window, CHUNK, team)
    integers, floats, unbiased = 0.0, 0.0, np.zeros(model.leaves.size, np.float32)
    for first in range(0, entries.size, CHUNK):
        part, coded = fed[first : first + CHUNK], entries[first : first + CHUNK]
        tokens = np.flatnonzero(coded >= 0)
        bytes_alone = 8.0 * (coded.size - tokens.size)
        session.forward(part[None])
        logarithms = reference.forward(part).numpy()
        integers, floats = integers + bytes_alone, floats + bytes_alone
        for rows in np.split(tokens, range(32, tokens.size, 32)):
            cdf, leaf = session.cdf(rows, unbiased), coded[rows]
            row = np.arange(rows.size)
            share = (cdf[row, leaf + 1] - cdf[row, leaf]) / cdf[:, -1]
            integers -= float(np.log2(share).sum())
            floats -= float(logarithms[rows, leaf].astype(np.float64).sum()) / math.log(2)
    team.close()
    packed = lanes.encode(data, model, preset, options.threads)
    assert packed
    if lanes.decode(packed[1][:], packed[0], model, preset, options.threads).tobytes() != data:
        sys.exit("Error: what was decoded differs")
    bits = {
        "language model, float32 torch": floats,
        "language model, exact integers": integers,
        "mixed, as coded": 8.0 * len(packed[1]),
    }
    return [
        show(
            options,
            "{name:<34} {bpb:>8.4f} {against:>+7.2f} % of float32",
            name=name,
            bpb=value / len(data),
            against=100 * (value / floats - 1),
        )
        for name, value in bits.items()
    ]


def ablation(options: argparse.Namespace, data: bytes) -> None:
    from ablation import sizes

    model = models.find(options.model).network
    preset = levels.LEVELS[9].text.preset(len(data), model.context, 1, options.window)
    title(options, f"Coded bytes of {len(data):,} bytes, one lane, with a part of the mixing left out")
    whole = None
    for name, coded in sizes(model, data, preset, options.threads, options.only):
        whole = whole or coded
        more = 100 * (coded / whole - 1)
        show(options, "{without:<58} {size:>8} {more:>+7.2f} %", without=name, size=coded, more=more)


if __name__ == "__main__":
    main()
