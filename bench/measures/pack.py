"""Sizes of packed checkpoints beside zipnn, zstd and xz; every round trip is compared.

Sizes are those of whole files. The bound is the sum over tensors and fields of zero-order entropies.
"""

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.entry import Row
from bench.shared.floats import main_type, tensors_of, theirs
from squeeze import pack, unpack
from squeeze.recipes.inspect import field_entropies

_QUICK, _SLOW = ("zstd -3",), ("zstd -19", "xz -6")


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for path in options.paths:
        tensors, raw = tensors_of(path)
        dtype = main_type(tensors)
        row = {"checkpoint": path.stem, "dtype": dtype, "raw": raw, "bound": bound(tensors)}
        row["squeeze"] = packed_size(path, "runtime")
        if options.archive:
            row["archive"] = packed_size(path, "archive")
        if zipnn := theirs(path, dtype):
            row["zipnn"] = zipnn(1)[0]
        for program in (*_QUICK, *(_SLOW if options.slow else ())):
            if shutil.which(program.split()[0]):
                row[program] = as_process(path, program)
        yield row


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


def as_process(path: Path, program: str) -> int:
    done = subprocess.run([*program.split(), "-T1", "-q", "-c", str(path.resolve())], capture_output=True, check=True)
    back = subprocess.run([program.split(maxsplit=1)[0], "-dc"], input=done.stdout, capture_output=True, check=True)
    if back.stdout != path.read_bytes():
        raise SystemExit(f"Error: {path}: {program} changed the bytes")
    return len(done.stdout)
