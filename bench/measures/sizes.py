"""Measure the bytes of files at each level and with other compressors. Every round trip is compared."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Measure, Row, option
from bench.shared.texts import corpus, find_file
from bench.tables import Column, Listing, with_total
from squeeze.recipes.measure import benchmark
from squeeze.recipes.measure.benchmark import Rival, Tool

# paq8px is in no package: https://github.com/hxim/paq8px.
RIVALS = benchmark.RIVALS | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False)
}
_AGAINST = "xz,zstd,brotli,bzip2,zpaq,7z"
_SHOWN = ("xz -9e", "zstd -19 long", "brotli -q 11", "bzip2 -9", "zpaq -m5", "7z PPMd best", "lpaq1 9", "paq8px -8")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = choose_tools(options.levels, options.against)
    for path in [*map(find_file, options.files)] or corpus():
        yield {"file": path.name, "raw": path.stat().st_size} | {tool.name: int(tool.run(path)[0]) for tool in tools}


def choose_tools(levels: str, against: str) -> list[Tool]:
    """Return the named tools, with a note for each that is not installed. Each tool checks its round trip when it runs.

    Args:
        levels: levels of squeeze, separated by commas
        against: other compressors, separated by commas
    """
    numbers = [int(level) for level in levels.split(",") if level]
    rivals = [name for name in against.split(",") if name]
    tools, notes = benchmark.choose(numbers or (3,), rivals, False, 1, RIVALS)
    for note in notes:
        print(f"Note: {note}", file=sys.stderr)
    return tools if numbers else tools[1:]


MEASURE = Measure(
    rows,
    key=("file",),
    needs=("a corpus",),
    rivals=tuple(RIVALS),
    time=30,
    options=(
        option("files", nargs="*", type=Path, help="files to measure, default: all files of the corpus"),
        option("--levels", default="1,2,3,4,5,6", help="levels, separated by commas, default: 1,2,3,4,5,6"),
        option("--against", default=_AGAINST, help=f"other compressors, default: {_AGAINST}"),
    ),
    tables={
        "sizes": Listing(
            *(Column("file", "file"), Column("raw", "raw", ",")),
            *(Column(f"-{level}", f"squeeze -{level}", ",") for level in range(1, 7)),
            *(Column(name, name, ",") for name in _SHOWN),
            prepare=with_total,
        )
    },
)
