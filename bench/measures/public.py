"""Compressors that people ask about, and every level of squeeze, on files of several kinds.

Each tool runs as a whole process on one thread, start-up included, and must restore the bytes; those of a small file
with two OpenMP threads as well. Seconds are CPU time, so that other work on the machine counts for little; memory is
the peak of a process. squeeze runs with --no-verify, as the others do not verify either. Slow tools take only the cases
below `--slow` bytes. A run that was stopped continues: what has a result is not measured again without `--again`.
"""

import argparse
import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import records
from bench.measure import Measure, Row, option
from bench.shared import openzl_command
from bench.tables import Column, Listing, Pivot, significant
from squeeze.errors import SqueezeError
from squeeze.recipes import benchmark
from squeeze.recipes.benchmark import Rival


@dataclass(frozen=True)
class Case:
    """Files of one kind, each compressed alone."""

    name: str
    kind: str
    contents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.contents))


def _ours(level: int) -> Rival:
    coding = f"-m squeeze compress -{level} -T1 --no-verify -c raw"
    return Rival((sys.executable,), f"squeeze -{level}", coding, "-m squeeze decompress -T1 -c coded")


_OPENZL = shlex.quote(openzl_command.__file__)
FAST = {f"squeeze -{level}": _ours(level) for level in range(1, 7)} | {
    **{name: benchmark.RIVALS[name] for name in ("zstd", "xz", "brotli", "bzip2", "7z", "zpaq", "lpaq1")},
    "openzl": Rival((sys.executable,), "OpenZL 19", f"{_OPENZL} c raw", f"{_OPENZL} d coded"),
}
SLOW = {f"squeeze -{level}": _ours(level) for level in range(7, 10)} | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False),
    "cmix": Rival(("cmix",), "cmix", "-c raw coded", "-d coded out/raw", to_stdout=False),
    "statesmix": Rival(("statesmix",), "StateSMix", "c raw coded", "d coded out/raw", to_stdout=False),
}
_SMALL = 200_000  # bytes that are restored twice


def rows(options: argparse.Namespace) -> Iterator[Row]:
    done = [] if options.again else records.current("public", options.results)
    measured = {(row["file"], row["tool"]) for row in done}
    for case in cases(options.only):
        for name, rival in (FAST | SLOW).items():
            program = next(filter(None, map(shutil.which, rival.programs)), None)
            too_slow = name in SLOW and case.size > options.slow
            if (case.name, rival.label) in measured or too_slow or name in options.without.split(","):
                continue
            if program is None or (name == "openzl" and not openzl_command.is_installed()):
                print(f"Note: {name} is not installed; skipped", file=sys.stderr)
                continue
            about = {"file": case.name, "kind": case.kind, "raw": case.size, "tool": rival.label}
            yield about | _run(case, rival, program)


def cases(only: str = "") -> list[Case]:
    """What is measured: the corpus, sources of Python's own library, and a log of Debian's package manager."""
    corpus = Path(os.environ["SQUEEZE_CORPUS"])
    named = (
        *(
            ("alice29.txt", "text", "text"),
            ("enwik8.1m", "text", "text"),
            ("llm-changelog-2026.md", "text", "new"),
        ),
        *(("twitter.json", "text", "JSON"), ("bash.elf", "binary", "program"), ("kennedy.xls", "binary", "table")),
    )
    found = [Case(name, kind, ((corpus / folder / name).read_bytes(),)) for name, folder, kind in named]
    sources = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    found.append(Case("asyncio", "code", (b"".join(path.read_bytes() for path in sources),)))
    log = Path("/var/log/dpkg.log")
    if log.is_file():
        found.append(Case("dpkg.log", "log", (log.read_bytes()[:300_000],)))
    small = [corpus / "binary" / name for name in ("grammar.lsp", "xargs.1", "fields.c", "cp.html")]
    found.append(Case("four small files", "small files", tuple(path.read_bytes() for path in small)))
    return [case for case in found if only in case.name]


def _run(case: Case, rival: Rival, program: str) -> Row:
    """Bytes, seconds and memory of both ways; `lost` says how the bytes did not come back."""
    found: Row = {"bytes": 0, "compress s": 0.0, "decompress s": 0.0, "compress MB": 0.0, "decompress MB": 0.0}
    for content in case.contents:
        try:
            trips = [_round_trip(content, rival, program, setting) for setting in rival.settings]
        except SqueezeError as error:
            return {**found, "lost": str(error)}
        size, (packing, unpacking) = min(trips)
        found["bytes"] += size
        for name, (seconds, memory) in (("compress", packing), ("decompress", unpacking)):
            found[f"{name} s"] = round(found[f"{name} s"] + seconds, 3)
            found[f"{name} MB"] = max(found[f"{name} MB"], round(memory, 1))
    return found


Cost = tuple[float, float]  # seconds of the processor, and megabytes


def _round_trip(content: bytes, rival: Rival, program: str, setting: str) -> tuple[int, tuple[Cost, Cost]]:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        folder = Path(name)
        (folder / "raw").write_bytes(content)
        (folder / "out").mkdir()
        pack = [program, *shlex.split(rival.pack.format(setting=setting))]
        packing = _cost(pack, folder, folder / "coded" if rival.to_stdout else None)
        (folder / "raw").unlink()
        restored, coded = folder / "out" / "raw", next(folder.glob("coded*"))
        unpack = [program, *shlex.split(rival.unpack)]
        for threads in (2, 1) if len(content) < _SMALL else (1,):
            restored.unlink(missing_ok=True)
            unpacking = _cost(unpack, folder, restored if rival.to_stdout else None, threads)
            if not restored.is_file() or restored.read_bytes() != content:
                raise SqueezeError(f"other bytes came back with {threads} thread{'s' * (threads > 1)}")
        return coded.stat().st_size, (packing, unpacking)


