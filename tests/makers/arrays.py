"""Arrays of numbers that depend on no library's random floats."""

import numpy as np

__all__ = ["fits", "heights", "keys", "npy", "points", "prices", "ramp", "times", "walk", "waves"]


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


def waves(count: int) -> bytes:
    """Return a random walk of doubles that are no decimal fractions."""
    return (np.cumsum(_steps(count, -50, 51, 3)) / 1021).astype("<f8").tobytes()


def prices(count: int) -> bytes:
    """Return prices of two digits behind the point as doubles, of which some are missing, and one is infinite."""
    found = np.abs(np.cumsum(_steps(count, -30, 31, 9))) / 100
    found[_steps(count // 10, 0, count, 10)] = np.nan
    found[count // 2] = np.inf
    return found.astype("<f8").tobytes()


def points(count: int) -> bytes:
    """Return points of three floats, each near the one before."""
    return (np.cumsum(_steps(3 * count, -90, 91, 4).reshape(-1, 3), 0) / 1000).astype("<f4").tobytes()


def ramp(count: int) -> bytes:
    """Return a ramp of 16 bits with a little noise."""
    return (np.arange(count) * 3 + _steps(count, 0, 9, 5)).astype("<u2").tobytes()


def heights(lines: int, across: int) -> bytes:
    """Return a map of heights in two dimensions, of 16 bits with a sign, the high byte first."""
    slopes = _steps(lines, -30, 31, 6)[:, None] + _steps(across, -30, 31, 7)
    rough = _steps(lines * across, 0, 4, 8).reshape(lines, across)
    found: bytes = (np.cumsum(np.cumsum(slopes, 0), 1) // 40 + rough).astype(">i2").tobytes()
    return found


def fits(body: bytes, bits: int, *axes: int, extension: bool = False) -> bytes:
    """Return a file in the format FITS with an image, `axes` from the fastest, behind an empty one if asked."""
    cards = [f"BITPIX  = {bits:20}", f"NAXIS   = {len(axes):20} / axes"]
    cards += [f"NAXIS{k}  = {size:20}" for k, size in enumerate(axes, 1)] + ["COMMENT a map", "END"]
    first = "XTENSION= 'IMAGE   '" if extension else f"SIMPLE  = {'T':>20}"
    header = "".join(card.ljust(80) for card in [first, *cards])
    before: bytes = fits(b"", 8) if extension else b""
    return before + header.ljust(-(-len(header) // 2880) * 2880).encode() + body + bytes(-len(body) % 2880)


def npy(descr: str, shape: str, body: bytes, order: str = "False") -> bytes:
    """Return a file in the format NPY."""
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + body
