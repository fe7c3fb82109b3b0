"""Sizes of any files beside those that another squeeze makes of them: an older one, on files newer than its corpus.

The other one is an interpreter that has it installed, or a checkout, which this interpreter runs (`git worktree add
OLD REVISION`). Both are programs of their own, and every result is decoded. A file shorter than a prefix is not among
that prefix's. Means are of the files' ratios, each counting the same (geometric).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.shared import squeeze_sizes
from bench.shared.texts import found

Job = tuple[Path, int | None, int]  # file, bytes from its start (None: all), level
Command = tuple[list[str], dict[str, str]]  # with its environment


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """One row a file, prefix and level; then for each prefix and level the mean of all files, and the worst."""
    jobs = list(_jobs(options))
    for path, count in _too_short(options):
        print(f"{path.name}: shorter than {count:,} bytes, so it is not among those", file=sys.stderr)
    if not jobs:
        sys.exit("Error: no file is as long as a prefix")
    ours, theirs = (_sizes(_command(place), jobs) for place in (None, options.against))
    ratios: dict[tuple[int | None, int], list[tuple[float, str]]] = {}
    for (path, count, level), size, other in zip(jobs, ours, theirs, strict=True):
        ratios.setdefault((count, level), []).append((size / other, path.name))
        of = path.stat().st_size if count is None else count
        yield {"file": path.name, "of": of, "level": level, "bytes": size, "against": other, "ratio": size / other}
    for (count, level), of_files in ratios.items():
        worst, name = max(of_files)
        mean = statistics.geometric_mean([ratio for ratio, _ in of_files])
        total = {
            "name": options.name,
            "files": len(of_files),
            "of": "all" if count is None else count,
            "level": level,
            "mean ratio": mean,
        }
        yield total | {"worst": worst, "worst of": name}


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    for count in _prefixes(options) or [None]:
        for level in map(int, options.levels.split(",")):
            yield from ((path, count, level) for path in _paths(options) if path.stat().st_size >= max(count or 0, 1))


def _too_short(options: argparse.Namespace) -> Iterator[tuple[Path, int]]:
    """Files with each prefix that they are shorter than."""
    for count in _prefixes(options):
        yield from ((path, count) for path in _paths(options) if path.stat().st_size < count)


def _prefixes(options: argparse.Namespace) -> list[int]:
    return [int(prefix) for prefix in options.prefixes.split(",")] if options.prefixes else []


def _paths(options: argparse.Namespace) -> list[Path]:
    return [found(path).resolve() for path in options.files]


def _command(place: Path | None) -> Command:
    """What runs squeeze_sizes.py: beside this squeeze (None), one in a checkout, or one that an interpreter has."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    interpreter = sys.executable
    if place is None or place.is_dir():
        folder = Path(squeeze.__file__).parents[1] if place is None else place.resolve()
        if not (folder / "squeeze").is_dir():
            sys.exit(f"Error: {place} holds no folder squeeze: give a checkout, or an interpreter")
        environment["PYTHONPATH"] = str(folder)
    else:
        interpreter = str(place)
    return [interpreter, squeeze_sizes.__file__], environment


def _sizes(command: Command, jobs: list[Job]) -> list[int]:
    words, environment = command
    told = json.dumps([(str(path), count, level) for path, count, level in jobs])
    try:
        done = subprocess.run(words, input=told, env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        sys.exit(f"Error: {words[0]}: {error.strerror}")
    if done.returncode:
        sys.exit(f"Error: {words[0]}: {done.stderr.strip().splitlines()[-1]}")
    which, *sizes = done.stdout.splitlines()
    print("squeeze {version} in {folder}".format(**json.loads(which)), file=sys.stderr)
    return list(map(int, sizes))
