"""Reading the segments of a JPEG image: where its scans are, and what its header says of them (ITU-T T.81, annex B)."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.jpeg.layout import ZIGZAG, Component, Frame, Range, Scan
from squeeze.errors import DamagedError

__all__ = ["Segments", "end_of_scan_header", "parse", "scans_of"]

_SOI, _EOI, _SOS, _DQT, _DHT, _DRI = 0xD8, 0xD9, 0xDA, 0xDB, 0xC4, 0xDD
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_AFTER_DATA = re.compile(rb"\xff[^\x00\xd0-\xd7]")
_MOST_SCANS = 128
_SEARCHES = 4  # bytes of scans that are searched for each byte of data
_MOST_BLOCKS = 10  # of an MCU
_CODES = 4  # tables of each class


class Segments:
    """The segments of data that were read. Each is read once, however many images begin before it.

    Attributes:
        data: The bytes that images are in.
        seen: A byte for each of them, not zero where a segment was read.
    """

    def __init__(self, data: bytes):
        self.data, self.seen, self._left = data, bytearray(len(data)), _SEARCHES * len(data)

    def is_new(self, place: int) -> bool:
        """Return whether a segment begins at a place, and was not read before."""
        is_new = self.data[place : place + 1] == b"\xff" and place + 2 <= len(self.data) and not self.seen[place]
        if is_new:
            self.seen[place] = 1
        return is_new

    def end_of_scan(self, place: int) -> int | None:
        """Return where entropy-coded data at a place ends, or None if it does not, or too much was searched."""
        found = _AFTER_DATA.search(self.data, place, place + self._left)
        self._left -= (found.start() if found else len(self.data)) - place
        return found.start() if found else None


def scans_of(segments: Segments, start: int) -> tuple[list[Range], int] | None:
    """Return where the entropy-coded data of the scans of an image lie, and where the image ends.

    Args:
        segments: those of the bytes that it is in.
        start: its first byte.

    Returns:
        the ranges and the end, or None if there is no whole image at `start`.
    """
    data, scans, place = segments.data, list[Range](), start + 2
    while segments.is_new(place):
        marker, length = data[place + 1], int.from_bytes(data[place + 2 : place + 4], "big")
        if marker == _EOI:
            return (scans, place + 2) if scans else None
        if marker == 0xFF:
            place += 1
            continue
        place += 2 + length
        if length < 2 or marker < 0xC0 or marker in (_SOI, 0xC8) or 0xD0 <= marker <= 0xD7:
            return None
        if marker == _SOS:
            end = segments.end_of_scan(place)
            if end is None or len(scans) == _MOST_SCANS:
                return None
            scans.append(Range(place, end))
            place = end
    return None


def end_of_scan_header(header: bytes, place: int) -> int:
    """Return where the next scan's data belongs in a header, from the place of a segment in it."""
    while header[place + 1] != _SOS:
        place += 1 if header[place + 1] == 0xFF else 2 + int.from_bytes(header[place + 2 : place + 4], "big")
    return place + 2 + int.from_bytes(header[place + 2 : place + 4], "big")


@dataclass
class _Tables:
    """Keep what segments have said so far."""

    steps: dict[int, np.ndarray]
    codes: np.ndarray
    restart: int = 0
    frame: tuple[int, bytes] | None = None


def parse(header: bytes) -> Frame:
    """Return the frame of an image from its bytes without entropy-coded data.

    Raises:
        DamagedError: if it is no image of 8-bit samples in Huffman codes.
    """
    tables, scans, components = (
        _Tables({}, np.zeros((2 * _CODES, 272), np.uint8)),
        list[Scan](),
        tuple[Component, ...](),
    )
    for marker, segment in _segments(header):
        if marker == _DQT:
            _read_steps(segment, tables)
        elif marker == _DHT:
            _read_codes(segment, tables)
        elif marker == _DRI and len(segment) == 2:
            tables.restart = int.from_bytes(segment, "big")
        elif marker in _FRAMES:
            if tables.frame or marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE):
                raise _impossible()
            tables.frame = marker, segment
        elif marker == _SOS:
            components = components or _components(tables)
            if len(scans) == _MOST_SCANS:
                raise _impossible()
            scans.append(_scan(segment, tables, components))
    if not scans or tables.frame is None:
        raise _impossible()
    return Frame(tables.frame[0] == _PROGRESSIVE, components, tuple(scans))


