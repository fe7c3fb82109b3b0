"""A JPEG image as its header and its coefficients, and back to the same bytes."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from squeeze.codecs.jpeg import frame, reading, scans, writing
from squeeze.codecs.jpeg.layout import Frame, Scan
from squeeze.errors import DamagedError

__all__ = ["Image", "close", "most_blocks", "open_image"]

_LEAST_BLOCK = 2  # bytes of an image for each of its blocks; emptier ones are not worth opening
_SPARE = 2048  # bytes


@dataclass(frozen=True)
class Image:
    """An image in JPEG.

    Attributes:
        header: Its bytes without those of its scans.
        frame: What the header says.
        coefficients: int16 [blocks, 64], in rows.
        paddings: The bit that pads the intervals of each scan to bytes.
        rests: The bytes after the last interval of each scan.
    """

    header: bytes
    frame: Frame
    coefficients: np.ndarray
    paddings: tuple[int, ...]
    rests: tuple[bytes, ...]


def most_blocks(length: int) -> int:
    """Return how many blocks an image of `length` bytes may have."""
    return length // _LEAST_BLOCK


def open_image(data: bytes) -> Image | None:
    """Return the image in data, or None if `close` would not give the same bytes."""
    found = frame.scans_of(frame.Segments(data), 0)
    if found is None or found[1] != len(data):
        return None
    ranges = found[0]
    edges = [0, *(edge for scan in ranges for edge in scan), len(data)]
    header = b"".join(data[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2))
    try:
        parsed = frame.parse(header)
    except DamagedError:
        return None
    if len(parsed.scans) != len(ranges) or parsed.blocks > most_blocks(len(data)):
        return None
    coefficients, ends = np.zeros((parsed.blocks, 64), np.int16), list[tuple[int, bytes]]()
    for place, scan in zip(ranges, parsed.scans, strict=True):
        read = _read(data[place.begin : place.end], parsed, scan, coefficients)
        if read is None:
            return None
        ends.append(read)
    image = Image(header, parsed, coefficients, tuple(one for one, _ in ends), tuple(rest for _, rest in ends))
    try:
        return image if close(image, len(data)) == data else None
    except DamagedError:
        return None


def _read(data: bytes, parsed: Frame, scan: Scan, coefficients: np.ndarray) -> tuple[int, bytes] | None:
    """Read a scan; return the bit that pads it, and the bytes after its last interval."""
    intervals = scans.cut(data)
    if intervals is None:
        return None
    order = scans.order(parsed, scan)
    joined = np.frombuffer(b"".join(intervals) + bytes(reading.SPARE), np.uint8)
    ends = np.cumsum([len(interval) for interval in intervals], dtype=np.int64)
    result = reading.read(
        joined,
        ends,
        order.blocks,
        order.components,
        _step(order, scan),
        _settings(parsed, scan),
        _tables(scan),
        scans.lookup(scan),
        coefficients,
        np.zeros(2, np.int64),
        np.zeros(4, np.int64),
    )
    if result < 0:
        return None
    return int(result & 1), intervals[-1][int(result) >> 1 :]


def close(image: Image, most: int) -> bytes:
    """Return the bytes of an image, at most `most`.

    Raises:
        DamagedError: if its coefficients have no codes, or take more bytes.
    """
    parts, done, left = list[bytes](), 2, most
    for scan, padding, rest in zip(image.frame.scans, image.paddings, image.rests, strict=True):
        begin, done = done, frame.end_of_scan_header(image.header, done)
        parts += [image.header[begin:done], scans.join(_written(image, scan, padding, rest, left))]
        left = most - sum(map(len, parts))
    data = b"".join([image.header[:2], *parts, image.header[done:]])
    if len(data) > most:
        raise DamagedError("a JPEG image is longer than its block: the file is damaged")
    return data


def _written(image: Image, scan: Scan, padding: int, rest: bytes, most: int) -> list[bytes]:
    order, codes = scans.order(image.frame, scan), scans.write_codes(scan)
    step = _step(order, scan)
    out, ends = np.zeros(most + _SPARE, np.uint8), np.zeros(-(-order.blocks.size // step), np.int64)
    settings = np.array([*_settings(image.frame, scan), padding], np.int64)
    size = writing.write(
        out,
        ends,
        order.blocks,
        order.components,
        step,
        settings,
        _tables(scan),
        *codes,
        image.coefficients,
        np.zeros(5, np.int64),
        np.zeros(4, np.int64),
        np.zeros(writing.KEPT, np.uint8),
    )
    if size < 0:
        raise DamagedError("the coefficients of a JPEG image are impossible: the file is damaged")
    edges = [0, *ends.tolist()]
    intervals = [out[a:b].tobytes() for a, b in pairwise(edges)]
    return [*intervals[:-1], intervals[-1] + rest]


def _step(order: scans.Order, scan: Scan) -> int:
    return scan.restart * order.mcu or max(order.blocks.size, 1)


def _settings(parsed: Frame, scan: Scan) -> np.ndarray:
    return np.array([scan.first, scan.last, scan.above, scan.low, parsed.progressive], np.int64)


def _tables(scan: Scan) -> np.ndarray:
    return np.array([*zip(scan.dc, scan.ac, strict=True)], np.int64)
