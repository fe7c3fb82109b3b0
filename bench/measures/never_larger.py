"""Check whether a file is ever larger than at the next lower level, than with `xz -9e`, or than with `--no-parse`.

The first bytes of files of every kind are measured. The longest files are also measured in encodings that no model
knows: hexadecimal digits, base64 and EBCDIC. Every round trip is compared.
"""

import argparse
import base64
import lzma
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from sysconfig import get_path

import numpy as np

import squeeze
from bench.measure import Measure, Row, option
from bench.measures.kinds import arrays
from bench.shared.texts import find_file
from bench.tables import Column, Listing, sums

BELOW, XZ, CLOSED = "the next lower level", "xz -9e", "--no-parse"
MORE = {BELOW: (0.001, 32), XZ: (0, 32), CLOSED: (0, 0)}  # what a file may have more: a share, and bytes
_FOLDERS = f"/usr/share:/usr/lib:/etc:{get_path('purelib')}"
_LEAST = 64  # bytes of a chosen file
ENCODINGS: dict[str, Callable[[bytes], bytes]] = {
    "hexadecimal": lambda data: data.hex().encode(),
    "base64": base64.encodebytes,
    "EBCDIC": lambda data: data.decode("latin1").encode("cp037"),
}
ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda numbers: numbers,
    ", high bytes first": lambda numbers: numbers.byteswap(),
    ", byte by byte": lambda numbers: numbers.reshape(-1, 1).view(np.uint8).T,
    ", differences": lambda numbers: np.diff(numbers, axis=0),
}
_Inputs = Iterable[tuple[str, bytes]]


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each file that is larger, and one for each kind of file, level and comparison."""
    levels = sorted(int(level) for level in options.levels.split(","))
    given = [*map(find_file, options.files)]
    chosen = choose_files(options.folders.split(":"), options.count, options.most)
    longest = sorted([*given, *chosen], key=lambda path: path.stat().st_size, reverse=True)[: options.encoded]
    inputs: dict[str, _Inputs] = {
        "given": contents(given, options.most),
        "of the machine": contents(chosen, options.most),
        "encoded": encoded(contents(longest, options.most), options.most),
        "made": made(options.made),
    }
    for kind, of_kind in inputs.items():
        yield from _compare(kind, of_kind, levels)


def contents(paths: Iterable[Path], most: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and first bytes of files."""
    for path in paths:
        with path.open("rb") as file:
            yield str(path), file.read(most)


def encoded(inputs: _Inputs, most: int) -> Iterator[tuple[str, bytes]]:
    for file, data in inputs:
        for name, encode in ENCODINGS.items():
            yield f"{file} in {name}", encode(data)[:most]


def made(count: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` files of numbers, always the same ones. Many look like noise, but are easy to compress."""
    for seed in range(count):
        of_kind = list(arrays(int(500 * 30 ** np.random.default_rng(seed).random()), seed).items())
        name, numbers = of_kind[seed % len(of_kind)]
        order, change = list(ORDERS.items())[seed // len(of_kind) % len(ORDERS)]
        yield f"{name}{order}, {numbers.nbytes} bytes", change(numbers).tobytes()


def choose_files(folders: Iterable[str], count: int, most: int) -> list[Path]:
    """Choose files below folders, always the same ones and the same number of each suffix.

    Args:
        folders: folders to search
        count: number of files
        most: largest size in bytes
    """
    kinds: dict[str, list[Path]] = {}
    for place, _, names in (found for folder in folders for found in os.walk(folder)):
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


def size(data: bytes, level: int) -> int:
    coded = squeeze.compress(data, level, verify=False)
    if squeeze.decompress(coded) != data:
        raise SystemExit(f"Error: level {level} changed the bytes")
    return len(coded)


def _compare(kind: str, inputs: _Inputs, levels: list[int]) -> Iterator[Row]:
    totals: dict[tuple[int, str], Row] = {}
    for file, data in inputs:
        others = {XZ: len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))}
        for level in levels:
            ours = size(data, level)
            others[CLOSED] = len(squeeze.compress(data, level, verify=False, parse=False))
            for against, theirs in others.items():
                share, slack = MORE[against]
                is_larger = ours > (1 + share) * theirs + slack
                if is_larger:
                    found = {"file": file, "raw": len(data), "level": level, "against": against}
                    yield found | {"bytes": ours, "theirs": theirs}
                start: Row = dict.fromkeys(("files", "raw", "bytes", "theirs", "larger", "worst"), 0)
                total = totals.setdefault((level, against), start)
                counts = {"files": 1, "raw": len(data), "bytes": ours, "theirs": theirs, "larger": is_larger}
                total |= {name: total[name] + count for name, count in counts.items()}
                total["worst"] = max(total["worst"], ours - theirs)
            others[BELOW] = ours
    for (level, against), total in totals.items():
        yield {"kind": kind, "level": level, "against": against, **total}


def of_all_kinds(rows: Sequence[Row]) -> list[Row]:
    """Add up the rows of a comparison and a level; `worst` is the largest difference."""
    found = []
    for against, level in dict.fromkeys((row["against"], row["level"]) for row in rows):
        same = [row for row in rows if (row["against"], row["level"]) == (against, level)]
        worst = max(row["worst"] for row in same)
        found.append(sums(same) | {"against": against, "level": level, "worst": worst})
    return found


MEASURE = Measure(
    rows,
    key=("kind", "level", "against"),
    keeps=lambda row: "kind" in row,
    time=50,
    options=(
        option("files", nargs="*", type=Path, help="files to measure as well"),
        option("--folders", default=_FOLDERS, help="folders to choose files from, separated by colons"),
        option("--count", type=int, default=300, help="number of files to choose, default: 300"),
        option("--most", type=int, default=200_000, help="largest size of a chosen file in bytes, default: 200000"),
        option("--encoded", type=int, default=4, help="number of the longest files to encode, default: 4"),
        option("--made", type=int, default=100, help="number of generated files, default: 100"),
        option("--levels", default="1,2,3,4,5,6", help="levels, separated by commas, default: 1,2,3,4,5,6"),
    ),
    tables={
        "never-larger": Listing(
            Column("compared with", "against"),
            Column("level", lambda row: f"-{row['level']}"),
            Column("files", "files"),
            Column("bytes", "bytes", ","),
            Column("bytes compared with", "theirs", ","),
            Column("files that are larger", "larger"),
            Column("largest difference", "worst", ","),
            order=lambda row: (list(MORE).index(row["against"]), row["level"]),
            prepare=of_all_kinds,
        )
    },
)
