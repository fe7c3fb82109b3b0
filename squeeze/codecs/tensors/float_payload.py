"""The bytes of a coded tensor: a header, a directory of planes, and each plane's sections.

Encoder and decoder share the constants here; a `Writer` writes a payload, `parse`
reads one and checks every length before anything is decoded. docs/format.md
specifies it. What the parts mean is floats.py's and rans.py's.
"""

import struct
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from squeeze.codecs.tensors import rans
from squeeze.codecs.tensors.tables import damaged, parse_symbols

Array = np.ndarray

FORMAT = 1
MAX_TABLES = 8
LANES = 32
MAX_ROWS = 1 << 12
HEAD = struct.Struct("<BBBBIQ")
PLANE = struct.Struct("<BBBBIQ")
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

# safetensors dtype: bits of a value as it is coded, and whether it is a float that is rotated.
DTYPES = {
    "BOOL": (8, False),
    "U8": (8, False),
    "I8": (8, False),
    "F4": (8, False),
    "F6_E2M3": (8, False),
    "F6_E3M2": (8, False),
    "F8_E8M0": (8, False),
    "F8_E4M3": (8, True),
    "F8_E5M2": (8, True),
    "U16": (16, False),
    "I16": (16, False),
    "F16": (16, True),
    "BF16": (16, True),
    "U32": (32, False),
    "I32": (32, False),
    "F32": (32, True),
    "C64": (32, True),
    "U64": (64, False),
    "I64": (64, False),
    "F64": (64, True),
}
# Widths of the planes from the highest bits down; a writer chooses the one that codes shortest.
LAYOUTS: tuple[tuple[int, ...], ...] = (
    (8,),
    (16,),
    (8, 8),
    (32,),
    (16, 8, 8),
    (8, 8, 8, 8),
    (32, 32),
    (8,) * 8,
)
CHOICES = {
    (8, False): (0,),
    (8, True): (0,),
    (16, False): (1, 2),
    (16, True): (1, 2),
    (32, False): (3, 5),
    (32, True): (3, 4, 5),
    (64, False): (7,),
    (64, True): (6, 7),
}


@dataclass(frozen=True)
class Plane:
    """One plane of a payload, as arrays over the payload's bytes."""

    width: int
    raw_bits: int
    precision: int  # 0: every prefix is `constant`, or there is none
    constant: int
    prefixes: Array  # int64 [symbols]
    frequencies: Array  # int64 [tables, symbols]: they add up to 2^precision
    ids: Array  # uint8 [segments]: the table of each
    starts: Array  # int64 [segments + 1]: where each segment's words begin in `words`
    states: Array  # uint32 [segments, lanes]
    words: Array  # uint16, with at least `lanes` more than starts[-1]
    raw: Array  # uint32 [segments' packed raw bits]; a plane without prefix: its values

    @cached_property
    def table(self) -> tuple[int, Array, Array]:
        """The field, table [tables, 2^precision] and names [tables, 256] of rans.decoding_table."""
        tables, most = self.frequencies.shape[0], int(self.frequencies.max(initial=0)).bit_length()
        field = most if 2 * most + self.width - self.raw_bits <= 32 else 0
        table, names = (
            np.zeros((tables, 1 << self.precision), np.uint32),
            np.zeros((tables, rans.MAX_SYMBOLS), np.uint32),
        )
        for number in range(tables):
            rans.decoding_table(self.frequencies[number], self.prefixes, field, table[number], names[number])
        return field, table, names


