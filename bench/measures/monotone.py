"""Whether a higher level is ever larger than the one below: files of every kind, their first bytes, each proved.

The longest of them are measured as text that no model knows, too: in hexadecimal digits, base64 and EBCDIC.
"""

import argparse
import base64
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.shared.texts import found

SHARE, SLACK = 1.001, 32  # of the size one level below, and bytes more: so much may a file grow
_LEAST = 64  # bytes of a file
_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hexadecimal": lambda data: data.hex().encode(),
    "base64": base64.encodebytes,
    "EBCDIC": lambda data: data.decode("latin1").encode("cp037"),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row for each pair of neighbouring levels, and one for each file that grows: of files, and of encoded ones."""
    levels = sorted(int(level) for level in options.levels.split(","))
    paths = [*map(found, options.files)] or chosen(options.folder, options.skip + options.count)[options.skip :]
    longest = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)[: options.encoded]
    named = f"{len(paths)} after the first {options.skip}" if options.skip else f"all {len(paths)}"
    yield from _compared(((str(path), first(path, options.first)) for path in paths), levels, named)
    encoded = [(path, name) for path in longest for name in _ENCODINGS]
    if encoded:
        texts = ((f"{path} in {name}", in_encoding(path, name, options.first)) for path, name in encoded)
        yield from _compared(texts, levels, f"{named}, {len(encoded)} encoded")


def first(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def in_encoding(path: Path, name: str, count: int) -> bytes:
    """The first bytes of a file in an encoding."""
    return _ENCODINGS[name](first(path, count))[:count]


def _compared(inputs: Iterable[tuple[str, bytes]], levels: list[int], named: str) -> Iterator[Row]:
    """Rows of inputs, which are named, each and together."""
    pairs = list(itertools.pairwise(levels))
    worst, grown = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0)
    for name, data in inputs:
        sizes = {level: size(data, level) for level in levels}
        for lower, higher in pairs:
            worst[lower, higher] = max(worst[lower, higher], sizes[higher] / sizes[lower])
            if sizes[higher] > SHARE * sizes[lower] + SLACK:
                grown[lower, higher] += 1
                of_file = {"file": name, "raw": len(data), "lower": lower, "higher": higher}
                yield of_file | {"bytes below": sizes[lower], "bytes": sizes[higher]}
    for lower, higher in pairs:
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


def chosen(folder: Path, count: int, most: int | None = None) -> list[Path]:
    """Choose files below a folder, as many of each ending, and none of more than `most` bytes; always the same ones."""
    kinds: dict[str, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink() and _LEAST <= path.stat().st_size <= (most or math.inf):
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
