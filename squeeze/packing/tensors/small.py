"""Small tensors of floats.py: planned in one compiled call, written in another and decoded in a third, where the steps
that Python takes for large ones would take longer than coding. What they become, to the byte, is float_plan.py's.
"""

import threading
from dataclasses import dataclass

import numpy as np

from squeeze.packing.tensors import float_plan, plane_fields as columns, rans
from squeeze.packing.tensors.content import Content, whole
from squeeze.packing.tensors.float_layout import LOGS, SAMPLE_RUN, SAMPLE_RUNS, shapes, space
from squeeze.packing.tensors.float_models import LEAST_CLUSTERED
from squeeze.packing.tensors.float_payload import CHOICES, DTYPES, LAYOUTS, MAX_TABLES, WORDS, Array
from squeeze.packing.tensors.float_plan import LEAST_VALUES, Plan
from squeeze.packing.tensors.float_writer import Writer, most_bytes
from squeeze.packing.tensors.small_steps import FEW, decode_whole, plan_whole, write_whole
from squeeze.system.arena import kept

__all__ = ["MOST", "SmallPlan", "decode", "plan_of"]

MOST = 1 << 22  # bytes that are decoded in one call
_SLOTS = 1 << 16
_MOST_PLANES = 4  # of values of 32 bits
_own = threading.local()
_WIDTHS = np.array([widths + (0,) * (8 - len(widths)) for widths in LAYOUTS], np.int64)


class _Space:
    """Working space of a thread."""

    def __init__(self) -> None:
        self.counts, self.worths = np.empty((1, 1 << 13), np.int64), np.empty(rans.MAX_SYMBOLS)
        self.found, self.total = np.empty((4, 8), np.int64), np.empty(1)
        self.table, self.ids = np.empty(1 << 13, np.uint32), np.zeros(LEAST_CLUSTERED, np.uint8)
        self.state, self.at = np.empty(2 * rans.MAX_LANES, np.uint32), np.empty(3, np.int64)
        self.fields, self.starts = np.empty((8, columns.COLUMNS), np.int64), np.empty(8, np.int64)
        self.prefixes = np.empty((8, rans.MAX_SYMBOLS), np.int64)
        self.frequencies = np.empty((8, MAX_TABLES, rans.MAX_SYMBOLS), np.int64)
        self.slots, self.places = np.empty(_SLOTS, np.uint32), np.empty((2, 5), np.int64)


def _space() -> _Space:
    if not hasattr(_own, "space"):
        _own.space = _Space()
    own: _Space = _own.space
    return own


def plan_of(content: Content, dtype: str, threads: int) -> "SmallPlan | Plan | None":
    """How a tensor is coded; None where that does not pay."""
    bits, rotated = DTYPES[dtype]
    count = 8 * content.size // bits
    if count >= LEAST_VALUES and bits <= 32:
        lanes, rows = float_plan.geometry(count)
        segments = -(-count // (lanes * rows))
        if segments < (LEAST_CLUSTERED if threads == 1 else FEW):
            return SmallPlan.of(_as_compiled(whole(content).view(WORDS[bits])), bits, rotated, lanes, rows)
    return Plan.of(content, dtype, threads)


def _as_compiled(values: Array) -> Array:
    """The same values, as compiled code takes them: aligned and writable, although it writes to none."""
    return values if values.flags.carray else values.copy()


@dataclass(slots=True)  # a frozen one takes 2 us more to make, 5 % of what coding 256 values does
class SmallPlan:
    """fields: int64 [planes, COLUMNS], of which those are set that tell how each plane is coded. prefixes: int64
    [planes, 256]. frequencies: int64 [planes, 1, 256]. most_zeros: no fewer than the values of which no bit is set."""

    values: Array
    rotated: bool
    layout: int
    lanes: int
    rows: int
    fields: Array
    prefixes: Array
    frequencies: Array
    most_zeros: int

    @classmethod
    def of(cls, values: Array, bits: int, rotated: bool, lanes: int, rows: int) -> "SmallPlan | None":
        widths, longest = shapes(bits, rotated)
        own, shared = _space(), space()
        fields = np.zeros((_MOST_PLANES, columns.COLUMNS), np.int64)
        prefixes = np.empty((_MOST_PLANES, rans.MAX_SYMBOLS), np.int64)
        frequencies = np.empty((_MOST_PLANES, 1, rans.MAX_SYMBOLS), np.int64)
        choice, zeros = plan_whole(
            *(values, kept("sample", 4 * SAMPLE_RUNS * SAMPLE_RUN).view(values.dtype)[: SAMPLE_RUNS * SAMPLE_RUN]),
            *(bits if rotated else 0, bits, lanes, rows, widths, longest, LOGS),
            *(shared.tables, shared.sampled, shared.kinds),
            *(shared.room, shared.measured, own.found, own.total, own.counts, own.worths),
            *(fields, prefixes, frequencies),
        )
        if choice < 0:
            return None
        layout = CHOICES[bits, rotated][choice]
        return cls(values, rotated, layout, lanes, rows, fields, prefixes, frequencies, zeros)

    @property
    def count(self) -> int:
        return self.values.size

    def write(self, writer: Writer) -> int:
        """Write the payload; its bytes."""
        own, widths = _space(), LAYOUTS[self.layout]
        most = most_bytes(self.count, widths, self.lanes, self.rows)
        writer.reserve(most)
        payload = writer.room(0, most // 8 * 8, np.uint8)
        scratch = kept("words", 2 * (self.lanes * self.rows + rans.SLACK)).view(np.uint16)
        size = write_whole(
            *(self.values, self.rotated, self.layout, len(widths), self.lanes, self.rows, self.fields),
            *(self.prefixes, self.frequencies, payload, payload.view(np.uint16), payload.view(np.uint32)),
            *(own.table, own.ids, scratch, own.state, own.at),
        )
        if not writer.in_place:
            writer.put(0, payload[:size])
        return int(size)


def decode(payload: Array, dtype: str, out: Array, threads: int) -> bool:
    """Decode a payload into `out`, uint8; False, and anything there, where it is large or damaged."""
    bits, can_rotate = DTYPES[dtype]
    if out.size > MOST or bits > 32 or payload.size % 8 or out.size % (bits // 8):
        return False
    values, longs, own = out.view(WORDS[bits]), _as_compiled(payload.view(np.uint32)), _space()
    if not values.flags.carray:
        return False
    return bool(
        decode_whole(
            *(longs.view(np.uint8), longs.view(np.uint16), longs, values),
            *(bits, can_rotate, threads > 1, _WIDTHS, own.fields),
            *(own.prefixes, own.frequencies, own.slots, own.state, own.places, own.starts),
        )
    )
