"""The state of the model of images of two values (bilevel_rows.py): its contexts, arrays, and their first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.image.filters import Filtered
from squeeze.numerics.bitmodels import adaptive, layout, mixer

__all__ = ["FAST", "FULL", "LINES", "MARGIN", "POSITION", "BilevelModel", "Values", "build_model", "memory"]

LINES = 8  # rows in memory, a power of two
MARGIN = 2  # groups of eight pixels before a row, and one after it
ROWS = 7  # the row of the pixel, and six above it
ABOVE = 15  # the place of the pixel above the first one of a group, in a window of 32
_TEMPLATES = (  # for each row from that of the pixel upwards: pixels to the left, and to the right of the pixel
    ((4, 0), (2, 2), (1, 1)),
    ((4, 0), (4, 4), (3, 3), (1, 1)),
    ((5, 0), (5, 5), (4, 4), (3, 3)),
    ((8, 0), (7, 7), (7, 6), (6, 5), (4, 4), (2, 2)),
    ((8, 0), (7, 7), (6, 6), (5, 5), (4, 4), (3, 3)),
    ((1, 0), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)),
    ((16, 0), (0, 0)),
    ((6, 0), (6, 6), (5, 5), (4, 4), (3, 3)),
    ((12, 0), (3, 7)),
    ((0, 0), (2, 2), (2, 2), (2, 2)),
    ((4, 0), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2)),
    ((15, 0), (12, 7), (4, 4)),
    ((3, 0), (3, 3), (3, 3), (3, 3), (3, 3)),
    ((2, 0), (1, 1)),
)
POSITION = len(_TEMPLATES)  # the number of the context of the pixel's column and row, modulo 8


class Preset(NamedTuple):
    """The contexts that a level uses."""

    contexts: int
    table_bits: int  # log2 of the entries of a context


FAST = Preset(contexts=7, table_bits=18)
FULL = Preset(contexts=POSITION + 1, table_bits=20)


class Part(NamedTuple):
    """Pixels of a row in a context."""

    row: int  # 0 is that of the pixel
    right: int  # pixels to the right of the pixel, of the rows above
    mask: int
    place: int  # of the lowest pixel in the context


def _parts() -> tuple[np.ndarray, np.ndarray]:
    """Return int64 [parts, 4] as `Part`, and [templates + 1]: where those of each template begin."""
    parts, begins = list[Part](), [0]
    for template in _TEMPLATES:
        place = 0
        for row, (left, right) in enumerate(template):
            count = left + right + 1 if row else left
            if count:
                parts.append(Part(row, right, (1 << count) - 1, place))
                place += count
        begins.append(len(parts))
    return np.array(parts, np.int64), np.array(begins, np.int64)


PARTS, BEGINS = _parts()
SELECTED = (1 << 11, 1 << 10, 1 << 7, 1 << 6)  # weight sets of each selector
FIRST_ROWS = tuple(int(sum(SELECTED[:k])) for k in range(len(SELECTED)))
SETS = len(SELECTED)
FINAL_ROWS = 1 << 8
FLAT_ENTRIES = 1 << 7
_WEIGHT = 1 << 14  # first weight of every input; mixer.WEIGHT_ONE is 1
STATE = layout.fields("stride row padding pixel up first groups bytes zero one column line run flat mixed logit bits")


class Values(NamedTuple):
    """The two values of an image.

    Attributes:
        zero: The value of zeros: a byte, or of an image of bits 0 or 255.
        one: That of ones.
        is_bytes: True if a pixel is a byte, false if it is a bit.
    """

    zero: int
    one: int
    is_bytes: bool


class BilevelModel(NamedTuple):
    """All contexts and mixers of an image of two values as arrays: the state that encoder and decoder share."""

    filters: np.ndarray  # uint8 [rows]: filters of PNG, or none
    filter_entries: np.ndarray  # uint32: the probabilities of filters
    data: np.ndarray  # uint8: zeros before the image, and its bytes as far as they are decoded
    state: Any  # a record of STATE
    lines: np.ndarray  # uint8 [LINES, MARGIN + groups + 1]: the latest rows, eight pixels in a byte
    windows: np.ndarray  # int64 [ROWS]: pixels around the group of each row, the leftmost one highest
    flat_entries: np.ndarray  # uint32 [FLAT_ENTRIES]: the probabilities of groups in flat parts
    entries: np.ndarray  # uint32 [contexts << bits]
    at: np.ndarray  # int64 [contexts]
    inputs: np.ndarray  # int32: of the contexts, and a bias
    weights: np.ndarray  # int32 [rows of all selectors, inputs]
    rows: np.ndarray  # int64 [SETS]
    logits: np.ndarray  # int32 [SETS]
    final_weights: np.ndarray  # int32 [FINAL_ROWS, SETS]
    apm_near: np.ndarray  # uint32 [SELECTED[0], APM_STEPS]
    apm_run: np.ndarray  # uint32 [SELECTED[2], APM_STEPS]


def memory(size: int, preset: Preset) -> int:
    """Estimate the bytes of the model of an image of `size` bytes."""
    return (4 * preset.contexts << _table_bits(size, preset)) + LINES * size // 4 + (2 << 20)


def _table_bits(size: int, preset: Preset) -> int:
    return min(max(size.bit_length() - 1, 10), preset.table_bits)


def build_model(filtered: Filtered, groups: int, values: Values, preset: Preset) -> BilevelModel:
    """Allocate the model of an image.

    Args:
        filtered: zeros before the image, and its bytes, with their filters.
        groups: groups of eight pixels in the longest row.
        values: the two values.
        preset: the contexts.
    """
    n, bits = preset.contexts, _table_bits(filtered.data.size, preset)
    inputs = -(-(n + 1) // 8) * 8
    return BilevelModel(
        **filtered._asdict(),
        state=layout.record(STATE, bits=bits, bytes=int(values.is_bytes), zero=values.zero, one=values.one, pixel=1),
        lines=np.zeros((LINES, MARGIN + groups + 1), np.uint8),
        windows=np.zeros(ROWS, np.int64),
        flat_entries=np.full(FLAT_ENTRIES, adaptive.EVEN, np.uint32),
        entries=np.full(n << bits, adaptive.EVEN, np.uint32),
        at=np.zeros(n, np.int64),
        inputs=np.zeros(inputs, np.int32),
        weights=np.full((sum(SELECTED), inputs), _WEIGHT, np.int32),
        rows=np.zeros(SETS, np.int64),
        logits=np.zeros(SETS, np.int32),
        final_weights=np.full((FINAL_ROWS, SETS), mixer.WEIGHT_ONE // SETS, np.int32),
        apm_near=mixer.fresh_apm(SELECTED[0]),
        apm_run=mixer.fresh_apm(SELECTED[2]),
    )
