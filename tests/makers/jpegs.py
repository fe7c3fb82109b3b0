"""JPEG images by several encoders' settings, and by hand."""

import io

import numpy as np
import pytest

from squeeze.codecs.jpeg.frame import parse
from squeeze.codecs.jpeg.image import Image, close

SETTINGS = {
    "baseline": {},
    "progressive": {"progressive": True},
    "own codes": {"optimize": True},
    "all chroma": {"subsampling": 0, "quality": 95},
    "half chroma": {"subsampling": 1},
    "coarse": {"quality": 20},
    "fine": {"quality": 100, "subsampling": 0},
    "restarts": {"restart_marker_blocks": 3},
    "restarts of rows": {"restart_marker_rows": 1, "progressive": True},
    "fine and progressive": {"quality": 98, "progressive": True, "subsampling": 0},
}


def pixels(width: int, height: int, channels: int = 3, seed: int = 3) -> np.ndarray:
    """Return uint8 [height, width, channels]: smooth waves with an edge and some noise."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (5 + 3 * c)) + np.cos((x + 2 * y) / (9 - c)) + (x > y) for c in range(channels)]
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, channels))
    return np.clip(96 + 30 * np.stack(waves, -1) + noise, 0, 255).astype(np.uint8)


def jpeg(width: int, height: int, mode: str = "RGB", seed: int = 3, **settings: object) -> bytes:
    """Return an image that libjpeg coded. Skips the test if Pillow is not installed."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    values = pixels(width, height, {"L": 1, "RGB": 3, "CMYK": 4}[mode], seed)
    out = io.BytesIO()
    image.fromarray(values[..., 0] if mode == "L" else values, mode).save(out, "JPEG", **settings)
    return out.getvalue()


def segment(marker: int, content: bytes) -> bytes:
    """Return a segment of an image with its marker and length."""
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


def by_hand(width: int, height: int, seed: int = 1) -> bytes:
    """Return a grey image of made coefficients, whose bytes depend on no library."""
    columns, rows = -(-width // 8), -(-height // 8)
    block, k = np.mgrid[: rows * columns, :64]
    mixed = (block * block * 31 + k * 17 + block * k * 7 + seed * 101) * 2654435761 >> 9
    coefficients = (np.where(mixed & 64, 1, -1) * (mixed % 40 // (1 + k))).astype(np.int16)
    steps = bytes(range(3, 67))
    symbols = [run << 4 | size for run in range(16) for size in range(11)]
    header = (
        b"\xff\xd8"
        + segment(0xDB, b"\0" + steps)
        + segment(0xC0, b"\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big") + b"\x01\x01\x11\x00")
        + segment(0xC4, b"\x00" + bytes([0, 0, 0, 12, *[0] * 12]) + bytes(range(12)))
        + segment(0xC4, b"\x10" + bytes([*[0] * 7, len(symbols), *[0] * 8]) + bytes(symbols))
        + segment(0xDA, b"\x01\x01\x00\x00\x3f\x00")
        + b"\xff\xd9"
    )
    return close(Image(header, parse(header), coefficients, (1,), (b"",)), 1 << 20)
