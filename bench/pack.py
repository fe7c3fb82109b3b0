"""Sizes and speeds of packed checkpoints beside zipnn, zstd and xz; every round trip is compared first.

python bench/pack.py [--archive] [--slow] [--runs 3] [--json] CHECKPOINT.safetensors...

bench/checkpoints.py makes the checkpoints of docs/benchmarks.md. Sizes are those of whole files. Speeds
are of the tensors' bytes in memory, on one and on two threads, the shortest of the runs, ours and zipnn's
taking turns; zipnn is measured where it is installed. --slow adds zstd -19 and xz -6, as processes;
--archive adds the archive level. The bound is the sum over tensors and fields of zero-order entropies.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from squeeze import pack, unpack
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.codecs.tensors import floats
from squeeze.recipes.inspect import field_entropies
from squeeze.system.in_order import in_order

_ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--archive", action="store_true")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("paths", nargs="+", type=Path)
    options = parser.parse_args()
    rows = []
    for path in options.paths:
        rows.append(measure(path, options))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
    if not options.json:
        print(table(rows))


def measure(path: Path, options: argparse.Namespace) -> dict:
    file = tensorfile.read(path)
    with path.open("rb") as reading:
        tensors = [(tensor.dtype, tensorfile.read_tensor(reading, tensor)) for tensor in file.tensors]
    dtype = Counter({dtype: data.size for dtype, data in tensors}).most_common(1)[0][0]
    row = {"file": path.stem, "dtype": dtype, "raw": file.size, "bound": bound(tensors)}
    row["squeeze"] = packed_size(path, "runtime")
    if options.archive:
        row["squeeze archive"] = packed_size(path, "archive")
    rivals = [("squeeze", ours(tensors))]
    if zipnn := theirs(path, dtype):
        rivals.append(("zipnn", zipnn))
    for threads in (1, 2):
        best: dict[str, list[float]] = {}
        for number in range(options.runs + 1):
            for name, run in rivals:
                size, seconds = run(threads)
                if name == "zipnn":
                    row["zipnn"] = size
                if number:  # the first run warms up
                    best[name] = list(map(min, best.get(name, seconds), seconds))
        for name, seconds in best.items():
            row[f"{name} MB/s, {threads}"] = [round(file.size / 1e6 / value, 1) for value in seconds]
    for name, program in (("zstd -3", "zstd -3"), *((("zstd -19", "zstd -19"), ("xz -6", "xz -6")) * options.slow)):
        if shutil.which(program.split()[0]):
            row[name] = as_process(path, program)
    return row


def bound(tensors: list) -> int:
    total = 0.0
    for dtype, data in tensors:
        fields, values = field_entropies(data, dtype)
        total += sum(fields.values()) * values / 8
    return round(total)


def packed_size(path: Path, level: str) -> int:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        packed, back = Path(name, "packed.safetensors"), Path(name, "back.safetensors")
        pack(path, packed, level=level, verify=False, threads=2)
        unpack(packed, back, threads=2)
        if back.read_bytes() != path.read_bytes():
            raise SystemExit(f"Error: {path}: the round trip changed the bytes")
        return packed.stat().st_size


def encode(dtype: str, data: np.ndarray, threads: int) -> np.ndarray | None:
    return floats.encode(data, dtype, threads) if data.size else None


def decode(dtype: str, data: np.ndarray, payload: np.ndarray | None, threads: int) -> np.ndarray:
    return data if payload is None else floats.decode(payload, dtype, data.size, threads)


def ours(tensors: list) -> Callable[[int], tuple[int, tuple[float, float]]]:
    def run(threads: int) -> tuple[int, tuple[float, float]]:
        start = time.perf_counter()
        payloads = list(in_order(((data.size, partial(encode, dtype, data)) for dtype, data in tensors), threads))
        middle = time.perf_counter()
        coded = zip(payloads, tensors, strict=True)
        back = list(in_order(((data.size, partial(decode, dtype, data, p)) for p, (dtype, data) in coded), threads))
        end = time.perf_counter()
        assert all(np.array_equal(one, data) for one, (_, data) in zip(back, tensors, strict=True))
        return 0, (middle - start, end - middle)

    return run


def theirs(path: Path, dtype: str) -> Callable[[int], tuple[int, tuple[float, float]]] | None:
    try:
        import zipnn
    except ImportError:
        return None
    content = path.read_bytes()

    def run(threads: int) -> tuple[int, tuple[float, float]]:
        coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=_ZIPNN_TYPES[dtype], threads=threads)
        data = bytearray(content)  # zipnn overwrites what it compresses
        start = time.perf_counter()
        coded = coder.compress(data)
        middle = time.perf_counter()
        back = coder.decompress(coded)
        end = time.perf_counter()
        if bytes(back) != content:
            print(f"Note: {path}: zipnn changed the bytes", file=sys.stderr)
        return len(coded), (middle - start, end - middle)

    return run


def as_process(path: Path, program: str) -> int:
    done = subprocess.run([*program.split(), "-T1", "-q", "-c", str(path)], capture_output=True, check=True)
    back = subprocess.run([program.split(maxsplit=1)[0], "-dc"], input=done.stdout, capture_output=True, check=True)
    if back.stdout != path.read_bytes():
        raise SystemExit(f"Error: {path}: {program} changed the bytes")
    return len(done.stdout)


def table(rows: list[dict]) -> str:
    """Sizes with their distance from the bound, then speeds (encode / decode)."""
    sizes = [key for row in rows for key in row if isinstance(row[key], int)]
    speeds = [key for row in rows for key in row if isinstance(row[key], list)]
    lines = []
    for keys in (list(dict.fromkeys(["file", "dtype", *sizes])), list(dict.fromkeys(["file", *speeds]))):
        lines.append("| " + " | ".join(keys) + " |")
        lines.append("|---" + "|--:" * (len(keys) - 1) + "|")
        lines += ["| " + " | ".join(cell(row, key) for key in keys) + " |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def cell(row: dict, key: str) -> str:
    value = row.get(key, "-")
    if isinstance(value, list):
        return " / ".join(f"{speed:.0f}" for speed in value)
    if isinstance(value, int) and key not in ("raw", "bound"):
        return f"{value:,} ({100 * value / row['bound'] - 100:+.2f} %)"
    return f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    main()
