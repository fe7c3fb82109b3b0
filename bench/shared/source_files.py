"""Small source files to measure dictionaries with: those of the standard library of the Python that runs."""

import random
import sysconfig
from pathlib import Path

_LEAST, _MOST = 200, 8_000  # bytes of a file


def divided(train: int, count: int) -> tuple[list[bytes], list[bytes]]:
    """Files to train on, as many as there are of `train`, and `count` others to measure: each content once, chosen by
    a seed."""
    contents = dict.fromkeys(path.read_bytes() for path in _paths() if _LEAST <= path.stat().st_size <= _MOST)
    chosen = random.Random(1).sample(list(contents), len(contents))
    return chosen[count : count + train], chosen[:count]


def joined(size: int) -> bytes:
    """The first bytes of all of them."""
    return b"".join(path.read_bytes() for path in _paths())[:size]


def _paths() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
