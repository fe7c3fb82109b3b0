"""Compressors that people ask about, ours at every level among them, on files of several kinds.

Each tool runs as a whole process on one thread, start-up included, and must bring the bytes back; those of a small file
with two threads of OpenMP, too. Seconds are of the processor, so that other work on the machine counts for little;
memory is the most that a process held. squeeze does not verify what it writes here, as the others do not. Slow tools
take the cases below `--slow` bytes alone. What has a result is not measured again without `--again`, so that a run that
was stopped goes on.
"""

import argparse
import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import records
from bench.entry import Row
from bench.shared import openzl_command
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

    @property
    def about(self) -> Row:
        return {"file": self.name, "kind": self.kind, "raw": self.size}


def _ours(level: int) -> Rival:
    coding = f"-m squeeze compress -{level} -T1 --no-verify -c raw"
    return Rival((sys.executable,), f"squeeze -{level}", coding, "-m squeeze decompress -T1 -c coded")


_OPENZL = shlex.quote(openzl_command.__file__)
FAST = {f"squeeze -{level}": _ours(level) for level in range(1, 7)} | {
    "zstd": benchmark.RIVALS["zstd"],
    "xz": benchmark.RIVALS["xz"],
    "brotli": benchmark.RIVALS["brotli"],
    "bzip2": benchmark.RIVALS["bzip2"],
    "7z": benchmark.RIVALS["7z"],
    "zpaq": benchmark.RIVALS["zpaq"],
    "lpaq1": benchmark.RIVALS["lpaq1"],
    "openzl": Rival((sys.executable,), "OpenZL 19", f"{_OPENZL} c raw", f"{_OPENZL} d coded"),
}
SLOW = {f"squeeze -{level}": _ours(level) for level in range(7, 10)} | {
    "paq8px": Rival(("paq8px",), "paq8px -8", "-8 raw coded", "-d coded out/raw", to_stdout=False),
    "cmix": Rival(("cmix",), "cmix", "-c raw coded", "-d coded out/raw", to_stdout=False),
    "statesmix": Rival(("statesmix",), "StateSMix", "c raw coded", "d coded out/raw", to_stdout=False),
}
_SMALL = 200_000  # bytes that are restored twice
# Bits per byte that others published of the same file, and where.
PUBLISHED = (
    ("ts_zip (rwkv 169M)", "alice29.txt", 1.142, "https://bellard.org/ts_zip/"),
    ("Nacrith (SmolLM2-135M)", "alice29.txt", 0.918, "https://github.com/robtacconelli/Nacrith-GPU"),
)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    done = set() if options.again else _measured(options.results)
    for case in cases(options.only):
        for name, rival in (FAST | SLOW).items():
            program = next(filter(None, map(shutil.which, rival.programs)), None)
            too_slow = name in SLOW and case.size > options.slow
            if (case.name, rival.label) in done or too_slow or name in options.without.split(","):
                continue
            if program is None or (name == "openzl" and not openzl_command.is_installed()):
                print(f"Note: {name} is not installed; skipped", file=sys.stderr)
                continue
            yield {
                "file": case.name,
                "kind": case.kind,
                "raw": case.size,
                "tool": rival.label,
                **_run(case, rival, program),
            }
        for tool, file, bits, source in PUBLISHED:
            if file == case.name and (file, tool) not in done:
                size = round(bits * case.size / 8)
                yield {
                    "file": file,
                    "kind": case.kind,
                    "raw": case.size,
                    "tool": tool,
                    "bytes": size,
                    "published": source,
                }


def cases(only: str = "") -> list[Case]:
    """What is measured: the corpus, sources of Python's own library, and a log of Debian's package manager."""
    corpus = Path(os.environ["SQUEEZE_CORPUS"])
    named = [
        *(
            ("alice29.txt", "text", "text"),
            ("enwik8.1m", "text", "text"),
            ("llm-changelog-2026.md", "text", "new text"),
        ),
        *(("twitter.json", "text", "JSON"), ("bash.elf", "binary", "program"), ("kennedy.xls", "binary", "table")),
    ]
    found = [Case(name, kind, ((corpus / folder / name).read_bytes(),)) for name, folder, kind in named]
    sources = sorted(Path(asyncio.__file__).parent.glob("*.py"))
    found.append(
        Case(f"asyncio of Python {sys.version_info.major}.{sys.version_info.minor}", "code", (_joined(sources),))
    )
    log = Path("/var/log/dpkg.log")
    if log.is_file():
        found.append(Case("dpkg.log", "log", (log.read_bytes()[:300_000],)))
    small = [corpus / "binary" / name for name in ("grammar.lsp", "xargs.1", "fields.c", "cp.html")]
    found.append(Case("four small files", "small files", tuple(path.read_bytes() for path in small)))
    return [case for case in found if only in case.name]


def _joined(paths: list[Path]) -> bytes:
    return b"".join(path.read_bytes() for path in paths)


def _measured(results: Path) -> set[tuple[str, str]]:
    return {(one["row"]["file"], one["row"]["tool"]) for one in records.load("public", results)}


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
