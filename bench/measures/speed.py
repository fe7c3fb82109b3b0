"""Measure bytes and speed of levels and other compressors, also as multiples of zpaq's speed in the same run.

squeeze runs inside this process, after a warm-up; the others run as whole processes. All use one thread. Each run
compares the restored bytes. Times are CPU time, so that other load on the machine matters little.
"""

import argparse
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from bench.measure import Measure, Row, option
from bench.measures.sizes import RIVALS, choose_tools
from bench.shared.texts import find_file
from bench.tables import Column, Listing, significant
from squeeze.recipes.measure import benchmark

_FILE, _BASE = "enwik8.1m", "zpaq -m5"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = choose_tools(options.levels, f"zpaq,{options.against}")
    for path in map(find_file, options.files or [Path(_FILE)]):
        with patch.object(benchmark, "time", SimpleNamespace(perf_counter=processor_seconds)):
            taken = {tool.name: tool.run(path) for tool in tools}
        raw, (_, *base) = path.stat().st_size, taken[_BASE]
        for tool, (size, packing, unpacking) in taken.items():
            row: Row = {"file": path.name, "raw": raw, "tool": tool, "base": _BASE, "bytes": size}
            row |= {"compress MB/s": round(raw / 1e6 / packing, 4), "decompress MB/s": round(raw / 1e6 / unpacking, 4)}
            yield row | {"compress": round(base[0] / packing, 3), "decompress": round(base[1] / unpacking, 3)}


def processor_seconds() -> float:
    """Return the CPU time of this process and of the child processes that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


MEASURE = Measure(
    rows,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=tuple(RIVALS),
    time=10,
    options=(
        option("files", nargs="*", type=Path, help=f"files to measure, default: {_FILE} of the corpus"),
        option("--levels", default="1,2,3,4,5,6", help="levels, separated by commas, default: 1,2,3,4,5,6"),
        option("--against", default="xz,zstd,brotli,bzip2,7z", help="other rivals, default: xz,zstd,brotli,bzip2,7z"),
    ),
    tables={
        "speed": Listing(
            Column("tool", "tool"),
            Column("bits per byte", lambda row: 8 * row["bytes"] / row["raw"], ".3f"),
            Column("compression speed, x zpaq -m5", significant("compress", 3)),
            Column("decompression speed, x zpaq -m5", significant("decompress", 3)),
            Column("compression, MB/s", significant("compress MB/s", 2)),
            Column("decompression, MB/s", significant("decompress MB/s", 2)),
            where=lambda row: row["file"] == _FILE,
            order=lambda row: -row["bytes"],
        )
    },
)
