"""Compare squeeze with wrappers opened and closed, and other compressors, on documents, archives, images and logs.

The files are those of the folder `real` of the corpus. Each tool runs as in `public`; precomp and paq8px if installed.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.measures.public import SLOW, Case, measured_case, ours
from bench.tables import Column, Listing
from squeeze.recipes.measure.benchmark import RIVALS, Rival

_PRECOMP = Rival(("precomp",), "precomp", "-ocoded.pcf raw", "-r -oout/raw coded.pcf", to_stdout=False)
_TOOLS = (
    *(RIVALS["xz"], RIVALS["zstd"], RIVALS["7z"], _PRECOMP, SLOW["paq8px"]),
    *(ours(3, "--no-parse"), ours(3), ours(6)),
)
_CLOSED, _OPENED = "squeeze -3 --no-parse", "squeeze -3"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    done = [] if options.again else records.current("real", options.results)
    known = {(row["file"], row["tool"]) for row in done}
    for path in sorted(Path(os.environ["SQUEEZE_CORPUS"], "real").iterdir()):
        if options.only not in path.name:
            continue
        case = Case(path.name, path.suffix[1:], (path.read_bytes(),))
        for tool in _TOOLS:
            program = next(filter(None, map(shutil.which, tool.programs)), None)
            if program is None:
                print(f"Note: {tool.label} is not installed; skipped", file=sys.stderr)
            elif (case.name, tool.label) not in known and tool.label not in options.without.split(","):
                about = {"file": case.name, "kind": case.kind, "raw": case.size, "tool": tool.label}
                yield about | measured_case(case, tool, program)


def by_file(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each file with the bytes of each tool, and one of all files."""
    found = dict[str, Row]()
    for row in rows:
        one = found.setdefault(row["file"], {"file": row["file"], "raw": row["raw"]})
        one[row["tool"]] = row["bytes"]
    total: Row = {"file": "all"}
    for name in ("raw", *dict.fromkeys(row["tool"] for row in rows)):
        if all(name in one for one in found.values()):
            total[name] = sum(one[name] for one in found.values())
    return [*found.values(), total]


def _share(row: Row) -> float | None:
    return row[_OPENED] / row[_CLOSED] if _OPENED in row and _CLOSED in row else None


MEASURE = Measure(
    rows,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=("xz", "zstd", "7z", "precomp", "paq8px"),
    time=60,
    options=(
        option("--only", default="", help="text in the names of the files to measure"),
        option("--without", default="", help="tools to skip, separated by commas"),
        option("--again", action="store_true", help="measure again what has a result"),
    ),
    tables={
        "real": Listing(
            (
                Column("file", "file"),
                Column("raw", "raw", ","),
                *(Column(tool.label, lambda row, name=tool.label: row.get(name), ",") for tool in _TOOLS[:-2]),
                Column(_OPENED, lambda row: row.get(_OPENED), ","),
                Column("of --no-parse", _share, ".2f"),
                Column("squeeze -6", lambda row: row.get("squeeze -6"), ","),
            ),
            prepare=by_file,
        ),
    },
)