# Of a process that a small one starts: a fork of this one would have its memory for the most that it held.
_STARTER = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[2:], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
with open(sys.argv[1], "w") as report:
    print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=report)
"""


def _cost(command: list[str], folder: Path, output: Path | None, threads: int = 1) -> Cost:
    environment, report = os.environ | {"OMP_NUM_THREADS": str(threads)}, folder / "report"
    with (output or folder / "ignored").open("wb") as sink:
        starting = [sys.executable, "-I", "-S", "-c", _STARTER, report.name, *command]
        subprocess.run(starting, cwd=folder, env=environment, stdout=sink, check=True)
    status, seconds, kilobytes = report.read_text().split()
    if status != "0":
        raise SqueezeError(f"{Path(command[0]).name} ended with {status}")
    return float(seconds), int(kilobytes) / 1024


_NEURAL = ("StateSMix", "cmix", "paq8px -8", "lpaq1 9", "zpaq -m5")
_TOOLS = (*("zstd -19 long", "OpenZL 19", "bzip2 -9", "brotli -q 11", "xz -9e", "7z PPMd best"), *_NEURAL[::-1])
_ORDER = (*_TOOLS, *(f"squeeze -{level}" for level in range(1, 10)))
_FILES = {
    "alice29.txt": "alice29",
    "enwik8.1m": "enwik8, first MB",
    "llm-changelog-2026.md": "text newer than the models",
    "asyncio": "Python",
    "twitter.json": "JSON",
    "dpkg.log": "log",
    "bash.elf": "program",
    "kennedy.xls": "table",
    "four small files": "four small files",
}
_LEVELS = {  # what a level is, and what it is for
    1: ("context mixing, few contexts", "the least time"),
    2: ("context mixing, more contexts", "the least time"),
    3: ("context mixing, larger tables; the default", "everything"),
    4: ("many more contexts, two layers of mixing", "archives"),
    5: ("as -4, and a small pretrained network", "small files, archives"),
    6: ("a small pretrained network, and the most contexts", "small files, archives"),
    7: ("text: a language model, window of 512 tokens; all else as -6", "English text"),
    8: ("text: a language model, window of 1,024 tokens; all else as -6", "English text"),
    9: ("text: a language model, window of 4,096 tokens; all else as -6", "English text"),
}


def _order(row: Row) -> int:
    return _ORDER.index(row["tool"])


def compared_with_zpaq(rows: Sequence[Row]) -> list[Row]:
    """Add speeds as multiples of zpaq's."""
    base = next((row for row in rows if row["tool"] == "zpaq -m5"), None)
    ways = ("compress", "decompress")
    return [row | {way: base[f"{way} s"] / row[f"{way} s"] for way in ways} if base else row for row in rows]


def _costs(file: str) -> Listing:
    ways = ("compress", "decompress")
    return Listing(
        (
            Column("tool", "tool"),
            Column("bits per byte", lambda row: 8 * row["bytes"] / row["raw"], ".3f"),
            *(Column(f"{way}ion speed, x zpaq -m5", significant(way, 3)) for way in ways),
            *(Column(f"{way}ion, MB", f"{way} MB", ",.0f") for way in ways),
        ),
        where=lambda row: row["file"] == file and "lost" not in row,
        order=_order,
        prepare=compared_with_zpaq,
    )


def _level(row: Row) -> int:
    """Return the level of a row of squeeze, 0 for other tools."""
    return int(row["tool"].rpartition("-")[2]) if row["tool"].startswith("squeeze -") else 0


def _is_of_its_level(row: Row) -> bool:
    """Whether a row is of the file that levels are compared on: a megabyte, or less with a language model."""
    return _level(row) > 0 and row["file"] == ("alice29.txt" if _level(row) > 6 else "enwik8.1m")


def all_levels(rows: Sequence[Row]) -> list[Row]:
    """Add rows without figures for levels that were not measured."""
    missing = set(_LEVELS) - set(map(_level, rows))
    return [*rows, *({"tool": f"squeeze -{level}"} for level in sorted(missing))]


def _rate(way: str) -> Column:
    def rate(row: Row) -> str | None:
        return significant("rate", 2)({"rate": row["raw"] / row[f"{way} s"] / 1e6}) if "raw" in row else None

    return Column(f"{way}ion, MB/s", rate)


MEASURE = Measure(
    rows,
    key=("file", "tool"),
    needs=("a corpus",),
    rivals=tuple(name for name in FAST | SLOW if not name.startswith("squeeze")),
    time=90,
    options=(
        option("--only", default="", help="files whose name contains this text"),
        option("--without", default="", help="tools to leave out, separated by commas"),
        option("--slow", type=int, default=200_000, help="bytes up to which slow tools take a file, default: 200000"),
        option("--again", action="store_true", help="also measure what has a result"),
    ),
    tables={
        "public": Pivot(
            (Column("tool", "tool"),),
            "file",
            _FILES,
            lambda row: "lost" if "lost" in row else f"{row['bytes']:,}",
            order=_order,
        ),
        "public-costs": _costs("enwik8.1m"),
        "public-small": _costs("alice29.txt"),
        "levels": Listing(
            (
                Column("level", lambda row: f"-{_level(row)}"),
                Column("models", lambda row: _LEVELS[_level(row)][0]),
                Column("for", lambda row: _LEVELS[_level(row)][1]),
                *(_rate("compress"), _rate("decompress")),
                Column("memory on one thread, MB", "compress MB", ",.0f"),
            ),
            where=_is_of_its_level,
            order=_level,
            prepare=all_levels,
        ),
    },
)
