"""Check whether a file is ever larger than with `--no-parse`. Every round trip is compared."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.measure import Measure, Row, option
from bench.measures.monotone import first, size
from bench.measures.never_larger import CHOICE, files_of_machine
from bench.shared.texts import find_file
from bench.tables import Column, Listing


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each set of files, and one for each file that is larger."""
    yield from _compare("given", [*map(find_file, options.files)], options)
    yield from _compare("of the machine", files_of_machine(options), options)


def _compare(kind: str, paths: list[Path], options: argparse.Namespace) -> Iterator[Row]:
    raw = closed = opened = smaller = larger = 0
    for path in paths:
        data = first(path, options.most)
        theirs = len(squeeze.compress(data, options.level, verify=False, parse=False))
        ours = size(data, options.level)
        raw, closed, opened = raw + len(data), closed + theirs, opened + ours
        smaller, larger = smaller + (ours < theirs), larger + (ours > theirs)
        if ours > theirs:
            yield {"file": str(path), "raw": len(data), "level": options.level, "bytes": ours, "closed": theirs}
    if paths:
        found = {"kind": kind, "level": options.level, "files": len(paths), "raw": raw, "bytes": opened}
        yield found | {"closed": closed, "smaller": smaller, "larger": larger}


MEASURE = Measure(
    rows,
    key=("kind", "level"),
    keeps=lambda row: "kind" in row,
    time=40,
    options=(
        *CHOICE,
        option("--level", type=int, default=3, help="level, default: 3"),
    ),
    quick="--count 4 --most 3000 --level 1",
    tables={
        "closed": Listing(
            (
                Column("files", "kind"),
                Column("number", "files"),
                Column("level", lambda row: f"-{row['level']}"),
                Column("with --no-parse", "closed", ","),
                Column("bytes", "bytes", ","),
                Column("smaller", "smaller"),
                Column("larger", "larger"),
            ),
            order=lambda row: (row["level"], row["kind"]),
        )
    },
)
