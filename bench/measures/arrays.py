"""Compare squeeze with other compressors on arrays of numbers: pcodec and paq8px, if they are installed, and xz."""

import argparse
import importlib.util
from collections.abc import Iterator

import numpy as np

from bench.measure import Measure, Row
from bench.shared.media_files import ours, theirs
from bench.tables import Column, Listing

_LEVELS = {"level 3": 3, "level 6": 6}
_COUNT = 8_000


def rows(_: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each array."""
    has_pcodec = importlib.util.find_spec("pcodec") is not None
    for name, made in arrays().items():
        data, pcodec = made.tobytes(), {"pcodec": _pcodec(made)} if has_pcodec else {}
        yield {"array": name} | ours(name, data, _LEVELS) | theirs(data, {}) | pcodec


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
