"""Compare widely used compressors with every level of squeeze, on a text, JSON and a program.

Each tool runs as a whole process on one thread, start-up included, and must restore the bytes. Seconds are CPU time, so
that other load on the machine matters little. Memory is the peak of a process. Runs of squeeze have --no-verify, as the
others do not verify either.
A stopped run continues: tools that the record of this commit has are left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.plots import BLUE, ORANGE, Plot, Point, Series
from bench.tables import Column, Listing, significant
from squeeze.errors import SqueezeError
from squeeze.recipes.measure import benchmark
from squeeze.recipes.measure.benchmark import Rival


def ours(level: int, option: str = "") -> Rival:
    """Return squeeze at a level, with an option of `compress` or without, as a whole process."""
    name = f"squeeze -{level} {option}".strip()
    coding = f"-m squeeze compress -{level} -T1 --no-verify {option} -c raw"
    return Rival((sys.executable,), name, coding, "-m squeeze decompress -T1 -c coded")


FAST = {f"squeeze -{level}": ours(level) for level in range(1, 7)} | {
    **{name: benchmark.RIVALS[name] for name in ("zstd", "xz", "brotli", "bzip2", "7z", "zpaq", "lpaq1")},
}
SLOW = {f"squeeze -{level}": ours(level) for level in range(7, 10)} | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False),
}
_FILES = {"text": ("text", "enwik8.1m"), "JSON": ("text", "twitter.json"), "program": ("binary", "bash.elf")}


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the bits per byte of each file by a tool, and the costs of the text. Slow tools have the text alone."""
    known = {row["tool"] for row in records.current("public", options.results)}
    corpus = Path(os.environ["SQUEEZE_CORPUS"])
    rivals = [rival for name, rival in (FAST | SLOW).items() if name not in options.without.split(",")]
    for rival, program in installed(rival for rival in rivals if rival.label not in known):
        row: Row = {"tool": rival.label}
        for kind in ("text",) if rival in SLOW.values() else _FILES:
            path = corpus.joinpath(*_FILES[kind])
            found, raw = measured(path, rival, program), path.stat().st_size
            row[kind] = "lost" if "lost" in found else round(8 * found["bytes"] / raw, 6)
            row |= {"raw": raw, **found} if kind == "text" else {}
        yield row


def installed(rivals: Iterable[Rival]) -> Iterator[tuple[Rival, str]]:
    """Yield compressors with their programs, and print a note for each that is not installed."""
    for rival in rivals:
        program = next(filter(None, map(shutil.which, rival.programs)), None)
        if program:
            yield rival, program
        else:
            print(f"Note: {rival.label} is not installed; skipped", file=sys.stderr)


def measured(path: Path, rival: Rival, program: str) -> Row:
    """Return bytes, seconds and memory of compression and decompression. `lost` describes a round trip that failed."""
    try:
        size, *costs = benchmark.round_trip(rival, program, path, _cost)
    except SqueezeError as error:
        return {"lost": str(error)}
    found: Row = {"bytes": size}
    for name, (seconds, memory) in zip(("compress", "decompress"), costs, strict=True):
        found |= {f"{name} s": round(seconds, 3), f"{name} MB": round(memory, 1)}
    return found


# Of a process that a small one starts: a fork of this one would have its memory for the most that it held.
_STARTER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as report:
    print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=report)
