"""Check whether a level is ever larger than the next lower one, on the first bytes of files of every kind.

The longest files are also measured in encodings that no model knows: hexadecimal digits, base64 and EBCDIC.
"""

import argparse
import base64
import itertools
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import squeeze
from bench.measure import Measure, Row, option
from bench.shared.texts import find_file
from bench.tables import Column, Listing

SHARE, SLACK = 1.001, 32  # a file may have this share of the size one level below, and these bytes more
_LEAST = 64  # bytes of a file
_ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hexadecimal": lambda data: data.hex().encode(),
    "base64": base64.encodebytes,
    "EBCDIC": lambda data: data.decode("latin1").encode("cp037"),
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each pair of consecutive levels, and one for each file that grows."""
    levels = sorted(int(level) for level in options.levels.split(","))
    paths = [find_file(path) for path in options.files]
    paths = paths or choose_files(options.folder, options.skip + options.count)[options.skip :]
    longest = sorted(paths, key=lambda path: path.stat().st_size, reverse=True)[: options.encoded]
    named = f"{len(paths)} after the first {options.skip}" if options.skip else f"all {len(paths)}"
    yield from _compare(((str(path), first(path, options.first)) for path in paths), levels, named)
    encoded = [(path, name) for path in longest for name in _ENCODINGS]
    if encoded:
        named_texts = ((f"{path} in {name}", _ENCODINGS[name](first(path, options.first))) for path, name in encoded)
        texts = ((name, text[: options.first]) for name, text in named_texts)
        yield from _compare(texts, levels, f"{named}, {len(encoded)} encoded")


def first(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _compare(inputs: Iterable[tuple[str, bytes]], levels: list[int], named: str) -> Iterator[Row]:
    """Yield the rows of named inputs. `named` describes the set of all inputs."""
    pairs = list(itertools.pairwise(levels))
    worst, grown, lengths = dict.fromkeys(pairs, 0.0), dict.fromkeys(pairs, 0), []
    for name, data in inputs:
        lengths.append(len(data))
        sizes = {level: size(data, level) for level in levels}
        for lower, higher in pairs:
            worst[lower, higher] = max(worst[lower, higher], sizes[higher] / sizes[lower])
            if sizes[higher] > SHARE * sizes[lower] + SLACK:
                grown[lower, higher] += 1
                of_file = {"file": name, "raw": len(data), "lower": lower, "higher": higher}
                yield of_file | {"bytes below": sizes[lower], "bytes": sizes[higher]}
    for lower, higher in pairs:
        total: Row = {"file": named, "least": min(lengths), "most": max(lengths)}
        total |= {"lower": lower, "higher": higher, "monotone": not grown[lower, higher]}
        yield total | {"larger": grown[lower, higher], "worst": round(worst[lower, higher], 4)}


def size(data: bytes, level: int) -> int:
    coded = squeeze.compress(data, level, verify=False)
    if squeeze.decompress(coded) != data:
        raise SystemExit(f"Error: level {level} changed the bytes")
    return len(coded)


def choose_files(folder: Path, count: int, most: float = math.inf) -> list[Path]:
    """Choose files below a folder, always the same ones and the same number of each suffix.

    Args:
        folder: folder to search
        count: number of files
        most: largest size in bytes
    """
    kinds: dict[str, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.is_file() and not path.is_symlink() and _LEAST <= path.stat().st_size <= most:
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


def by_pair(rows: Sequence[Row]) -> list[Row]:
    """Add up the rows of each pair of levels."""
    pairs: dict[tuple[int, int], Row] = {}
    for row in rows:
        pair = pairs.setdefault((row["lower"], row["higher"]), row | {"files": 0, "larger": 0, "worst": 0.0})
        words = row["file"].partition(", ")[2] or row["file"]  # "50 after the first 100", "all 200, 12 encoded"
        pair["files"] += int(next(word for word in words.split() if word.isdigit()))
        pair["larger"] += row["larger"]
        if "least" in row:
            pair["least"], pair["most"] = min(pair["least"], row["least"]), max(pair["most"], row["most"])
        pair["worst"] = max(pair["worst"], row["worst"])
    return list(pairs.values())


MEASURE = Measure(
    rows,
    key=("file", "lower", "higher"),
    time=40,
    options=(
        option("files", nargs="*", type=Path, help="files to measure, default: files below --folder"),
        option("--folder", type=Path, default=Path("/usr"), help="folder to choose files from, default: /usr"),
        option("--count", type=int, default=200, help="number of files to choose, default: 200"),
        option("--skip", type=int, default=0, help="number of files to skip, which another run checks, default: 0"),
        option("--first", type=int, default=100_000, help="bytes of each file to measure, default: 100000"),
        option("--levels", default="1,2,3,4,5,6", help="levels, separated by commas, default: 1,2,3,4,5,6"),
        option("--encoded", type=int, default=4, help="number of the longest files to encode, default: 4"),
    ),
    tables={
        "monotone": Listing(
            Column("level", lambda row: f"-{row['higher']}"),
            Column("compared with", lambda row: f"-{row['lower']}"),
            Column("files", "files"),
            Column("bytes of a file", lambda row: f"{row['least']:,} to {row['most']:,}" if "least" in row else None),
            Column("larger", "larger"),
            Column("largest share of the lower level's bytes", "worst", ".3f"),
            where=lambda row: "monotone" in row,
            prepare=by_pair,
            order=lambda row: row["higher"],
        )
    },
)
