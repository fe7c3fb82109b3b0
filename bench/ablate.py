"""What each part of a level from 4 to 6 brings: sizes without it, and how long coding takes without it.

python bench/ablate.py [FILE] [--level N] [--bytes N] [--only TEXT]

Each context of the text table is left out in turn, then the state-space model, long matches, and weight sets. A share
below 0.1 % says that a part does not pay. Times are of one run each, so only large differences mean anything.
"""

import argparse
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from squeeze.codecs import deep, deeplevels
from squeeze.codecs.bitmodels import surroundings
from squeeze.codecs.levels import DeepPreset


def variants(level: int) -> Iterator[tuple[str, DeepPreset]]:
    """(what is left out, the preset without it); first with nothing left out."""
    preset = deeplevels.preset(level, "text")
    yield "nothing", preset
    if preset.ssm:
        told = tuple(c for c in preset.contexts if c[0] != surroundings.OUTSIDE)
        yield "state-space model", replace(preset, ssm=None, contexts=told, selectors=13)
        yield "contexts of the state-space model", replace(preset, contexts=told)
    yield "matches but two", replace(preset, matches=preset.matches[1::2])
    yield "weight sets but the first five", replace(preset, selectors=5)
    for name, context in deeplevels.TEXT.items():
        if context in preset.contexts:
            yield name, replace(preset, contexts=tuple(c for c in preset.contexts if c != context))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="a text; else enwik8.1m under SQUEEZE_CORPUS")
    parser.add_argument("--level", type=int, default=6, choices=(4, 5, 6))
    parser.add_argument("--bytes", type=int, default=200_000, help="how many of the file, from its start")
    parser.add_argument("--only", default="", help="only parts whose name contains this")
    options = parser.parse_args()
    path = options.file or Path(os.environ["SQUEEZE_CORPUS"]) / "text" / "enwik8.1m"
    data = np.frombuffer(path.read_bytes()[: options.bytes], np.uint8)
    deep.encode(data[:1000], deeplevels.preset(options.level, "text"))  # compiles
    whole: tuple[int, float] | None = None
    print("| left out | bytes | it saves | seconds | its share of the time |\n|---|--:|--:|--:|--:|")
    for name, preset in variants(options.level):
        if whole and options.only not in name:
            continue
        start = time.perf_counter()
        coded = deep.encode(data, preset)
        seconds = time.perf_counter() - start
        if coded is None or not np.array_equal(deep.decode(coded, data.size, preset), data):
            raise SystemExit(f"Error: {name}: the round trip changed the bytes")
        whole = whole or (len(coded), seconds)
        saves, share = len(coded) / whole[0] - 1, 1 - seconds / whole[1]
        print(f"| {name} | {len(coded)} | {saves:.2%} | {seconds:.1f} | {share:.0%} |", flush=True)


if __name__ == "__main__":
    main()