"""


def _cost(command: list[str], folder: Path, output: Path | None) -> tuple[float, float]:
    """Run a command, and return the seconds of the processor and the megabytes of memory."""
    environment, report = os.environ | {"OMP_NUM_THREADS": "1"}, folder / "report"
    with (output or folder / "ignored").open("wb") as sink:
        starting = [sys.executable, "-I", "-S", "-c", _STARTER, report.name, *command]
        subprocess.run(starting, cwd=folder, env=environment, stdout=sink, check=True)
    status, seconds, kilobytes = report.read_text().split()
    if status != "0":
        raise SqueezeError(f"{Path(command[0]).name} ended with {status}")
    return float(seconds), int(kilobytes) / 1024


_OTHERS = (*("zstd -19 long", "bzip2 -9", "brotli -q 11", "xz -9e", "7z PPMd best"), "zpaq -m5", "lpaq1 9", "paq8px -8")
_ORDER = (*_OTHERS, *(f"squeeze -{level}" for level in range(1, 10)))
_LEVELS = {  # the models of a level, and what it is for
    1: ("context mixing, few contexts", "large files"),
    2: ("context mixing, more contexts", "large files"),
    3: ("context mixing, larger tables", "everything; the default"),
    4: ("many contexts, two layers of mixing", "archives"),
    5: ("as -4, and a small pretrained network", "small files"),
    6: ("as -5, with the most contexts", "small files, archives"),
    7: ("text: a language model, window of 512 tokens", "English text"),
    8: ("text: a language model, window of 1,024 tokens", "English text"),
    9: ("text: a language model, window of 4,096 tokens", "English text"),
}


def _bits(kind: str) -> Column:
    """Make a column of the bits per byte of a kind of file."""
    return Column(kind, lambda row: f"{row[kind]:.3f}" if isinstance(row.get(kind), float) else row.get(kind))


def _has_costs(row: Row) -> bool:
    return isinstance(row["text"], float)


def _rate(way: str) -> Column:
    """Make a column of kilobytes per second of CPU time."""

    def rate(row: Row) -> str | None:
        return significant("rate", 2)({"rate": row["raw"] / row[f"{way} s"] / 1e3}) if "raw" in row else None

    return Column(f"{way}ion, KB/s", rate)


def _minutes(row: Row) -> str | None:
    """Return how many minutes compressing 100 MB takes at the rate of this row."""
    return significant("minutes", 2)({"minutes": 1e8 / row["raw"] * row["compress s"] / 60}) if "raw" in row else None


def _level(row: Row) -> int:
    """Return the level of a row of squeeze, 0 for other tools."""
    return int(row["tool"].rpartition("-")[2]) if row["tool"].startswith("squeeze -") else 0


def all_levels(rows: Sequence[Row]) -> list[Row]:
    """Add rows without figures for levels that were not measured."""
    missing = set(_LEVELS) - set(map(_level, rows))
    return [*rows, *({"tool": f"squeeze -{level}"} for level in sorted(missing))]


def series(rows: Sequence[Row]) -> list[Series]:
    """Return the points of the plot: squeeze's levels, joined by a line, and the other tools."""

    def point(row: Row) -> Point:
        return Point(row["raw"] / row["compress s"] / 1e3, row["text"], row["tool"].removeprefix("squeeze "))

    shown = list(filter(_has_costs, rows))
    own, others = ([point(row) for row in shown if (_level(row) > 0) == ours] for ours in (True, False))
    return [Series("squeeze", BLUE, "o", own, True), Series("others", ORANGE, "^", others)]


# Places of the names that would otherwise run into each other or over the line.
_OFFSETS = (
    *(("-1", (7, 2)), ("-2", (0, -14)), ("-3", (4, -13)), ("-4", (-6, 6)), ("-5", (7, -9)), ("-6", (0, 8))),
    *(("-7", (7, -9)), ("-8", (0, 8)), ("-9", (-7, -9)), ("zpaq -m5", (-7, 5)), ("bzip2 -9", (-7, 5))),
    *(("zstd -19 long", (-7, 5)), ("xz -9e", (7, -4))),
)
MEASURE = Measure(
    rows,
    key=("tool",),
    needs=("a corpus",),
    rivals=tuple(name for name in FAST | SLOW if not name.startswith("squeeze")),
    time=75,
    options=(option("--without", default="", help="tools to skip, separated by commas"),),
    tables={
        "public": Listing(Column("tool", "tool"), *map(_bits, _FILES), order=lambda row: _ORDER.index(row["tool"])),
        "public-costs": Listing(
            Column("tool", "tool"),
            Column("bits per byte", "text", ".3f"),
            *(_rate("compress"), _rate("decompress")),
            *(Column(f"{way}ion, MB of memory", f"{way} MB", ",.0f") for way in ("compress", "decompress")),
            where=_has_costs,
            order=lambda row: _ORDER.index(row["tool"]),
        ),
        "levels": Listing(
            Column("level", lambda row: f"-{_level(row)}"),
            Column("models", lambda row: _LEVELS[_level(row)][0]),
            Column("for", lambda row: _LEVELS[_level(row)][1]),
            *(_rate("compress"), _rate("decompress")),
            Column("minutes for 100 MB", _minutes),
            Column("memory per thread, MB", "compress MB", ",.0f"),
            where=lambda row: _level(row) > 0,
            order=_level,
            prepare=all_levels,
        ),
    },
    plots={
        "files": Plot(
            "Bits per byte against the speed of compression, for the levels of squeeze and other compressors",
            series,
            "speed of compression, KB per second of CPU time",
            "bits per byte, first megabyte of enwik8",
            log="x",
            offsets=_OFFSETS,
        )
    },
)
