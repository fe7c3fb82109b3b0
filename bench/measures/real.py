"""Compare squeeze with wrappers opened and closed, and other compressors, on documents, archives, images and logs.

The files are one of each kind in the folder `real` of the corpus: the smallest. Each tool runs as in `public`; precomp
and paq8px if installed. Level 6 and paq8px skip files of more than 500 kB. `photos` has Lepton. A stopped run
continues: files that the record of this commit has are left out.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.measures.public import SLOW, installed, measured, ours
from bench.tables import Column, Listing, with_total
from squeeze.recipes.measure.benchmark import RIVALS, Rival

_ZSTD = Rival(("zstd",), "zstd -19 --long=31", "-q -19 --long=31 --single-thread -c raw", "-q --long=31 -dc coded")
_7Z = Rival(("7zz", "7z"), "7z -mx=9", "a -mx=9 -mmt=1 coded.7z raw", "x -oout -mmt=1 coded.7z", to_stdout=False)
_PRECOMP = Rival(("precomp",), "precomp", "-ocoded.pcf raw", "-r -oout/raw coded.pcf", to_stdout=False)
_SLOW, _MOST = (SLOW["paq8px"], ours(6)), 500_000  # bytes of a file for slow tools
_TOOLS = (RIVALS["xz"], _ZSTD, _7Z, _PRECOMP, ours(3, "--no-parse"), ours(3), *_SLOW)
_KINDS = (".docx", ".xlsx", ".pptx", ".odt", ".ods", ".epub", ".jar", ".whl", ".tgz", ".pdf", ".png", ".jpg")
_CLOSED, _OPENED = "squeeze -3 --no-parse", "squeeze -3"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    known = {row["file"] for row in records.current("real", options.results)}
    for path in files():
        if options.only in path.name and path.name not in known:
            row: Row = {"file": path.name, "raw": path.stat().st_size}
            for tool, program in installed(_TOOLS if row["raw"] <= _MOST else _TOOLS[: -len(_SLOW)]):
                cost = measured(path, tool, program)
                row |= {f"{tool.label} lost": cost["lost"]} if "lost" in cost else {tool.label: cost["bytes"]}
            yield row


def files() -> list[Path]:
    """Return the smallest file of each kind."""
    found = sorted(Path(os.environ["SQUEEZE_CORPUS"], "real").iterdir(), key=lambda path: path.stat().st_size)
    smallest = {path.suffix: path for path in reversed(found)}
    return [smallest[kind] for kind in _KINDS if kind in smallest]


def _share(one: str, other: str) -> Column:
    """Make a column of the bytes of one tool, of those of another one."""
    return Column(
        f"of {other.removeprefix('squeeze -3 ')}",
        lambda row: row[one] / row[other] if one in row and other in row else None,
        ".2f",
    )


MEASURE = Measure(
    rows,
    key=("file",),
    needs=("a corpus",),
    rivals=("xz", "zstd", "7z", "precomp", "paq8px"),
    time=20,
    options=(option("--only", default="", help="text in the names of the files to measure"),),
    tables={
        "real": Listing(
            *(Column("file", "file"), Column("raw", "raw", ",")),
            *(Column(tool.label, tool.label, ",") for tool in _TOOLS[:6]),
            *(_share(_OPENED, _CLOSED), _share(_OPENED, _PRECOMP.label)),
            *(Column(tool.label, tool.label, ",") for tool in _SLOW),
            _share(_SLOW[1].label, _SLOW[0].label),
            prepare=with_total,
        ),
    },
)