@dataclass(frozen=True)
class Coded:
    """A parsed payload."""

    count: int
    bits: int  # of one value
    rotated: bool
    lanes: int
    rows: int  # of a full segment
    planes: tuple[Plane, ...]

    @property
    def segments(self) -> int:
        return -(-self.count // (self.lanes * self.rows))


def geometry(count: int) -> tuple[int, int]:
    """Lanes, and rows of a segment, for a tensor of `count` values: fewer lanes where their states would cost much."""
    if count >= 1 << 14:
        return LANES, 2048 if count >= 1 << 25 else 1024
    return 1 << max((count // 512).bit_length() - 1, 0), 1024


def raw_size(count: int, lanes: int, rows: int, raw_bits: int) -> int:
    """uint32 words that hold the raw bits of `count` values from the start of a segment on."""
    full, rest = divmod(count, lanes * rows)
    rest_rows = -(-rest // lanes)
    return lanes * (full * -(-rows * raw_bits // 32) + -(-rest_rows * raw_bits // 32))


def whole_size(end: int, words_end: int, lanes: int) -> int:
    """The size of a payload whose sections and words end there: a decoder may read `lanes` words too many."""
    return -(-max(end, words_end + 2 * lanes if words_end else 0) // 8) * 8


def parse(payload: Array, dtype: str, size: int) -> Coded:
    """The parts of `payload`, for a tensor of `size` bytes. Raises DamagedError where they contradict that."""
    bits, can_rotate = DTYPES[dtype]
    if payload.size < HEAD.size or payload.size % 8 or size % (bits // 8):
        raise damaged("its length is impossible")
    if payload.ctypes.data % 8 or not payload.flags.c_contiguous:
        payload = payload.copy()
    form, layout, rotated, log_lanes, rows, count = HEAD.unpack(payload[: HEAD.size].tobytes())
    lanes = 1 << min(log_lanes, 32)
    if form != FORMAT or layout >= len(LAYOUTS) or rotated > can_rotate or sum(LAYOUTS[layout]) != bits:
        raise damaged("its coding is unknown")
    if not (1 <= rows <= MAX_ROWS and lanes <= rans.MAX_LANES and count == size // (bits // 8) >= 1):
        raise damaged("its size is not that of the tensor")
    reader = _Reader(payload, HEAD.size)
    entries = [reader.unpack(PLANE) for _ in LAYOUTS[layout]]
    planes = []
    for width, entry in zip(LAYOUTS[layout], entries, strict=True):
        if entry[0] != width:
            raise damaged("its planes are unknown")
        planes.append(_parse_plane(reader, entry, count, lanes, rows))
    if payload.size != whole_size(reader.position, reader.words_end, lanes):
        raise damaged("its length is not that of its parts")
    return Coded(count, bits, bool(rotated), lanes, rows, tuple(planes))


class _Reader:
    """Takes a payload's sections one after the other."""

    def __init__(self, payload: Array, position: int):
        self.payload = payload
        self.position = position
        self.words_end = 0

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size, np.uint8).tobytes())

    def take(self, count: int, kind: type) -> Array:
        begin, end = self.position, self.position + count * np.dtype(kind).itemsize
        if end > self.payload.size:
            raise damaged("it ends too early")
        self.position = -(-end // 4) * 4
        return self.payload[begin:end].view(kind)


def _parse_plane(reader: _Reader, entry: tuple[int, ...], count: int, lanes: int, rows: int) -> Plane:
    width, raw_bits, precision, tables, text_size, word_count = entry
    nothing, segments = np.zeros(0, np.uint8), -(-count // (lanes * rows))
    prefixes, frequencies = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    prefix_bits = width - raw_bits
    if not 0 <= prefix_bits <= 16 or precision > rans.MAX_PRECISION or tables > MAX_TABLES:
        raise damaged("its planes are unknown")
    constant, ids = 0, np.zeros(segments, np.uint8)
    starts, states = np.zeros(1, np.int64), np.zeros((1, 0), np.uint32)
    words = nothing.view(np.uint16)
    if raw_bits == width:
        raw = reader.take(count, WORDS[width])
        return Plane(width, raw_bits, 0, 0, prefixes, frequencies, ids, starts, states, words, raw)
    text = reader.take(text_size, np.uint8).tobytes()
    if precision == 0:
        constant = _parse_constant(text, prefix_bits)
    else:
        prefixes, frequencies = _parse_tables(text, tables, precision, prefix_bits)
        if tables > 1:
            ids = reader.take(segments, np.uint8)
        starts = np.append(np.int64(0), np.cumsum(reader.take(segments, np.uint32), dtype=np.int64))
        states = reader.take(segments * lanes, np.uint32).reshape(segments, lanes)
        if starts[-1] != word_count or int(ids.max()) >= tables:
            raise damaged("its index is wrong")
        begin = reader.position
        reader.take(word_count, np.uint16)
        reader.words_end = reader.position
        words = reader.payload[begin:].view(np.uint16)
        if words.size < word_count + lanes:
            raise damaged("it ends too early")
    raw = reader.take(raw_size(count, lanes, rows, raw_bits), np.uint32)
    return Plane(width, raw_bits, precision, constant, prefixes, frequencies, ids, starts, states, words, raw)


def _parse_constant(text: bytes, prefix_bits: int) -> int:
    if len(text) != 2 or int.from_bytes(text, "little") >> prefix_bits:
        raise damaged("its constant is impossible")
    return int.from_bytes(text, "little")


def _parse_tables(text: bytes, tables: int, precision: int, prefix_bits: int) -> tuple[Array, Array]:
    """Prefixes, and their frequencies in each table."""
    prefixes, frequencies = parse_symbols(text, tables, 1 << prefix_bits)
    if not tables or (frequencies.sum(1) != 1 << precision).any():
        raise damaged("its tables are impossible")
    return prefixes, frequencies
