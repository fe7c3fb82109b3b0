"""Check whether a file is ever larger than with `xz -9e`, by more than 32 bytes, or with `--no-parse`.

The first bytes of files of every kind are measured. Every round trip is compared.
"""

import argparse
import lzma
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from sysconfig import get_path

import squeeze
from bench.measure import Measure, Row, option
from bench.measures.monotone import choose_files, first, size
from bench.shared.made_numbers import generate
from bench.shared.texts import find_file
from bench.tables import Column, Listing

XZ, CLOSED = "xz -9e", "--no-parse"
SLACK = {XZ: 32, CLOSED: 0}  # bytes that a file may have more
_FOLDERS = f"/usr/share:/usr/lib:/etc:{get_path('purelib')}"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each file that is larger, and one for each kind of file, level and comparison."""
    levels = sorted(int(level) for level in options.levels.split(","))
    paths = {"given": [*map(find_file, options.files)], "of the machine": files_of_machine(options)}
    for name, of_kind in paths.items():
        yield from _compare(name, ((str(path), first(path, options.most)) for path in of_kind), levels)
    yield from _compare("made", generate(options.made), levels)


def files_of_machine(options: argparse.Namespace) -> list[Path]:
    """Choose files below each folder, always the same ones, of every suffix and below the size limit."""
    folders = [folder for folder in options.folders.split(":") if Path(folder).is_dir()]
    counts = [options.count * (i + 1) // len(folders) - options.count * i // len(folders) for i in range(len(folders))]
    shares = zip(folders, counts, strict=True)
    below = (choose_files(Path(folder), count, options.most) for folder, count in shares if count)
    return list(chain.from_iterable(below))


def _compare(kind: str, inputs: Iterable[tuple[str, bytes]], levels: list[int]) -> Iterator[Row]:
    totals: dict[tuple[int, str], Row] = {}
    for file, data in inputs:
        xz = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        for level in levels:
            ours = size(data, level)
            closed = len(squeeze.compress(data, level, verify=False, parse=False))
            for against, theirs in ((XZ, xz), (CLOSED, closed)):
                is_larger = ours > theirs + SLACK[against]
                if is_larger:
                    found = {"file": file, "raw": len(data), "level": level, "against": against}
                    yield found | {"bytes": ours, "theirs": theirs}
                start: Row = dict.fromkeys(("files", "raw", "bytes", "theirs", "larger", "worst"), 0)
                total = totals.setdefault((level, against), start)
                counts = {"files": 1, "raw": len(data), "bytes": ours, "theirs": theirs, "larger": is_larger}
                total |= {name: total[name] + count for name, count in counts.items()}
                total["worst"] = max(total["worst"], ours - theirs)
    for (level, against), total in totals.items():
        yield {"kind": kind, "level": level, "against": against, **total}


MEASURE = Measure(
    rows,
    key=("kind", "level", "against"),
    keeps=lambda row: "kind" in row,
    time=50,
    options=(
        option("files", nargs="*", type=Path, help="files to measure as well"),
        option("--folders", default=_FOLDERS, help="folders to choose files from, separated by colons"),
        option("--count", type=int, default=500, help="number of files to choose, default: 500"),
        option("--most", type=int, default=200_000, help="largest size of a chosen file in bytes, default: 200000"),
        option("--made", type=int, default=100, help="number of generated files, default: 100"),
        option("--levels", default="1,3,6", help="levels, separated by commas, default: 1,3,6"),
    ),
    tables={
        "never-larger": Listing(
            Column("files", "kind"),
            Column("number", "files"),
            Column("level", lambda row: f"-{row['level']}"),
            Column("bytes", "bytes", ","),
            Column("compared with", "against"),
            Column("its bytes", "theirs", ","),
            Column("files that are larger", "larger"),
            Column("largest difference", "worst", ","),
            order=lambda row: (list(SLACK).index(row["against"]), row["level"], row["kind"]),
        )
    },
)
