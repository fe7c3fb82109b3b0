"""Level 8 with its language model on a GPU: speed both ways, and a file that a CPU decodes.

A first short text compiles everything. Then a text is compressed and decompressed on the GPU, and what comes back is
compared. The beginning of it is compressed on the GPU, too, and decompressed on the CPU. Without a corpus the text is
Python's own sources.
"""

import argparse
import os
import time
from collections.abc import Iterator

import torch

import squeeze
from bench.entries import gpus
from bench.entry import Row
from bench.shared import alone
from bench.shared.source_files import joined
from bench.shared.texts import read

_FIRST = 20_000  # bytes
_CORPUS = "enwik8.10m"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    about = {"text": _text(options), "bytes": options.bytes, "lanes": options.lanes}
    about |= {"model": str(options.model or "smollm2"), "on CPU": options.on_cpu, "threads": options.threads}
    about |= {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    return alone.row_of("gpu-files", about, measured, options)


def measured(options: argparse.Namespace) -> Iterator[Row]:
    data = read(options.file, _CORPUS, options.bytes) if _is_named(options) else joined(options.bytes)
    how = {"model": options.model, "lanes": options.lanes, "threads": options.threads or None}

    def compressed(part: bytes) -> tuple[bytes, float]:
        start = time.perf_counter()
        found = squeeze.compress(part, 8, verify=False, device="cuda", **how)
        return found, time.perf_counter() - start

    def decompressed(coded: bytes, device: str) -> tuple[bytes, float]:
        start = time.perf_counter()
        found = squeeze.decompress(coded, model=options.model, device=device, threads=options.threads or None)
        return found, time.perf_counter() - start

    decompressed(compressed(data[:_FIRST])[0], "cuda")
    coded, there = compressed(data)
    restored, back = decompressed(coded, "cuda")
    small, _ = compressed(data[: options.on_cpu])
    if options.keep:
        (options.keep / "text.sqz").write_bytes(coded)
        (options.keep / "beginning.sqz").write_bytes(small)
    on_cpu, _ = decompressed(small, "cpu") if small else (b"", 0.0)
    if restored != data or on_cpu != data[: options.on_cpu]:
        raise SystemExit("Error: what was decoded differs")
    speeds = {"compress, KB/s": len(data) / there / 1000, "decompress, KB/s": len(data) / back / 1000}
    about = {"of": len(data), "status": gpus.MEASURED}
    yield about | {"size": len(coded), **speeds, "decoded on a CPU": len(on_cpu)}


def _is_named(options: argparse.Namespace) -> bool:
    return bool(options.file or os.environ.get("SQUEEZE_CORPUS"))


def _text(options: argparse.Namespace) -> str:
    """What it is called."""
    if not _is_named(options):
        return "sources"
    return str(options.file.name) if options.file else _CORPUS
