"""The state of the model of arrays (model.py): its arrays, their sizes, and their first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.array.layout import MOST_COLUMNS, Layout
from squeeze.numerics.bitmodels import histories, layout, mixer
from squeeze.numerics.logistic import SQUASH

__all__ = ["BUCKETS", "DISTANCES", "FAST", "FULL", "MARGIN", "WIDTHS", "ArrayModel", "Preset", "build_model", "memory"]

MARGIN = 4 * MOST_COLUMNS + 1  # zeros before the first number
BUCKETS, WIDTHS = 64, 16  # of curves: probabilities, and widths of the interval that a bit halves
DISTANCES = 72  # classes of distances from a prediction, on one side
_FIRST_LOG = 16 << 16  # the first mean logarithm of a miss, which stands for 16 bits


class Preset(NamedTuple):
    """The parts of the model that a level uses: predictions, contexts of whole numbers and of bytes, weight sets."""

    predictions: int
    of_numbers: int
    of_bytes: int
    sets: int
    slot_bits: int  # log2 of the largest hash table, in cache lines


FAST = Preset(4, 1, 3, 2, 18)
FULL = Preset(7, 5, 6, 4, 20)
# Of a grid: what a model has more than without lines.
_FAST_GRID = FAST._replace(predictions=6, of_bytes=4)
_FULL_GRID = FULL._replace(predictions=12, of_numbers=6, of_bytes=8)

_OF_ARRAY = "columns across bits line_mask of_numbers full first_curve first_place bias"
_OF_NUMBER = "column at best"
_OF_BIT = "place node width bucket logit mixed apm_byte apm_width"
STATE = layout.fields(f"{_OF_ARRAY} {_OF_NUMBER} {_OF_BIT}")
ROWS = (WIDTHS * BUCKETS, 8 * 256, 64 * 4, _FULL_GRID.predictions * WIDTHS)
FIRST_ROWS = tuple(int(sum(ROWS[:k])) for k in range(len(ROWS)))


class ArrayModel(NamedTuple):
    """All predictors and mixers of an array: the state that encoder and decoder share."""

    numbers: np.ndarray  # int64 [MARGIN + numbers]: zeros, and the numbers as far as they are decoded
    state: Any  # a record of STATE
    drifts: np.ndarray  # int64 [columns]: sums of the latest differences
    values: np.ndarray  # int64 [predictions]: of the number
    logs: np.ndarray  # int64 [columns, predictions, 2]: mean logarithms of misses, soon and slowly forgotten
    scales: np.ndarray  # int64 [predictions]: the logarithms of the present number, in sixteenths
    below: np.ndarray  # int64 [predictions]: probability of a number below the interval
    upto: np.ndarray  # int64 [predictions]: the same for its end
    middle: np.ndarray  # int64 [predictions]: the same for its middle
    curves: np.ndarray  # uint32 [predictions * WIDTHS * BUCKETS]
    curve_at: np.ndarray  # int64 [predictions]
    places: np.ndarray  # uint32 [predictions * 64 * 2 * DISTANCES]
    place_at: np.ndarray  # int64 [predictions]
    hashes: np.ndarray  # uint64 [contexts]
    slots: np.ndarray  # uint8: hash table of bit histories, aligned to cache lines
    slot: np.ndarray  # uint32 [contexts]
    entry: np.ndarray  # uint32 [contexts]
    maps: np.ndarray  # uint32 [contexts * 256]
    inputs: np.ndarray  # int32
    weights: np.ndarray  # int32 [rows of all sets, inputs]
    rows: np.ndarray  # int64 [sets]
    logits: np.ndarray  # int32 [sets]
    final_weights: np.ndarray  # int32 [64, sets]
    byte_apm: np.ndarray  # uint32 [8 * 256, APM_STEPS]
    width_apm: np.ndarray  # uint32 [WIDTHS * BUCKETS, APM_STEPS]


def _curves(predictions: int) -> np.ndarray:
    """Return uint32 [predictions * WIDTHS * BUCKETS]: maps that begin with the probability of each bucket."""
    middles = SQUASH[(1040 + 32 * np.arange(BUCKETS)).clip(0, 4096)]
    entries = ((middles >> 10).clip(1 << 8, (1 << 22) - (1 << 8)) << 10 | 30).astype(np.uint32)
    return np.tile(entries, predictions * WIDTHS)


def _line_bits(size: int, preset: Preset) -> int:
    contexts = preset.of_numbers + preset.of_bytes
    return min(max((size * contexts // 4).bit_length(), 8), preset.slot_bits)


def memory(size: int, preset: Preset) -> int:
    """Estimate the bytes of the model of an array of `size` bytes."""
    return (layout.LINE << _line_bits(size, preset)) + 8 * size + (8 << 20)


def build_model(count: int, form: Layout, preset: Preset) -> ArrayModel:
    """Allocate the model of an array of `count` numbers."""
    full = preset == FULL
    if form.across:
        preset = _FULL_GRID if full else _FAST_GRID
    n, predictions = preset.of_numbers + preset.of_bytes, preset.predictions
    bias = n + 3 * predictions
    inputs, lines = -(-(bias + 1) // 8) * 8, 1 << _line_bits(count * form.width, preset)
    weights = np.zeros((sum(ROWS), inputs), np.int32)
    weights[:, :n] = mixer.WEIGHT_ONE // 32
    weights[:, n:bias] = mixer.WEIGHT_ONE // (3 * predictions)
    return ArrayModel(
        numbers=np.zeros(MARGIN + count, np.int64),
        state=layout.record(
            STATE,
            columns=form.columns,
            across=form.across,
            bits=form.bits,
            line_mask=lines - 1,
            of_numbers=preset.of_numbers,
            full=full,
            first_curve=n + predictions,
            first_place=n + 2 * predictions,
            bias=bias,
        ),
        drifts=np.zeros(form.columns, np.int64),
        values=np.zeros(predictions, np.int64),
        logs=np.full((form.columns, predictions, 2), _FIRST_LOG, np.int64),
        scales=np.zeros(predictions, np.int64),
        below=np.zeros(predictions, np.int64),
        upto=np.zeros(predictions, np.int64),
        middle=np.zeros(predictions, np.int64),
        curves=_curves(predictions),
        curve_at=np.zeros(predictions, np.int64),
        places=np.full(predictions * 128 * DISTANCES, 1 << 31, np.uint32),
        place_at=np.zeros(predictions, np.int64),
        hashes=np.zeros(n, np.uint64),
        slots=layout.aligned_zeros(lines * layout.LINE),
        slot=np.zeros(n, np.uint32),
        entry=np.zeros(n, np.uint32),
        maps=np.tile(histories.START, n),
        inputs=np.zeros(inputs, np.int32),
        weights=weights,
        rows=np.zeros(preset.sets, np.int64),
        logits=np.zeros(preset.sets, np.int32),
        final_weights=np.full((64, preset.sets), mixer.WEIGHT_ONE // preset.sets, np.int32),
        byte_apm=mixer.fresh_apm(8 * 256),
        width_apm=mixer.fresh_apm(WIDTHS * BUCKETS),
    )
