"""Compare packed checkpoints with lmz, zipnn and zstd by bytes, and with lmz and zipnn by speed.

Sizes are those of whole files. The bound is the sum of zero-order entropies over tensors and fields. Speeds are those
of coding in memory on one thread, by processor time, in turns. squeeze codes tensors, lmz the chunks that it cuts, and
zipnn the file. Every round trip is compared.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from bench.measure import Measure, Row, option
from bench.plots import BLUE, GREEN, GREY, ORANGE, Plot, Point, Series
from bench.shared.checkpoints import make
from bench.tables import Column, Listing, above
from squeeze import pack, unpack
from squeeze.checkpoint import gguf_file, safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor
from squeeze.packing import codings
from squeeze.packing.coding import Form, Subject
from squeeze.recipes.measure.inspect import field_entropies

Run = Callable[[], tuple[int, tuple[float, float]]]  # () -> bytes, seconds of encoding and of decoding
Tensors = list[tuple[Tensor, np.ndarray]]  # each with its bytes
_ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_ZSTD = "zstd -3"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.wheels:
        make(options.wheels, options.folder)
    paths = [path for path in options.folder.iterdir() if path.suffix in (".safetensors", ".gguf")]
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        if options.only in path.stem:
            yield row(path, options)


def row(path: Path, options: argparse.Namespace) -> Row:
    tensors, raw = tensors_of(path)
    sizes = Counter[str]()
    for tensor, data in tensors:
        sizes[tensor.layout] += data.size
    dtype = sizes.most_common(1)[0][0]
    found: Row = {"checkpoint": path.stem, "dtype": dtype, "raw": raw, "bound": bound(tensors)}
    for name, level in (("squeeze", "runtime"), ("archive", "archive")):
        if level == "runtime" or options.archive:
            found[name] = packed_size(path, level)
    if shutil.which("lmz"):
        found["lmz"] = lmz_size(path)
    runs = {"squeeze": squeeze_run(tensors)}
    if dtype in _ZIPNN_TYPES and (zipnn := zipnn_run(path, dtype)):
        found["zipnn"], runs["zipnn"] = zipnn()[0], zipnn
    if lmz := lmz_run(path):
        runs["lmz"] = lmz
    if options.runs and len(runs) > 1:
        times = medians(runs, options.runs)
        for name in runs.keys() - {"squeeze"}:
            for place, way in enumerate(("encode", "decode")):
                found[f"{way}, x {name}"] = round(times[name][place] / times["squeeze"][place], 3)
    if shutil.which("zstd"):
        found[_ZSTD] = as_process(path, _ZSTD)
    return found


def tensors_of(path: Path) -> tuple[Tensors, int]:
    """Return the tensors of a file, and its size in bytes."""
    file = gguf_file.read(path) if path.suffix == gguf_file.SUFFIX else tensorfile.read(path)
    with path.open("rb") as reading:
        return [(tensor, tensorfile.read_tensor(reading, tensor)) for tensor in file.tensors], file.size


def bound(tensors: Tensors) -> int:
    total = 0.0
    for tensor, data in tensors:
        fields, values = field_entropies(data, tensor.layout)
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


def medians(runs: dict[str, Run], count: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds of encoding and decoding, by name. The first run of each is a warm-up.

    Args:
        runs: functions to time, by name
        count: number of runs that count
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(count + 1):
        for name, run in runs.items():
            times[name].append(run()[1])
    return {name: (median(a for a, _ in kept[1:]), median(b for _, b in kept[1:])) for name, kept in times.items()}


def squeeze_run(tensors: Tensors) -> Run:
    """Return a function that codes tensors as level `runtime` does, the search for grids included."""

    def run() -> tuple[int, tuple[float, float]]:
        start = time.process_time()
        coded = [codings.encode_in_memory(Subject.of(tensor, data, None, 1), "runtime") for tensor, data in tensors]
        middle = time.process_time()
        back = [
            coding.decode(payload, Form.of(tensor), None, 1)
            for (coding, payload), (tensor, _) in zip(coded, tensors, strict=True)
        ]
        end = time.process_time()
        assert all(np.array_equal(one, data) for one, (_, data) in zip(back, tensors, strict=True))
        return sum(payload.size for _, payload in coded), (middle - start, end - middle)

    return run


def lmz_run(path: Path) -> Run | None:
    """Return a function that runs lmz's coder, without checksums, or None if the package is not installed.

    Exits if lmz lacks zstd or its compiled kernels: it then falls back to zlib or Python, 10 times as slow.
    """
    try:
        from lmz import api, codec, entropy, kernels, planner
    except ImportError:
        return None
    if not entropy.HAVE_ZSTD or not kernels.have_rans():
        raise SystemExit("Error: lmz runs without zstd or its compiled kernels: install zstandard and a C compiler")
    content = path.read_bytes()
    with path.open("rb") as file:
        chunks = planner.chunkify(planner.probe(file, len(content)), len(content), api.DEFAULT_CHUNK_SIZE)
    pieces = [(content[begin:end], width, kind, block) for begin, end, width, kind, _, block, _ in chunks]

    def run() -> tuple[int, tuple[float, float]]:
        start = time.process_time()
        coded = [
            codec.encode_chunk(data, width, 1, False, kind=kind, btype=block) for data, width, kind, block in pieces
        ]
        middle = time.process_time()
        payloads = [b"".join(parts) if isinstance(parts, list) else bytes(parts) for parts, *_ in coded]
        joined = time.process_time()
        back = [
            codec.decode_chunk(payload, name, width, flags, len(data))
            for payload, (_, name, flags, _), (data, width, *_) in zip(payloads, coded, pieces, strict=True)
        ]
        end = time.process_time()
        if any(bytes(one) != data for one, (data, *_) in zip(back, pieces, strict=True)):
            raise SystemExit(f"Error: {path}: lmz changed the bytes")
        return sum(map(len, payloads)), (middle - start, end - joined)

    return run


def zipnn_run(path: Path, dtype: str) -> Run | None:
    """Return a function that runs zipnn, or None if it is not installed."""
    try:
        import zipnn
    except ImportError:
        return None
    content = path.read_bytes()

    def run() -> tuple[int, tuple[float, float]]:
        coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=_ZIPNN_TYPES[dtype], threads=1)
        data = bytearray(content)  # zipnn overwrites what it compresses
        start = time.process_time()
        coded = coder.compress(data)
        middle = time.process_time()
        back = coder.decompress(coded)
        end = time.process_time()
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
    rivals=("lmz", "zipnn", "zstd"),
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
                Column(_ZSTD, _ZSTD, ","),
            )
        ),
        "lossless-speed": Listing(
            (
                Column("checkpoint", "checkpoint"),
                *(
                    Column(f"{way}, x {name}", f"{key}, x {name}", ".2f")
                    for name in ("lmz", "zipnn")
                    for way, key in (("encoding", "encode"), ("decoding", "decode"))
                ),
            ),
            where=lambda row: "encode, x lmz" in row,
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
