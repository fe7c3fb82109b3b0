"""Measure the bytes of files at each level and with other compressors. Every round trip is compared."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Measure, Row, option
from bench.shared.texts import corpus, find_file
from bench.tables import Column, Pivot
from squeeze.recipes.measure import benchmark
from squeeze.recipes.measure.benchmark import Rival, Tool

# paq8px is in no package: https://github.com/hxim/paq8px.
RIVALS = benchmark.RIVALS | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False)
}
_AGAINST = "xz,zstd,brotli,bzip2,zpaq,7z"
_SHOWN = ("xz -9e", "zstd -19 long", "brotli -q 11", "bzip2 -9", "zpaq -m5", "7z PPMd best", "lpaq1 9", "paq8px -8")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = choose_tools(options.levels, options.against, options.threads)
    for path in [*map(find_file, options.files)] or corpus(options.below):
        for tool in tools:
            coded, *_ = tool.run(path)
            yield {"file": path.name, "raw": path.stat().st_size, "tool": tool.name, "bytes": int(coded)}


def choose_tools(levels: str, against: str, threads: int = 1) -> list[Tool]:
    """Return the named tools, with a note for each that is not installed. Each tool checks its round trip when it runs.

    Args:
        levels: levels of squeeze, separated by commas
        against: other compressors, separated by commas
        threads: threads of squeeze
    """
    numbers = [int(level) for level in levels.split(",") if level]
    rivals = [name for name in against.split(",") if name]
    tools, notes = benchmark.choose(numbers or (3,), rivals, False, threads, RIVALS)
    for note in notes:
        print(f"Note: {note}", file=sys.stderr)
    return tools if numbers else tools[1:]


MEASURE = Measure(
    rows,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=tuple(RIVALS),
    time=30,
    options=(
        option("files", nargs="*", type=Path, help="files to measure, default: all files of the corpus"),
        option("--below", type=int, metavar="BYTES", help="size from which files of the corpus are skipped"),
        option("--levels", default="1,2,3,4,5,6", help="levels, separated by commas, default: 1,2,3,4,5,6"),
        option("--against", default=_AGAINST, help=f"other compressors, default: {_AGAINST}"),
        option("--threads", type=int, default=1, help="threads of squeeze, default: 1"),
    ),
    quick="--below 130000 --levels 1,3,5",
    tables={
        "sizes": Pivot(
            (Column("file", "file"), Column("raw", "raw", ",")),
            "tool",
            {f"squeeze -{level}": f"-{level}" for level in range(1, 7)} | {name: name for name in _SHOWN},
            "bytes",
            ",",
            order=lambda row: row["raw"],
            total="total",
        )
    },
)
