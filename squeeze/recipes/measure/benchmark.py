"""Comparison of squeeze with other compressors: each round trip is checked, then timed.

Other tools run as processes, on one thread. squeeze runs in this process, without verification and after a warm-up, or
also as a process.
"""

import io
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from squeeze.codecs.stream import estimates, levels as known
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.resources import LanguageOptions
from squeeze.errors import SqueezeError

Cost = TypeVar("Cost", float, tuple[float, float])  # seconds, or also the megabytes of memory
_WARM_UP = bytes(range(256)) * 16
_WARM_UP_TEXT = b"Every word of this is here to be compiled for. " * 8


@dataclass(frozen=True)
class Result:
    """Size and times of one file with one tool, or an error, which leaves the numbers at zero."""

    file: str
    tool: str
    raw_size: int
    coded_size: int = 0
    compress_seconds: float = 0.0
    decompress_seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class Tool:
    """A compressor; `run` checks the round trip of a file and returns the coded size and the seconds of both
    directions.
    """

    name: str
    run: Callable[[Path], tuple[int, float, float]]


@dataclass(frozen=True)
class Rival:
    """Two commands of another compressor, run in a folder with a file `raw`: one makes `coded`, the other `out/raw`.

    If `to_stdout`, both write to standard output. If there are several `settings`, each replaces {setting} in turn and
    the smallest result counts.
    """

    programs: tuple[str, ...]
    label: str
    pack: str
    unpack: str
    settings: tuple[str, ...] = ("",)
    to_stdout: bool = True


RIVALS = {
    "xz": Rival(("xz",), "xz -9e", "-9e -T1 -c raw", "-T1 -dc coded"),
    "zstd": Rival(
        *(("zstd",), "zstd -19 long"),
        "-q -19 --ultra --long=27 --single-thread -c raw",
        "-q --long=27 -dc coded",
    ),
    "brotli": Rival(("brotli",), "brotli -q 11", "-q 11 -c raw", "-dc coded"),
    "bzip2": Rival(("bzip2",), "bzip2 -9", "-9 -c raw", "-dc coded"),
    "zpaq": Rival(
        *(("zpaq",), "zpaq -m5"),
        "add coded.zpaq raw -m5 -t1",
        "extract coded.zpaq raw -to out/raw -t1",
        to_stdout=False,
    ),
    "lpaq1": Rival(("lpaq1",), "lpaq1 9", "9 raw coded", "d coded out/raw", to_stdout=False),
    "7z": Rival(
        *(("7zz", "7z"), "7z PPMd best"),
        "a -t7z -m0=PPMd:o={setting}:mem=256m -mmt=1 coded.7z raw",
        "x -oout -mmt=1 coded.7z",
        *(("8", "16", "32"), False),
    ),
}

_RIVAL = 1 << 30  # bytes of memory of any of them


def choose(
    levels: Iterable[int],
    against: Iterable[str],
    processes: bool,
    threads: int = 1,
    rivals: Mapping[str, Rival] = RIVALS,
) -> tuple[list[Tool], list[str]]:
    """Return the tools to measure, and a note for each rival that is not installed.

    Args:
        levels: Levels of squeeze; the default level if empty.
        against: Names of rivals.
        processes: Whether squeeze runs as a process.
        threads: Threads of squeeze.
        rivals: All known rivals by name.

    Raises:
        SqueezeError: If a rival is unknown.
        LevelError: If a level cannot be used.
    """
    tools, notes = [], []
    for level in sorted(set(levels)) or [known.DEFAULT]:
        known.level(level)
        tools.append(_squeeze_tool(level, processes, threads))
    for name in against:
        if name not in rivals:
            raise SqueezeError(f"unknown rival {name!r}; choose from {', '.join(rivals)}")
        rival = rivals[name]
        program = next(filter(None, map(shutil.which, rival.programs)), None)
        if program:
            tools.append(_rival_tool(rival, program))
        else:
            notes.append(f"{name} is not installed; skipped")
    return tools, notes


def memory(levels: Sequence[int], against: Sequence[str], threads: int) -> int:
    """Return the bytes of memory that the largest of the tools needs which `choose` returns for these arguments."""
    rows = map(known.level, set(levels) or {known.DEFAULT})
    ours = (estimates.memory_to_compress(row, None, threads, LanguageOptions()) for row in rows)
    return max(_RIVAL if against else 0, *ours)


def of_file(
    path: Path, levels: Sequence[int], against: Sequence[str], processes: bool, threads: int, runs: int
) -> list[Result]:
    """Measure one file with all tools that are installed, as a task of a worker."""
    return list(measure([path], choose(levels, against, processes, threads)[0], runs))


def measure(paths: Sequence[Path], tools: Sequence[Tool], runs: int) -> Iterator[Result]:
    """Measure every file with every tool, and keep the shortest times of `runs` runs."""
    for path in paths:
        raw_size = path.stat().st_size
        for tool in tools:
            try:
                times = [tool.run(path) for _ in range(runs)]
            except SqueezeError as error:
                yield Result(str(path), tool.name, raw_size, error=str(error))
                continue
            coded, packing, unpacking = (min(column) for column in zip(*times, strict=True))
            yield Result(str(path), tool.name, raw_size, int(coded), packing, unpacking)


