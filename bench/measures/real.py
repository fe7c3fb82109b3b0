"""Compare squeeze with wrappers opened and closed, and other compressors, on documents, archives, images and logs.

The files are one of each kind in the folder `real` of the corpus: the smallest. Each tool runs as in `public`; precomp
and paq8px if installed. Level 6 and paq8px skip files of more than `--slow` bytes. `photos` has Lepton.
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

_ZSTD = Rival(("zstd",), "zstd -19 --long=31", "-q -19 --long=31 --single-thread -c raw", "-q --long=31 -dc coded")
_7Z = Rival(("7zz", "7z"), "7z -mx=9", "a -mx=9 -mmt=1 coded.7z raw", "x -oout -mmt=1 coded.7z", to_stdout=False)
_PRECOMP = Rival(("precomp",), "precomp", "-ocoded.pcf raw", "-r -oout/raw coded.pcf", to_stdout=False)
_SLOW = SLOW["paq8px"], ours(6)
_TOOLS = (RIVALS["xz"], _ZSTD, _7Z, _PRECOMP, ours(3, "--no-parse"), ours(3), *_SLOW)
_KINDS = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".epub", ".jar", ".whl", ".tgz", ".pdf", ".png", ".jpg")
_CLOSED, _OPENED = "squeeze -3 --no-parse", "squeeze -3"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    done = [] if options.again else records.current("real", options.results)
    known = {(row["file"], row["tool"]) for row in done}
    for path in files():
        if options.only not in path.name:
            continue
        case = Case(path.name, path.suffix[1:], (path.read_bytes(),))
        for tool in _TOOLS[: None if case.size <= options.slow else -len(_SLOW)]:
            program = next(filter(None, map(shutil.which, tool.programs)), None)
            if program is None:
                print(f"Note: {tool.label} is not installed; skipped", file=sys.stderr)
            elif (case.name, tool.label) not in known and tool.label not in options.without.split(","):
                about = {"file": case.name, "kind": case.kind, "raw": case.size, "tool": tool.label}
                yield about | measured_case(case, tool, program)


def files() -> list[Path]:
    """Return the smallest file of each kind."""
    found = sorted(Path(os.environ["SQUEEZE_CORPUS"], "real").iterdir(), key=lambda path: path.stat().st_size)
    smallest = {path.suffix: path for path in reversed(found)}
    return [smallest[kind] for kind in _KINDS if kind in smallest]


def by_file(rows: Sequence[Row]) -> list[Row]:
    """Return a row for each file with the bytes of each tool, and one of all files."""
    found = dict[str, Row]()
    for row in rows:
        one = found.setdefault(row["file"], {"file": row["file"], "raw": row["raw"]})
        if "lost" not in row:
            one[row["tool"]] = row["bytes"]
    total: Row = {"file": "all"}
    for name in ("raw", *dict.fromkeys(row["tool"] for row in rows)):
        if all(name in one for one in found.values()):
            total[name] = sum(one[name] for one in found.values())
    return [*found.values(), total]


def _share(one: str, other: str) -> Column:
    """Make a column of the bytes of one tool, of those of another one."""
    return Column(
        f"of {other.removeprefix('squeeze -3 ')}",
        lambda row: row[one] / row[other] if one in row and other in row else None,
        ".2f",
    )


def _bytes(tool: str) -> Column:
    return Column(tool, lambda row: row.get(tool), ",")


MEASURE = Measure(
    rows,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=("xz", "zstd", "7z", "precomp", "paq8px"),
    time=20,
    options=(
        option("--only", default="", help="text in the names of the files to measure"),
        option("--without", default="", help="tools to skip, separated by commas"),
        option("--slow", type=int, default=500_000, help="largest file for slow tools in bytes, default: 500000"),
        option("--again", action="store_true", help="measure again what has a result"),
    ),
    tables={
        "real": Listing(
            (
                Column("file", "file"),
                Column("raw", "raw", ","),
                *(_bytes(tool.label) for tool in _TOOLS[:5]),
                *(_bytes(_OPENED), _share(_OPENED, _CLOSED), _share(_OPENED, _PRECOMP.label)),
                *(_bytes(_SLOW[0].label), _bytes(_SLOW[1].label), _share(_SLOW[1].label, _SLOW[0].label)),
            ),
            prepare=by_file,
        ),
    },
)
