"""Compare packed checkpoints with lmz, zipnn, zstd and xz by bytes, and with zipnn by speed.

Sizes are those of whole files. The bound is the sum of zero-order entropies over tensors and fields. Speeds are those
of coding tensors in memory, taking turns with zipnn. Every round trip is compared.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from bench.measure import Measure, Row, option
from bench.plots import BLUE, GREEN, GREY, ORANGE, Plot, Point, Series
from bench.shared.checkpoints import make
from bench.tables import Column, Listing, above
from squeeze import pack, unpack
from squeeze.checkpoint import gguf_file, safetensors as tensorfile
from squeeze.packing.tensors import floats
from squeeze.recipes.measure.inspect import field_entropies
from squeeze.system.parallel import in_order

Run = Callable[[int], tuple[int, tuple[float, float]]]  # threads -> bytes, seconds of both ways
Tensors = list[tuple[str, np.ndarray]]  # type and bytes of each
_ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_QUICK, _SLOW = ("zstd -3",), ("zstd -19", "xz -6")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.wheels:
        make(options.wheels, options.folder)
    paths = [path for path in options.folder.iterdir() if path.suffix in (".safetensors", ".gguf")]
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        if options.only in path.stem:
            yield row(path, options)


def row(path: Path, options: argparse.Namespace) -> Row:
    tensors, raw = tensors_of(path)
    dtype = Counter({dtype: data.size for dtype, data in tensors}).most_common(1)[0][0]
    found: Row = {"checkpoint": path.stem, "dtype": dtype, "raw": raw, "bound": bound(tensors)}
    for name, level in (("squeeze", "runtime"), ("archive", "archive")):
        if level == "runtime" or options.archive:
            found[name] = packed_size(path, level)
    if shutil.which("lmz"):
        found["lmz"] = lmz_size(path)
    if dtype in _ZIPNN_TYPES and (zipnn := zipnn_run(path, dtype)):
        found["zipnn"] = zipnn(1)[0]
        for threads in (1, 2) if options.runs else ():
            times = medians({"squeeze": squeeze_run(tensors), "zipnn": zipnn}, threads, options.runs)
            for place, way in enumerate(("encode", "decode")):
                found[f"{way}, {threads}"] = round(times["zipnn"][place] / times["squeeze"][place], 3)
    for program in (*_QUICK, *(_SLOW if options.slow else ())):
        if shutil.which(program.split()[0]):
            found[program] = as_process(path, program)
    return found


def tensors_of(path: Path) -> tuple[Tensors, int]:
    """Return the tensors of a file, and its size in bytes."""
    file = gguf_file.read(path) if path.suffix == gguf_file.SUFFIX else tensorfile.read(path)
    with path.open("rb") as reading:
        return [(tensor.layout, tensorfile.read_tensor(reading, tensor)) for tensor in file.tensors], file.size


def bound(tensors: Tensors) -> int:
    total = 0.0
    for dtype, data in tensors:
        fields, values = field_entropies(data, dtype)
        total += sum(fields.values()) * values / 8
    return round(total)


def packed_size(path: Path, level: str) -> int:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        packed, back = Path(name, f"packed{path.suffix}"), Path(name, f"back{path.suffix}")
        pack(path, packed, level=level, verify=False, threads=2)
        unpack(packed, back, threads=2)
        if back.read_bytes() != path.read_bytes():
            raise SystemExit(f"Error: {path}: the round trip changed the bytes")
        return packed.stat().st_size


def lmz_size(path: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="squeeze-bench-") as name:
        packed, back = Path(name, "packed.lmz"), Path(name, f"back{path.suffix}")
        for command in (("c", path.resolve(), packed), ("d", packed, back)):
            subprocess.run(["lmz", *map(str, command)], capture_output=True, check=True)
        if back.read_bytes() != path.read_bytes():
            raise SystemExit(f"Error: {path}: lmz changed the bytes")
        return packed.stat().st_size


def as_process(path: Path, program: str) -> int:
    done = subprocess.run([*program.split(), "-T1", "-q", "-c", str(path.resolve())], capture_output=True, check=True)
    back = subprocess.run([program.split(maxsplit=1)[0], "-dc"], input=done.stdout, capture_output=True, check=True)
    if back.stdout != path.read_bytes():
        raise SystemExit(f"Error: {path}: {program} changed the bytes")
    return len(done.stdout)


def medians(runs: dict[str, Run], threads: int, count: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds of encoding and decoding, by name. The first run of each is a warm-up.

    Args:
        runs: functions to time, by name
        threads: threads of each run
        count: number of runs that count
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(count + 1):
        for name, run in runs.items():
            times[name].append(run(threads)[1])
    return {name: (median(a for a, _ in kept[1:]), median(b for _, b in kept[1:])) for name, kept in times.items()}


def encode(dtype: str, data: np.ndarray, threads: int) -> np.ndarray | None:
    return floats.encode(data, dtype, threads) if data.size else None


def decode(dtype: str, data: np.ndarray, payload: np.ndarray | None, threads: int) -> np.ndarray:
    return data if payload is None else floats.decode(payload, dtype, data.size, threads)


def squeeze_run(tensors: Tensors) -> Run:
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


def zipnn_run(path: Path, dtype: str) -> Run | None:
    """Return a function that runs zipnn, or None if it is not installed."""
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


def series(rows: Sequence[Row]) -> list[Series]:
    def points(tool: str) -> list[Point]:
        lines = enumerate(by_size(rows))
        return [Point(100 * row[tool] / row["bound"] - 100, line, "") for line, row in lines if row.get(tool)]

    return [
        Series("lmz", GREY, "v", points("lmz")),
        Series("zipnn", ORANGE, "^", points("zipnn")),
        Series("squeeze pack", BLUE, "o", points("squeeze")),
        Series("squeeze pack --level archive", GREEN, "s", points("archive")),
    ]


def by_size(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["raw"])


MEASURE = Measure(
    rows,
    key=("checkpoint",),
    rivals=("lmz", "zipnn", "zstd", "xz"),
    options=(
        option("folder", type=Path, help="folder of safetensors and GGUF files"),
        option(
            "--wheels",
            type=Path,
            metavar="FOLDER",
            help="folder of wheels to make the files from, see bench/shared/checkpoints.py",
        ),
        option("--only", default="", help="text in the names of the files to measure"),
        option("--archive", action="store_true", help="also measure level archive"),
        option("--slow", action="store_true", help="also measure zstd -19 and xz -6"),
        option("--runs", type=int, default=5, help="runs, of which the median counts, 0 for no speeds, default: 5"),
    ),
    tables={
        "lossless": Listing(
            (
                Column("checkpoint", "checkpoint"),
                Column("type", "dtype"),
                Column("raw", "raw", ","),
                Column("bound", "bound", ","),
                *(Column(name, above(name, "bound")) for name in ("squeeze", "archive", "lmz", "zipnn")),
                *(Column(name, name, ",") for name in ("zstd -3", "zstd -19", "xz -6")),
            )
        ),
        "lossless-speed": Listing(
            (
                Column("checkpoint", "checkpoint"),
                Column("encoding, x zipnn", "encode, 1", ".2f"),
                Column("decoding, x zipnn", "decode, 1", ".2f"),
                Column("encoding on two threads, x zipnn", "encode, 2", ".2f"),
                Column("decoding on two threads, x zipnn", "decode, 2", ".2f"),
            ),
            where=lambda row: "encode, 1" in row,
        ),
    },
    plots={
        "packing": Plot(
            "How far packed checkpoints are above the zero-order bound, from the smallest to the largest",
            series,
            "bytes above the zero-order bound, %",
            "",
            lines=lambda rows: [f"{row['checkpoint']}, {row['raw'] / 1e6:,.1f} MB" for row in by_size(rows)],
        )
    },
)