def _squeeze_tool(level: int, processes: bool, threads: int) -> Tool:
    if processes:
        options = f"compress -{level} -T{threads} --no-verify -c raw"
        rival = Rival((), "", f"-m squeeze {options}", f"-m squeeze decompress -T{threads} -c coded")
        return Tool(f"squeeze -{level}", _rival_tool(rival, sys.executable).run)
    _in_process(_WARM_UP if not known.LEVELS[level].needs_language_model else _WARM_UP_TEXT, level, threads)
    return Tool(f"squeeze -{level}", lambda path: _in_process(path.read_bytes(), level, threads))


def _in_process(data: bytes, level: int, threads: int) -> tuple[int, float, float]:
    coded, restored = io.BytesIO(), io.BytesIO()
    start = time.perf_counter()
    compress_stream(io.BytesIO(data), coded, level=level, threads=threads, verify=False)
    middle = time.perf_counter()
    coded.seek(0)
    decompress_stream(coded, restored, threads=threads)
    end = time.perf_counter()
    if restored.getvalue() != data:
        raise SqueezeError("the round trip changed the bytes")
    return len(coded.getvalue()), middle - start, end - middle


def _rival_tool(rival: Rival, program: str) -> Tool:
    return Tool(rival.label, lambda path: round_trip(rival, program, path, _timed))


def round_trip(rival: Rival, program: str, path: Path, cost: Callable[..., Cost]) -> tuple[int, Cost, Cost]:
    """Code a file, restore it and compare it, with the setting that gives the fewest bytes.

    Args:
        rival: Compressor.
        program: Its program.
        path: File.
        cost: Function that runs a command in a folder, with its output in a file, and returns what it cost.

    Returns:
        The coded size, and the costs of both directions.

    Raises:
        SqueezeError: If the file does not come back.
    """
    return min(_round_trip(rival, program, setting, path, cost) for setting in rival.settings)


def _round_trip(
    rival: Rival, program: str, setting: str, path: Path, cost: Callable[..., Cost]
) -> tuple[int, Cost, Cost]:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        folder = Path(name)
        shutil.copyfile(path, folder / "raw")
        (folder / "out").mkdir()
        pack = [program, *rival.pack.format(setting=setting).split()]
        packing = cost(pack, folder, folder / "coded" if rival.to_stdout else None)
        unpack = [program, *rival.unpack.split()]
        unpacking = cost(unpack, folder, folder / "out" / "raw" if rival.to_stdout else None)
        restored, coded = folder / "out" / "raw", next(folder.glob("coded*"))
        if not restored.is_file() or restored.read_bytes() != path.read_bytes():
            raise SqueezeError("the round trip changed the bytes")
        return coded.stat().st_size, packing, unpacking


def _timed(command: Sequence[str], folder: Path, output: Path | None) -> float:
    """Run a command, with its standard output in the file `output`, and return its seconds."""
    start = time.perf_counter()
    with (output or folder / "ignored").open("wb") as sink:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.PIPE, check=False
        )
    seconds = time.perf_counter() - start
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise SqueezeError(f"{Path(command[0]).name} exited with {done.returncode}: {lines[-1]}")
    return seconds


def table(results: Sequence[Result], runs: int, processes: bool, threads: int = 1) -> str:
    """Return the measurements as columns of text, with totals for each tool that coded every file."""
    condition = "whole processes" if processes else "inside one process, warmed up (without interpreter start-up)"
    lines = [
        f"squeeze: {threads} thread{'s' * (threads > 1)}, {condition}, without verification; "
        "the others: one thread, whole processes.",
        f"Every round trip compared. Shortest of {runs} run{'s' * (runs > 1)}.",
        "",
        _line("file", "tool", "bytes", "ratio", "comp MB/s", "decomp MB/s"),
    ]
    lines += [_row(result) for result in results]
    if len({result.file for result in results}) > 1:
        lines += [_row(total) for total in _totals(results)]
    return "\n".join(lines)


def _totals(results: Sequence[Result]) -> Iterator[Result]:
    for tool in dict.fromkeys(result.tool for result in results):
        rows = [result for result in results if result.tool == tool]
        if not any(row.error for row in rows):
            yield Result(
                *("total", tool, sum(row.raw_size for row in rows), sum(row.coded_size for row in rows)),
                sum(row.compress_seconds for row in rows),
                sum(row.decompress_seconds for row in rows),
            )


def _row(result: Result) -> str:
    name = Path(result.file).name
    if result.error:
        return _line(name, result.tool, "failed", "", "", "")
    ratio = f"{100 * result.coded_size / result.raw_size:.2f} %" if result.raw_size else "-"
    speeds = (result.raw_size / 1e6 / s if s else 0.0 for s in (result.compress_seconds, result.decompress_seconds))
    return _line(name, result.tool, str(result.coded_size), ratio, *(f"{speed:.3f}" for speed in speeds))


def _line(file: str, tool: str, size: str, ratio: str, packing: str, unpacking: str) -> str:
    return f"{file:<24} {tool:<14} {size:>12} {ratio:>9} {packing:>10} {unpacking:>12}"
