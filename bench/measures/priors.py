"""Small records, each compressed alone: a trained dictionary, and zstd with one.

Both are trained on the same records, none of which is measured. "events" are JSON generated from a
seed; "articles" are paragraphs of WikiText under SQUEEZE_CORPUS as JSON, trained on one file and measured on another;
"sources" are small source files of this Python's standard library, fewer than the others. Every record is
restored and compared first. Bytes are those of whole files, headers and checksums counted, without the dictionary or
dictionary, whose size has its own column. zstd is the program at -19, with dictionaries of several sizes, of which the
smallest result is the bar; xz and brotli have no dictionary. So that ours hold as much, the last level is measured with
a dictionary of more text, too.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import squeeze
from bench.entry import Row
from bench.shared import source_files
from bench.shared.json_records import articles, events

DICTIONARIES = (32 << 10, 110 << 10, 220 << 10, 512 << 10)  # bytes; zstd --train makes 110 KiB when nothing is said
Result = tuple[str, float, int, float]  # tool, mean bytes a record, bytes of what was trained, seconds a record


def sets(names: list[str], train: int, count: int) -> Iterator[tuple[str, list[bytes], list[bytes]]]:
    """(name, records to train on, records to measure)."""
    for name in names:
        if name == "events":
            yield name, events(train, 1), events(count, 2)
        elif name == "sources":
            yield name, *source_files.divided(train, count)
        elif "SQUEEZE_CORPUS" in os.environ:
            text = Path(os.environ["SQUEEZE_CORPUS"]) / "text"
            yield name, articles(text / "wiki.calibration.raw", train), articles(text / "wiki.eval.raw", count)


def write(records: list[bytes], folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / str(i) for i in range(len(records))]
    for path, record in zip(paths, records, strict=True):
        path.write_bytes(record)
    return paths


def measure_squeeze(level: int, train: list[bytes], records: list[bytes], folder: Path, text: int = 0) -> Result:
    """text: KiB that the dictionary holds; 0 for what it holds when nothing is said."""
    path, size = folder / f"{level}-{text}.sqzp", {"text_size": text << 10} if text else {}
    known = squeeze.train(train, path, level=level, **size)
    squeeze.compress(records[0], dictionary=known)  # compiles, and reads the dictionary's text
    start = time.perf_counter()
    total = coded_bytes(records, level, known)
    tool = f"squeeze -{level}, {text:,} KiB of samples" if text else f"squeeze -{level}"
    return tool, total / len(records), path.stat().st_size, (time.perf_counter() - start) / len(records)


def coded_bytes(records: list[bytes], level: int, dictionary: squeeze.Dictionary | None) -> int:
    """Of all records, each compressed alone and restored."""
    total = 0
    for record in records:
        coded = squeeze.compress(record, level, dictionary=dictionary, verify=False)
        if squeeze.decompress(coded, dictionary=dictionary) != record:
            raise SystemExit("Error: the round trip changed a record")
        total += len(coded)
    return total


def measure_zstd(size: int, records: list[bytes], folder: Path) -> Result:
    """Records and training records lie in `folder` as files."""
    dictionary = folder / f"{size}.dictionary"
    options = ["--train", f"--maxdict={size}", "-o", str(dictionary), "-r", str(folder / "train")]
    _run(["zstd", "-q", *options])
    start = time.perf_counter()
    names = [str(folder / "records" / str(i)) for i in range(len(records))]
    _run(["zstd", "-q", "-f", "-19", "-D", str(dictionary), *names])
    seconds = (time.perf_counter() - start) / len(records)
    coded = [Path(f"{name}.zst") for name in names]
    total = sum(path.stat().st_size for path in coded)
    for path, record in zip(coded, records, strict=True):
        if _run(["zstd", "-q", "-d", "-c", "-D", str(dictionary), str(path)]) != record:
            raise SystemExit("Error: zstd changed a record")
    return f"zstd -19, dictionary {size >> 10} KiB", total / len(records), dictionary.stat().st_size, seconds


def measure_plain(name: str, pack: list[str], unpack: list[str], records: list[bytes]) -> Result:
    total, start = 0, time.perf_counter()
    for record in records:
        coded = _run(pack, record)
        if _run(unpack, coded) != record:
            raise SystemExit(f"Error: {name} changed a record")
        total += len(coded)
    return name, total / len(records), 0, (time.perf_counter() - start) / len(records)


def _run(command: list[str], data: bytes = b"") -> bytes:
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def measure(levels: list[int], text: int, train: list[bytes], records: list[bytes]) -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(train, folder / "train")
        write(records, folder / "records")
        if shutil.which("zstd"):
            for size in DICTIONARIES:
                yield measure_zstd(size, records, folder)
            yield measure_plain("zstd -19", ["zstd", "-q", "-19", "-c"], ["zstd", "-q", "-dc"], records)
        if shutil.which("xz"):
            yield measure_plain("xz -9e", ["xz", "-9e", "-c"], ["xz", "-dc"], records)
        if shutil.which("brotli"):
            yield measure_plain("brotli -q 11", ["brotli", "-q", "11", "-c"], ["brotli", "-dc"], records)
        for level in levels:
            yield measure_squeeze(level, train, records, folder)
        if text:
            yield measure_squeeze(levels[-1], train, records, folder, text)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for name, train, records in sets(options.sets.split(","), options.train, options.records):
        raw = sum(map(len, records)) / len(records)
        results = list(measure([int(n) for n in options.levels.split(",")], options.text, train, records))
        bar = min((size for tool, size, _, _ in results if tool.startswith("zstd")), default=float("nan"))
        for tool, size, learned, seconds in results:
            row = {"set": name, "records": len(records), "raw": round(raw, 1), "trained": len(train), "tool": tool}
            row |= {"bytes": round(size, 2), "share": round(size / bar, 4), "learned": learned}
            yield row | {"seconds": round(seconds, 4)}
