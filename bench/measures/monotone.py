"""Whether a higher level is ever larger than the one below: files of every kind, their first bytes, each proved."""

import argparse
import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.shared.texts import found

SHARE, SLACK = 1.001, 32  # of the size one level below, and bytes more: so much may a file grow
_LEAST = 64  # bytes of a file


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each pair of neighbouring levels, and one for each file that grows."""
    levels = sorted(int(level) for level in options.levels.split(","))
    pairs = list(itertools.pairwise(levels))
    worst, grown = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0)
    paths = [*map(found, options.files)] or chosen(options.folder, options.skip + options.count)[options.skip :]
    for path in paths:
        with path.open("rb") as file:
            data = file.read(options.first)
        sizes = {level: size(data, level) for level in levels}
        for lower, higher in pairs:
            worst[lower, higher] = max(worst[lower, higher], sizes[higher] / sizes[lower])
            if sizes[higher] > SHARE * sizes[lower] + SLACK:
                grown[lower, higher] += 1
                of_file = {"file": str(path), "raw": len(data), "lower": lower, "higher": higher}
                yield of_file | {"bytes below": sizes[lower], "bytes": sizes[higher]}
    for lower, higher in pairs:
        named = f"{len(paths)} after the first {options.skip}" if options.skip else f"all {len(paths)}"
        total = {"file": named, "lower": lower, "higher": higher}
        yield (
            total
            | {"monotone": not grown[lower, higher], "larger": grown[lower, higher]}
            | {"worst": round(worst[lower, higher], 4)}
        )


def size(data: bytes, level: int) -> int:
    coded = squeeze.compress(data, level, verify=False)
    if squeeze.decompress(coded) != data:
        raise SystemExit(f"Error: level {level} changed the bytes")
    return len(coded)


def chosen(folder: Path, count: int) -> list[Path]:
    """Files below a folder, of each kind, by the endings of their names, as many; always the same ones."""
    kinds: dict[str, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink() and path.stat().st_size >= _LEAST:
                kinds.setdefault(path.suffix[:8], []).append(path)
    chance, found = random.Random(1), []
    order = sorted(kinds)
    for kind in order:
        kinds[kind].sort()
        chance.shuffle(kinds[kind])
    while order and len(found) < count:
        kind = chance.choice(order)
        found.append(kinds[kind].pop())
        order = [kind for kind in order if kinds[kind]]
    return found
