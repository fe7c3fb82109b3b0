"""Arrays of numbers that depend on no library's random floats."""

import numpy as np

__all__ = ["keys", "npy", "points", "ramp", "times", "walk"]


def _steps(count: int, least: int, most: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(least, most, count)


def keys(count: int) -> bytes:
    """Return sorted keys of 32 bits, the high byte first."""
    return np.cumsum(_steps(count, 0, (1 << 32) // count, 1)).astype(">u4").tobytes()


def times(count: int) -> bytes:
    """Return times in milliseconds, of 64 bits."""
    return (1_700_000_000_000 + np.cumsum(_steps(count, 900, 1100, 2))).astype("<i8").tobytes()


def walk(count: int) -> bytes:
    """Return a random walk of doubles in thousandths."""
    return (np.cumsum(_steps(count, -50, 51, 3)) / 1000).astype("<f8").tobytes()


def points(count: int) -> bytes:
    """Return points of three floats, each near the one before."""
    return (np.cumsum(_steps(3 * count, -90, 91, 4).reshape(-1, 3), 0) / 1000).astype("<f4").tobytes()


def ramp(count: int) -> bytes:
    """Return a ramp of 16 bits with a little noise."""
    return (np.arange(count) * 3 + _steps(count, 0, 9, 5)).astype("<u2").tobytes()


def npy(descr: str, shape: str, body: bytes, order: str = "False") -> bytes:
    """Return a file in the format NPY."""
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + body
