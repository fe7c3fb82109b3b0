"""Check whether a file is ever larger than with `xz -9e` by more than 32 bytes. Every round trip is compared."""

import argparse
import lzma
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from sysconfig import get_path

from bench.measure import Measure, Row, option
from bench.measures.monotone import choose_files, first, size
from bench.shared.made_numbers import generate
from bench.shared.texts import find_file
from bench.tables import Column, Listing

SLACK = 32  # bytes
_FOLDERS = f"/usr/share:/usr/lib:/etc:{get_path('purelib')}"
CHOICE = (  # options that say which files are measured
    option("files", nargs="*", type=Path, help="files to measure as well"),
    option("--folders", default=_FOLDERS, help="folders to choose files from, separated by colons"),
    option("--count", type=int, default=500, help="number of files to choose, default: 500"),
    option("--most", type=int, default=200_000, help="largest size of a chosen file in bytes, default: 200000"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each level and kind of file, and one for each file that is larger."""
    levels = [int(level) for level in options.levels.split(",")]
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


def _compare(name: str, inputs: Iterator[tuple[str, bytes]], levels: list[int]) -> Iterator[Row]:
    files, raw, xz = 0, 0, 0
    ours, larger, worst = (dict.fromkeys(levels, 0) for _ in range(3))
    for file, data in inputs:
        files, raw = files + 1, raw + len(data)
        theirs = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        xz += theirs
        for level in levels:
            coded = size(data, level)
            ours[level] += coded
            worst[level] = max(worst[level], coded - theirs)
            if coded > theirs + SLACK:
                larger[level] += 1
                yield {"file": file, "raw": len(data), "level": level, "bytes": coded, "xz -9e": theirs}
    for level in levels if files else ():
        yield (
            {"kind": name, "level": level, "files": files, "raw": raw, "bytes": ours[level], "xz -9e": xz}
            | {"larger": larger[level], "worst": worst[level]}
        )


MEASURE = Measure(
    rows,
    key=("kind", "level"),
    keeps=lambda row: "kind" in row,
    time=40,
    options=(
        *CHOICE,
        option("--made", type=int, default=100, help="number of generated files, default: 100"),
        option("--levels", default="3", help="levels, separated by commas, default: 3"),
    ),
    quick="--count 4 --most 3000 --made 2 --levels 1",
    tables={
        "never-larger": Listing(
            (
                Column("files", "kind"),
                Column("number", "files"),
                Column("level", lambda row: f"-{row['level']}"),
                Column("bytes", "bytes", ","),
                Column("xz -9e", "xz -9e", ","),
                Column("larger by more than 32 bytes", "larger"),
                Column("largest difference", "worst"),
            ),
            order=lambda row: (row["level"], row["kind"]),
        )
    },
)
