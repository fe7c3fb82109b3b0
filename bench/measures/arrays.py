"""Compare squeeze with other compressors on arrays of numbers: pcodec and paq8px, if they are installed, and xz."""

import argparse
import importlib.util
import lzma
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import squeeze
from bench.measure import Measure, Row
from bench.tables import Column, Listing

_LEVELS = (3, 6)
_COUNT = 8_000


def rows(_: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each array; every result of squeeze is decompressed and compared."""
    for name, made in arrays().items():
        data = made.tobytes()
        row: Row = {"array": name, "raw": len(data)}
        for level in _LEVELS:
            coded = squeeze.compress(data, level=level)
            if squeeze.decompress(coded) != data:
                raise SystemExit(f"Error: {name} did not come back")
            row[f"level {level}"] = len(coded)
        row["xz"] = len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
        if importlib.util.find_spec("pcodec"):
            row["pcodec"] = _pcodec(made)
        if shutil.which("paq8px"):
            row["paq8px"] = _paq8px(data)
        yield row


def arrays() -> dict[str, np.ndarray]:
    """Return arrays of each kind."""
    random = np.random.default_rng(1)
    steps = random.normal(0, 1, (_COUNT, 3))
    return {
        "sorted keys, uint32": np.sort(random.integers(0, 1 << 32, _COUNT)).astype("<u4"),
        "times, int64": 1_700_000_000_000 + np.cumsum(random.integers(900, 1100, _COUNT)),
        "ramp with noise, int16": (np.arange(_COUNT) * 3 + random.integers(0, 9, _COUNT)).astype("<i2"),
        "walk, float64": 1000 + np.cumsum(steps[:, 0]),
        "prices, float64": np.round(100 + np.cumsum(steps[:, 0]) / 20, 2),
        "points, float32": (50 + np.cumsum(steps, 0) / 100).astype("<f4"),
        "waves, float64": 3 + np.sin(np.arange(_COUNT) / 50) + steps[:, 0] / 1000,
    }


def _pcodec(made: np.ndarray) -> int:
    from pcodec import ChunkConfig, standalone

    return len(standalone.simple_compress(made.ravel(), ChunkConfig(compression_level=12)))


def _paq8px(data: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        source, coded = Path(folder, "source"), Path(folder, "coded")
        source.write_bytes(data)
        subprocess.run(["paq8px", "-8", source, coded], check=True, capture_output=True)
        return coded.stat().st_size


MEASURE = Measure(
    rows,
    key=("array",),
    rivals=("pcodec", "paq8px"),
    time=3,
    tables={
        "arrays": Listing(
            (
                Column("array", "array"),
                Column("bytes", "raw", ","),
                Column("xz -9e", "xz", ","),
                Column("pcodec", lambda row: row.get("pcodec"), ","),
                Column("paq8px -8", lambda row: row.get("paq8px"), ","),
                Column("squeeze -3", "level 3", ","),
                Column("squeeze -6", "level 6", ","),
            )
        )
    },
)
