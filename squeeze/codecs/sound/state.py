"""The state of the model of sounds (model.py): its arrays, their sizes, and their first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.sound.layout import Layout
from squeeze.numerics.bitmodels import histories, layout, match, mixer
from squeeze.numerics.logistic import SQUASH

__all__ = ["FAST", "FRACTION", "FULL", "MARGIN", "Preset", "SoundModel", "build_model", "memory"]

FRACTION = 8  # fractional bits of predictions
MARGIN = 128 * 8  # zeros before the first sample
BUCKETS, WIDTHS = 64, 16  # of the maps of predictions: probabilities, and widths of the interval that a bit halves
LEAST_LENGTH = 16  # bytes of a match
SIZE, OTHER, RATE, SOLVE, DOWN, FINE, RIDGE = range(7)  # columns of `sizes`
STACK_RIDGE = 11
PATTERNS = 256


class Preset(NamedTuple):
    """The parts of the model that a level uses.

    Attributes:
        contexts: Number of hashed contexts.
        squares: The least squares: inputs, of them from the channel before, and log2 of the samples that count, and
            samples from one solution to the next.
        stack: The rate of the least squares of all predictions, or 0 without them.
        cascade: The taps of the cascade of adaptive filters and log2 of their inverse rates.
        simple: Number of fixed predictions.
        sets: Number of weight sets.
        matches: Number of match models.
        slot_bits: log2 of the largest hash table, in cache lines.
    """

    contexts: int
    squares: tuple[tuple[int, int, int, int], ...]
    stack: int
    cascade: tuple[tuple[int, int], ...]
    simple: int
    sets: int
    matches: int
    slot_bits: int

    @property
    def predictions(self) -> int:
        """The number of predictions of a sample."""
        return len(self.squares) + len(self.cascade) + self.simple + (self.stack > 0)


FAST = Preset(2, ((16, 6, 9, 16),), 0, ((16, 6),), 1, 2, 0, 18)
FULL = Preset(
    12, ((32, 12, 9, 4), (16, 8, 5, 2), (128, 32, 9, 32)), 8, ((512, 4), (256, 6), (32, 5), (16, 4)), 2, 6, 1, 20
)

_OF_SOUND = "channels bits line_mask direct linear stacked keep first_map first_match bias"
_OF_SAMPLE = "channel base at ratio span pattern"
_OF_BIT = "partial shift node matched width bucket logit mixed apm_row apm_place"
STATE = layout.fields(f"{_OF_SOUND} {_OF_SAMPLE} {_OF_BIT}")
ROWS = (2 * WIDTHS * 2, 32 * 8, WIDTHS * BUCKETS, 16 * 32, 8 * WIDTHS, PATTERNS)
FIRST_ROWS = tuple(int(sum(ROWS[:k])) for k in range(len(ROWS)))


class SoundModel(NamedTuple):
    """All predictors and mixers of a sound as arrays: the state that encoder and decoder share."""

    samples: np.ndarray  # int64 [MARGIN + samples]: zeros, and the samples as far as they are decoded
    data: np.ndarray  # uint8: the bytes of the samples, the high one first
    state: Any  # a record of STATE
    sizes: np.ndarray  # int64 [squares, 7]: of the least squares, their settings
    inputs_of: np.ndarray  # int64 [squares, inputs]: of the least squares
    sums: np.ndarray  # int64 [squares, channels, inputs + 1, inputs]: of products, the last row with the sample
    factors: np.ndarray  # int64 [squares, channels, inputs]
    whole: np.ndarray  # int64 [inputs, inputs]: factors of the decomposition, with 20 fractional bits
    part: np.ndarray  # int64 [inputs, inputs]: the next 20 bits of them
    scaled: np.ndarray  # int64 [inputs, inputs]
    work: np.ndarray  # int64 [inputs]
    taps: np.ndarray  # int64 [stages, 2]: their number, and the rate
    latest: np.ndarray  # int32 [channels, stages, 2 * taps]: what each stage predicts, twice
    weights_of: np.ndarray  # int32 [channels, stages, taps]
    power: np.ndarray  # int64 [channels, stages]
    outputs: np.ndarray  # int64 [stages]
    values: np.ndarray  # int64 [predictions]: of the sample
    misses: np.ndarray  # int64 [channels, predictions, 2]: mean errors, soon and slowly forgotten
    patterns: np.ndarray  # int64 [channels, PATTERNS]: mean errors of the linear prediction, by the latest ones
    recent: np.ndarray  # int64 [channels]: a bit for each of the latest samples, whether that was nearly exact
    inverse: np.ndarray  # int64 [predictions]: of the scales of errors
    reach: np.ndarray  # int64 [predictions]: the distance from which a place has a probability of 0 or 1
    below: np.ndarray  # int64 [predictions]: probability of a sample below the interval
    upto: np.ndarray  # int64 [predictions]: the same for its end
    middle: np.ndarray  # int64 [predictions]: the same for its middle
    curves: np.ndarray  # uint32 [predictions * WIDTHS * BUCKETS]
    curve_at: np.ndarray  # int64 [predictions]
    hashes: np.ndarray  # uint64 [contexts]
    slots: np.ndarray  # uint8: hash table of bit histories, aligned to cache lines
    slot: np.ndarray  # uint32 [contexts]
    entry: np.ndarray  # uint32 [contexts]
    maps: np.ndarray  # uint32 [contexts * 256]
    matches: np.ndarray  # match.STATE [matches]
    least_lengths: np.ndarray  # int64 [matches]
    match_table: np.ndarray  # int32
    match_maps: np.ndarray  # uint32
    inputs: np.ndarray  # int32
    weights: np.ndarray  # int32 [rows of all sets, inputs]
    rows: np.ndarray  # int64 [sets]
    logits: np.ndarray  # int32 [sets]
    final_weights: np.ndarray  # int32 [32, sets]
    apm_width: np.ndarray  # uint32 [WIDTHS * BUCKETS, APM_STEPS]
    apm_place: np.ndarray  # uint32 [32 * 64, APM_STEPS]


def _curves(predictions: int) -> np.ndarray:
    """Return uint32 [predictions * WIDTHS * BUCKETS]: maps that begin with the probability of each bucket."""
    middles = SQUASH[(2048 + (np.arange(BUCKETS) - BUCKETS // 2) * 32 + 16).clip(0, 4096)]
    entries = ((middles >> 10).clip(1 << 8, (1 << 22) - (1 << 8)) << 10 | 30).astype(np.uint32)
    return np.tile(entries, predictions * WIDTHS)


def _line_bits(size: int, preset: Preset) -> int:
    return min(max((size * preset.contexts // 4).bit_length(), 8), preset.slot_bits)


def memory(size: int, preset: Preset) -> int:
    """Estimate the bytes of the model of a sound of `size` bytes."""
    return (layout.LINE << _line_bits(size, preset)) + 10 * size + (24 << 20)


def build_model(count: int, form: Layout, preset: Preset) -> SoundModel:
    """Allocate the model of a sound of `count` samples."""
    n, predictions = preset.contexts, preset.predictions
    first_match = n + 2 * predictions
    bias = first_match + 2 * preset.matches
    inputs, lines = -(-(bias + 1) // 8) * 8, 1 << _line_bits(count * form.width, preset)
    return SoundModel(
        samples=np.zeros(MARGIN + count, np.int64),
        data=np.zeros(8 + count * form.width, np.uint8),
        state=layout.record(
            STATE,
            channels=form.channels,
            bits=form.bits,
            line_mask=lines - 1,
            direct=len(preset.squares),
            linear=preset.simple,
            stacked=int(preset.stack > 0),
            keep=max(form.bits - 16, 0),
            first_map=n + predictions,
            first_match=first_match,
            bias=bias,
        ),
        **_predictors(form, preset),
        inverse=np.zeros(predictions, np.int64),
        reach=np.zeros(predictions, np.int64),
        below=np.zeros(predictions, np.int64),
        upto=np.zeros(predictions, np.int64),
        middle=np.zeros(predictions, np.int64),
        curves=_curves(predictions),
        curve_at=np.zeros(predictions, np.int64),
        hashes=np.zeros(n, np.uint64),
        slots=layout.aligned_zeros(lines * layout.LINE),
        slot=np.zeros(n, np.uint32),
        entry=np.zeros(n, np.uint32),
        maps=np.tile(histories.START, n),
        matches=np.zeros(preset.matches, match.STATE),
        least_lengths=np.full(preset.matches, LEAST_LENGTH, np.int64),
        match_table=match.fresh_table(preset.matches, count * form.width),
        match_maps=match.fresh_maps(preset.matches),
        inputs=np.zeros(inputs, np.int32),
        weights=_first_weights(inputs, n, predictions),
        rows=np.zeros(preset.sets, np.int64),
        logits=np.zeros(preset.sets, np.int32),
        final_weights=np.full((32, preset.sets), mixer.WEIGHT_ONE // preset.sets, np.int32),
        apm_width=mixer.fresh_apm(WIDTHS * BUCKETS),
        apm_place=mixer.fresh_apm(32 * 64),
    )


def _predictors(form: Layout, preset: Preset) -> dict[str, np.ndarray]:
    """Return the arrays of the predictions, by their names: least squares, the cascade, and their errors."""
    sizes, predictions, channels = _sizes(form, preset), preset.predictions, form.channels
    most, squares = max(size for size, *_ in sizes), len(sizes)
    taps, stages = max(taps for taps, _ in preset.cascade), len(preset.cascade)
    return {
        "sizes": np.array(sizes, np.int64),
        "inputs_of": np.zeros((squares, most), np.int64),
        "sums": np.zeros((squares, channels, most + 1, most), np.int64),
        "factors": np.zeros((squares, channels, most), np.int64),
        "whole": np.zeros((most, most), np.int64),
        "part": np.zeros((most, most), np.int64),
        "scaled": np.zeros((most, most), np.int64),
        "work": np.zeros(most, np.int64),
        "taps": np.array(preset.cascade, np.int64),
        "latest": np.zeros((channels, stages, 2 * taps), np.int32),
        "weights_of": np.zeros((channels, stages, taps), np.int32),
        "power": np.zeros((channels, stages), np.int64),
        "outputs": np.zeros(stages, np.int64),
        "values": np.zeros(predictions, np.int64),
        "misses": np.full((channels, predictions, 2), 1 << form.bits, np.int64),
        "patterns": np.full((channels, PATTERNS), 1 << form.bits, np.int64),
        "recent": np.zeros(channels, np.int64),
    }


def _sizes(form: Layout, preset: Preset) -> list[tuple[int, ...]]:
    """Return the settings of the least squares, those of all predictions last."""
    fine, down = 41 - 2 * (min(form.bits, 20) - 1), max(form.bits - 20, 0)
    ridge = 1 << fine >> 4 if form.bits <= 16 else 1 << fine << 4
    sizes: list[tuple[int, ...]] = [
        (size, other if form.channels > 1 else 0, rate, solve, down, fine, ridge)
        for size, other, rate, solve in preset.squares
    ]
    if preset.stack:
        for size in (len(preset.squares) - 1, preset.predictions - 2):
            sizes.append((size, 0, preset.stack, 1, 0, 11, 1 << STACK_RIDGE))
    return sizes


def _first_weights(inputs: int, contexts: int, predictions: int) -> np.ndarray:
    """Return int32 [rows, inputs]: predictions share a weight of 1 at first."""
    weights = np.zeros((sum(ROWS), inputs), np.int32)
    weights[:, :contexts] = mixer.WEIGHT_ONE // 16
    weights[:, contexts : contexts + 2 * predictions] = mixer.WEIGHT_ONE // (2 * predictions)
    return weights
