"""The payload of a tensor coded by floats.py: a header, a directory of planes, and the sections of each plane.

Encoder and decoder share the constants here. float_plan.py writes a payload; `parse` reads one and checks every length
before anything is decoded. docs/format.md specifies it.
"""

import struct
from dataclasses import dataclass

import numpy as np

from squeeze.checkpoint.ggml_types import BLOCKS
from squeeze.packing.tensors import plane as columns, rans
from squeeze.packing.tensors.plane_reader import HEAD_SIZE, fill_slots, raw_words, read_planes
from squeeze.packing.tensors.tables import FAULTS, damaged

Array = np.ndarray

FORMAT = 1
MAX_TABLES = 8
LANES = 32
MAX_ROWS = 1 << 12
HEAD = struct.Struct("<BBBBIQ")
assert HEAD.size == HEAD_SIZE
PLANE = struct.Struct("<BBBBIQ")
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}

# safetensors dtype: bits of a value, and whether it is a float that is rotated.
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
    **dict.fromkeys(BLOCKS, (8, False)),
}
# Widths of planes from the highest bits down; the encoder chooses the layout that codes shortest.
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
    """A plane of a payload, as arrays over the payload's bytes."""

    width: int
    raw_bits: int
    precision: int  # 0 if every prefix is `constant`, or there is none
    constant: int
    prefixes: Array  # int64 [symbols]
    frequencies: Array  # int64 [tables, symbols]: they add up to 2^precision
    ids: Array  # uint8 [segments]: the table of each
    starts: Array  # int64 [segments + 1]: where each segment's words begin in `words`
    states: Array  # uint32 [segments, lanes]
    words: Array  # uint16, with at least `lanes` more than starts[-1]
    raw: Array  # packed raw bits, uint32; the values themselves if a plane has no prefix


@dataclass(frozen=True)
class Coded:
    """A parsed payload."""

    payload: Array  # uint8
    count: int
    bits: int  # of one value
    rotated: bool
    lanes: int
    rows: int  # of a full segment
    fields: Array  # int64 [planes, columns.COLUMNS]
    prefixes: Array  # int64 [planes, 256]
    frequencies: Array  # int64 [planes, tables, 256]

    @property
    def segments(self) -> int:
        """The number of segments."""
        return -(-self.count // (self.lanes * self.rows))

    def slots(self) -> Array:
        """Build the decoding tables of all planes, uint32, which take more memory than everything else here."""
        last = self.fields[-1]
        slots = np.empty(int(last[columns.NAMES] + last[columns.TABLES] * rans.MAX_SYMBOLS), np.uint32)
        fill_slots(self.fields, self.prefixes, self.frequencies, slots)
        return slots

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes, from the highest bits down."""
        return tuple(map(self._plane, range(len(self.fields))))

    def _plane(self, number: int) -> Plane:
        found = self.fields[number].tolist()
        width, raw_bits, precision, tables = (
            found[column] for column in (columns.WIDTH, columns.RAW_BITS, columns.PRECISION, columns.TABLES)
        )
        ids, states, words = np.zeros(self.segments, np.uint8), np.zeros((1, 0), np.uint32), np.zeros(0, np.uint16)
        starts = np.zeros(1, np.int64)
        if precision:
            if tables > 1:
                ids = self._section(found[columns.IDS], self.segments, np.uint8)
            counts = self._section(found[columns.COUNTS], self.segments, np.uint32)
            starts = np.append(np.int64(0), np.cumsum(counts, dtype=np.int64))
            states = self._section(found[columns.STATES], self.segments * self.lanes, np.uint32).reshape(-1, self.lanes)
            words = self.payload[found[columns.WORDS_AT] :].view(np.uint16)
        size = self.count if raw_bits == width else raw_size(self.count, self.lanes, self.rows, raw_bits)
        raw = self._section(found[columns.RAW], size, WORDS[width] if raw_bits == width else np.uint32)
        return Plane(
            *(width, raw_bits, precision, found[columns.CONSTANT], self.prefixes[number, : found[columns.SYMBOLS]]),
            *(self.frequencies[number, :tables, : found[columns.SYMBOLS]], ids, starts, states, words, raw),
        )

    def _section(self, place: int, count: int, kind: type) -> Array:
        return self.payload[place : place + count * np.dtype(kind).itemsize].view(kind)


def geometry(count: int, dtype: str) -> tuple[int, int]:
    """Return the lanes and the rows of a segment.

    Small tensors have fewer lanes, to save states. Numbers of 8 bits have longer segments, since states take 0.4 % of
    short ones: at least 8, if there are enough values for tables that differ.

    Args:
        count: values of the tensor.
        dtype: their type.
    """
    if count < 1 << 14:
        return 1 << max((count // 512).bit_length() - 1, 0), 1024
    if DTYPES[dtype] == (8, False):
        return LANES, 4096 if count >= 1 << 20 or count < 1 << 18 else 2048 if count >= 1 << 19 else 1024
    return LANES, 2048 if count >= 1 << 25 else 1024


def raw_size(count: int, lanes: int, rows: int, raw_bits: int) -> int:
    """Return the uint32 words for the raw bits of `count` values from the start of a segment on."""
    return int(raw_words(count, lanes, rows, raw_bits))


def parse(payload: Array, dtype: str, size: int) -> Coded:
    """Parse `payload` for a tensor of `size` bytes. Raises DamagedError if they contradict each other."""
    bits, can_rotate = DTYPES[dtype]
    if payload.size < HEAD.size or payload.size % 8 or size % (bits // 8):
        raise damaged("its length is invalid")
    if payload.ctypes.data % 8 or not payload.flags.c_contiguous:
        payload = payload.copy()
    form, layout, rotated, log_lanes, rows, count = HEAD.unpack(payload[: HEAD.size].tobytes())
    lanes = 1 << min(log_lanes, 32)
    if form != FORMAT or layout >= len(LAYOUTS) or rotated > can_rotate or sum(LAYOUTS[layout]) != bits:
        raise damaged("its coding is unknown")
    if not (1 <= rows <= MAX_ROWS and lanes <= rans.MAX_LANES and count == size // (bits // 8) >= 1):
        raise damaged("its size is not that of the tensor")
    planes = len(LAYOUTS[layout])
    fields = np.zeros((planes, columns.COLUMNS), np.int64)
    prefixes = np.empty((planes, rans.MAX_SYMBOLS), np.int64)
    frequencies = np.empty((planes, MAX_TABLES, rans.MAX_SYMBOLS), np.int64)
    fields[:, columns.WIDTH] = LAYOUTS[layout]
    fault = read_planes(payload, payload.view(np.uint32), count, lanes, rows, fields, prefixes, frequencies)
    if fault:
        raise damaged(FAULTS[fault])
    used = frequencies[:, : int(fields[:, columns.TABLES].max())].copy()
    return Coded(payload, count, bits, bool(rotated), lanes, rows, fields, prefixes, used)
