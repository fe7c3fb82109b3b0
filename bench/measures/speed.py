"""Measure bytes and speed of levels and other compressors, also as multiples of one rival's speed in the same run.

Tools take turns on a file, and the shortest times count. squeeze runs inside this process, after a warm-up; the others
run as whole processes. All use one thread. Each run compares the restored bytes. Times are CPU time, so that other load
on the machine matters little.
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
from squeeze.recipes.measure.benchmark import Tool

_FILE = "enwik8.1m"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = choose_tools(options.levels, ",".join([options.base, *options.against.split(",")]))
    rival = choose_tools("", options.base)[0].name
    for path in map(find_file, options.files or [Path(_FILE)]):
        times = shortest_times(tools, path, options.runs)
        raw, (_, *base) = path.stat().st_size, times[rival]
        for tool in tools:
            size, packing, unpacking = times[tool.name]
            row = {"file": path.name, "raw": raw, "tool": tool.name, "base": rival, "bytes": size}
            row |= {"compress MB/s": round(raw / 1e6 / packing, 4), "decompress MB/s": round(raw / 1e6 / unpacking, 4)}
            yield row | {"compress": round(base[0] / packing, 3), "decompress": round(base[1] / unpacking, 3)}


def shortest_times(tools: list[Tool], path: Path, runs: int) -> dict[str, tuple[int, float, float]]:
    """Return bytes, and the shortest seconds of compression and decompression, by tool.

    Args:
        tools: compressors
        path: file
        runs: runs of each tool
    """
    with patch.object(benchmark, "time", SimpleNamespace(perf_counter=processor_seconds)):
        taken = [{tool.name: tool.run(path) for tool in tools} for _ in range(runs)]
    return {
        tool.name: tuple(min(column) for column in zip(*(one[tool.name] for one in taken), strict=True))
        for tool in tools
    }


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
        option("--base", default="zpaq", help="rival whose speed is 1, default: zpaq"),
        option("--against", default="xz,zstd,brotli,bzip2,7z", help="other rivals, default: xz,zstd,brotli,bzip2,7z"),
        option("--runs", type=int, default=1, help="runs of each tool, default: 1"),
    ),
    quick="alice29.txt --levels 1,3",
    tables={
        "speed": Listing(
            (
                Column("tool", "tool"),
                Column("bits per byte", lambda row: 8 * row["bytes"] / row["raw"], ".3f"),
                Column("compression speed, x zpaq -m5", significant("compress", 3)),
                Column("decompression speed, x zpaq -m5", significant("decompress", 3)),
                Column("compression, MB/s", significant("compress MB/s", 2)),
                Column("decompression, MB/s", significant("decompress MB/s", 2)),
            ),
            where=lambda row: row["file"] == _FILE,
            order=lambda row: -row["bytes"],
        )
    },
)