def _segments(header: bytes) -> Iterator[tuple[int, bytes]]:
    place = 2
    while header[place : place + 2] != b"\xff\xd9":
        if header[place : place + 2] == b"\xff\xff":
            place += 1
            continue
        length = int.from_bytes(header[place + 2 : place + 4], "big")
        if header[place : place + 1] != b"\xff" or length < 2 or place + 2 + length > len(header):
            raise _impossible()
        yield header[place + 1], header[place + 4 : place + 2 + length]
        place += 2 + length


def _read_steps(segment: bytes, tables: _Tables) -> None:
    while segment:
        wide, number = divmod(segment[0], 16)
        size = 64 << wide
        if wide > 1 or number > 3 or len(segment) <= size:
            raise _impossible()
        steps = np.zeros(64, np.int64)
        steps[ZIGZAG] = np.frombuffer(segment, ">u2" if wide else np.uint8, 64, 1)
        tables.steps[number], segment = steps, segment[1 + size :]


def _read_codes(segment: bytes, tables: _Tables) -> None:
    codes = tables.codes.copy()  # scans keep the earlier ones
    while segment:
        kind, number = divmod(segment[0], 16)
        counts = np.frombuffer(segment[1:17], np.uint8)
        size = int(counts.sum())
        if kind > 1 or number >= _CODES or counts.size < 16 or size > 256 or len(segment) < 17 + size:
            raise _impossible()
        if np.cumsum(counts.astype(np.int64) << np.arange(15, -1, -1))[-1] > 1 << 16:
            raise _impossible()
        row = codes[_CODES * kind + number]
        row[:] = 0
        row[: 16 + size] = np.frombuffer(segment, np.uint8, 16 + size, 1)
        segment = segment[17 + size :]
    tables.codes = codes


def _components(tables: _Tables) -> tuple[Component, ...]:
    if tables.frame is None:
        raise _impossible()
    segment = tables.frame[1]
    if len(segment) < 6:
        raise _impossible()
    precision, height, width, count = struct.unpack(">BHHB", segment[:6])
    parts = [segment[6 + 3 * i : 9 + 3 * i] for i in range(count)]
    if precision != 8 or not height or not width or not 1 <= count <= 4 or len(segment) != 6 + 3 * count:
        raise _impossible()
    factors = [divmod(part[1], 16) for part in parts]
    if any(not (1 <= h <= 4 and 1 <= v <= 4) for h, v in factors):
        raise _impossible()
    most_h, most_v = (max(factor[i] for factor in factors) for i in (0, 1))
    across, down = -(-width // (8 * most_h)), -(-height // (8 * most_v))  # MCUs
    found, first = list[Component](), 0
    for part, (h, v) in zip(parts, factors, strict=True):
        if part[2] not in tables.steps:
            raise _impossible()
        columns, rows = -(-width * h // (8 * most_h)), -(-height * v // (8 * most_v))
        wide, high = across * h, down * v
        shape = (1, 1, columns, rows, columns, rows) if count == 1 else (h, v, columns, rows, wide, high)
        found.append(Component(part[0], *shape, first, tables.steps[part[2]]))
        first += found[-1].wide * found[-1].high
    return tuple(found)


def _scan(segment: bytes, tables: _Tables, components: tuple[Component, ...]) -> Scan:
    count = segment[0] if segment else 0
    if not 1 <= count <= 4 or len(segment) != 4 + 2 * count:
        raise _impossible()
    numbers = [component.number for component in components]
    wanted, codes = segment[1 : 1 + 2 * count : 2], [divmod(code, 16) for code in segment[2 : 2 + 2 * count : 2]]
    first, last, bits = segment[-3:]
    if not set(wanted) <= set(numbers) or len(set(wanted)) < count or any(max(code) >= _CODES for code in codes):
        raise _impossible()
    scan = Scan(
        tuple(numbers.index(number) for number in wanted),
        tuple(dc for dc, _ in codes),
        tuple(_CODES + ac for _, ac in codes),
        first,
        last,
        bits >> 4,
        bits & 15,
        tables.restart,
        tables.codes,
    )
    assert tables.frame
    if tables.frame[0] == _PROGRESSIVE:
        right = first <= last < 64 and scan.low < 14 and (last == 0 if first == 0 else count == 1)
        right = right and scan.above in (0, scan.low + 1)
    else:
        right = (first, last, bits) == (0, 63, 0)
    blocks = sum(components[index].across * components[index].down for index in scan.components)
    if not right or (count > 1 and blocks > _MOST_BLOCKS):
        raise _impossible()
    return scan


def _impossible() -> DamagedError:
    return DamagedError("the header of a JPEG image is impossible: the file is damaged")
