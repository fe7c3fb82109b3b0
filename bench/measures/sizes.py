"""Bytes of files at each level and with other compressors; see bench/entries/sizes.py."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.shared.texts import found
from squeeze.recipes import benchmark
from squeeze.recipes.benchmark import Rival, Tool

FOLDERS = ("text", "binary")
# And one that no package brings: https://github.com/hxim/paq8px.
RIVALS = benchmark.RIVALS | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False)
}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    tools = chosen(options.levels, options.against, options.threads)
    for path in [*map(found, options.files)] or corpus(options.below):
        for tool in tools:
            coded, *_ = tool.run(path)
            yield {"file": path.name, "raw": path.stat().st_size, "tool": tool.name, "bytes": int(coded)}


def chosen(levels: str, against: str, threads: int = 1) -> list[Tool]:
    """The tools named, with a note on each that is not installed. Each proves its round trip whenever it runs."""
    numbers = [int(level) for level in levels.split(",") if level]
    rivals = [name for name in against.split(",") if name]
    tools, notes = benchmark.choose(numbers or (3,), rivals, False, threads, RIVALS)
    for note in notes:
        print(f"Note: {note}", file=sys.stderr)
    return tools if numbers else tools[1:]


def corpus(below: int | None = None) -> list[Path]:
    """All files of the corpus with fewer bytes than `below`, the smallest first."""
    folders = [Path(os.environ["SQUEEZE_CORPUS"], name) for name in FOLDERS]
    paths = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    sized = sorted((path.stat().st_size, path.name, path) for path in paths)
    return [path for size, _, path in sized if below is None or size < below]
