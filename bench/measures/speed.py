"""Speed of levels and other compressors on files, as multiples of one rival's in the same run.

Every tool takes its turn on a file before any has its second, and the shortest times count. squeeze runs inside this
process, warmed up, the others as whole processes, all on one thread; each run proves its round trip. Times are
processor time, so that other work on the machine counts for little.
"""

import argparse
import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from bench.entry import Row
from bench.measures.sizes import chosen, corpus
from bench.shared.texts import found
from squeeze.recipes import benchmark
from squeeze.recipes.benchmark import Tool


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = chosen(options.levels, ",".join([options.base, *options.against.split(",")]))
    rival = chosen("", options.base)[0].name
    files = [*map(found, options.files)]
    for path in files or [path for path in corpus(options.below) if path.stat().st_size >= 100_000]:
        times = turns(tools, path, options.runs)
        raw, (_, *base) = path.stat().st_size, times[rival]
        for tool in tools:
            size, packing, unpacking = times[tool.name]
            row = {"file": path.name, "raw": raw, "tool": tool.name, "base": rival, "bytes": size}
            row |= {"compress MB/s": round(raw / 1e6 / packing, 4), "decompress MB/s": round(raw / 1e6 / unpacking, 4)}
            yield row | {"compress": round(base[0] / packing, 3), "decompress": round(base[1] / unpacking, 3)}


def turns(tools: list[Tool], path: Path, runs: int) -> dict[str, tuple[int, float, float]]:
    """Bytes, and the shortest seconds of compressing and decompressing, of each tool."""
    with patch.object(benchmark, "time", SimpleNamespace(perf_counter=processor_seconds)):
        taken = [{tool.name: tool.run(path) for tool in tools} for _ in range(runs)]
    return {
        tool.name: tuple(min(column) for column in zip(*(one[tool.name] for one in taken), strict=True))
        for tool in tools
    }


def processor_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
