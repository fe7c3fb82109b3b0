"""The state of the model of images (model.py): its arrays, their sizes, and their first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.image import flat
from squeeze.codecs.image.filters import Filtered
from squeeze.codecs.image.layout import MOST_ROW, Layout
from squeeze.codecs.image.nearby import INPUTS, TERMS
from squeeze.codecs.image.neighbours import AROUND, LINEAR
from squeeze.codecs.image.relative import BINS, LEVELS, START
from squeeze.numerics.bitmodels import adaptive, histories, layout, match, mixer

__all__ = ["FAST", "FULL", "LIGHT", "ImageModel", "Preset", "build_model", "memory"]

MEDIAN = LINEAR  # numbers of predictions, after the linear ones
REGRESSED = MEDIAN + 1
NEIGHBOURS = 24  # inputs of a regression, a multiple of 8
SIZES = np.array([24, 19, 6], np.int64)  # neighbours of each regression
RATES = np.array([9, 7, 5], np.int64)  # a sample counts 2^-rate
REGRESSIONS = 3
NEARBY = REGRESSED + REGRESSIONS
PREDICTIONS = NEARBY + 2
MOST_SUMS = 1 << 16  # columns of samples that have sums
DIRECT = (0, 2, MEDIAN, REGRESSED, NEARBY)  # predictions with a direct map
PLANES = 5  # samples of a pixel, and padding
PIXELS, ROW_FILTERS = 1, 2  # phases of converted images: filters are coded when all pixels are made
_LEAST_LENGTHS = (8, 24)  # bytes of the matches


class Preset(NamedTuple):
    """The parts of the model that a level uses: its first contexts, predictions and direct maps."""

    contexts: int
    predictions: int  # of which the last one is the mean of the others
    direct: int
    regressions: int
    matches: int
    slot_bits: int  # log2 of the largest hash table, in cache lines


FAST = Preset(contexts=6, predictions=11, direct=0, regressions=0, matches=1, slot_bits=18)
# For large images at level 1: 0.6 of the time of FAST, and 1.0 to 1.6 % more bytes.
LIGHT = Preset(contexts=3, predictions=6, direct=0, regressions=0, matches=1, slot_bits=16)
FULL = Preset(
    contexts=24, predictions=PREDICTIONS, direct=len(DIRECT), regressions=REGRESSIONS, matches=2, slot_bits=20
)

_OF_IMAGE = "stride row padding up pixel sample samples exact top first"  # layout, largest value, first row
_PLACES = "line_mask ring first_relative first_direct first_match bias"  # masks, places of inputs
_OF_SAMPLE = "phase run plane column line activity nearby spread before base solved"
_OF_BIT = "partial shift node matched logit mixed apm_row apm_level"
STATE = layout.fields(f"{_OF_IMAGE} {_PLACES} {_OF_SAMPLE} {_OF_BIT}")
ROWS = (PLANES * 8 * 16, 256, 512, PLANES * 16 * 8, 1024, PLANES * 64)  # the last one only of converted images
FIRST_ROWS = tuple(int(sum(ROWS[:k])) for k in range(len(ROWS)))
WEIGHT = 1800  # first weight of every input; mixer.WEIGHT_ONE is 1
CONTEXT_WEIGHT, RELATIVE_WEIGHT = 4200, 600  # the same of contexts and relative maps where values say less of colours


class ImageModel(NamedTuple):
    """All predictors and mixers of an image as arrays: the state that encoder and decoder share."""

    filters: np.ndarray  # uint8 [rows]: filters of PNG, or none
    filter_entries: np.ndarray  # uint32: the probabilities of filters
    flat_entries: np.ndarray  # uint32: the probabilities of pixels in flat parts
    data: np.ndarray  # uint8: zeros before the image, and its bytes as far as they are decoded
    misses: np.ndarray  # uint8 [latest bytes, predictions]: how wrong each prediction of a sample was
    around: np.ndarray  # int64 [3, neighbours]: those of the sample, and how they differ from planes before
    state: Any  # a record of STATE
    hashes: np.ndarray  # uint64 [contexts]
    slots: np.ndarray  # uint8: hash table of bit histories, aligned to cache lines
    slot: np.ndarray  # uint32 [contexts]
    entry: np.ndarray  # uint32 [contexts]
    maps: np.ndarray  # uint32 [contexts * 256]
    values: np.ndarray  # int64 [PREDICTIONS]: predictions of the sample
    centres: np.ndarray  # int64 [predictions]: predictions of the byte, in sixteenths
    levels: np.ndarray  # int64 [predictions]: contexts of the relative maps
    relative: np.ndarray  # uint32 [predictions * LEVELS * 8 * BINS]
    relative_at: np.ndarray  # int64 [predictions]
    direct: np.ndarray  # uint32 [direct * 65536]
    direct_at: np.ndarray  # int64 [direct]
    neighbours: np.ndarray  # int32 [NEIGHBOURS]
    covariances: np.ndarray  # int32 [REGRESSIONS, PLANES, NEIGHBOURS, NEIGHBOURS]
    products: np.ndarray  # int64 [REGRESSIONS, PLANES, NEIGHBOURS]
    factors: np.ndarray  # int32 [REGRESSIONS, PLANES, NEIGHBOURS]
    sums: np.ndarray  # int32 [2, columns of samples, TERMS]: those of rows above, and of the row
    left: np.ndarray  # int32 [PLANES, TERMS]
    right: np.ndarray  # int32 [TERMS]
    equations: np.ndarray  # float64 [INPUTS, INPUTS]
    solved: np.ndarray  # float64 [INPUTS]
    matches: np.ndarray  # match.STATE [matches]
    least_lengths: np.ndarray  # int64 [matches]
    match_table: np.ndarray  # int32
    match_maps: np.ndarray  # uint32
    inputs: np.ndarray  # int32
    weights: np.ndarray  # int32 [rows of all sets, inputs]
    rows: np.ndarray  # int64 [sets]
    logits: np.ndarray  # int32 [sets]
    final_weights: np.ndarray  # int32 [PLANES * 8, sets]
    apm_byte: np.ndarray  # uint32 [PLANES * 256, APM_STEPS]
    apm_level: np.ndarray  # uint32 [LEVELS * 8, APM_STEPS]


def margin(form: Layout) -> int:
    """Return the number of zeros before an image: three rows and some pixels are looked back to."""
    return 3 * up_of(form.stride, form.pixel) + 8 * form.pixel


def up_of(stride: int, pixel: int) -> int:
    """Return how many bytes before a byte the one above it is: that of a narrow image is another one."""
    return max(stride, 4 * pixel)


def memory(size: int, preset: Preset) -> int:
    """Estimate the bytes of the model of an image of `size` bytes."""
    maps = 4 * (2 * preset.predictions * LEVELS * 8 * BINS + preset.direct * 65536)
    misses = 4 * min(size, MOST_ROW) * preset.predictions
    sums = 8 * min(size, MOST_SUMS) * TERMS if preset.regressions else 0
    return (layout.LINE << _line_bits(size, preset)) + maps + misses + sums + 12 * size + (4 << 20)


def _line_bits(size: int, preset: Preset) -> int:
    return min(max((size * preset.contexts // 4).bit_length(), 8), preset.slot_bits)


def build_model(filtered: Filtered, form: Layout, preset: Preset) -> ImageModel:
    """Allocate the model of an image, whose data begins with `margin` zeros."""
    data = filtered.data
    size, n = data.size - margin(form), preset.contexts
    first_direct = n + 2 * preset.predictions
    first_match = first_direct + preset.direct
    bias = first_match + 2 * preset.matches
    inputs, lines = -(-(bias + 1) // 8) * 8, 1 << _line_bits(size, preset)
    ring = 1 << (up_of(form.stride, form.pixel) + 2 * form.pixel).bit_length()
    sets = len(ROWS) - (form.colours == 0)
    return ImageModel(
        **filtered._asdict(),
        flat_entries=np.full(flat.ENTRIES, adaptive.EVEN, np.uint32),
        misses=np.zeros((ring, preset.predictions), np.uint8),
        around=np.zeros((3, len(AROUND)), np.int64),
        state=layout.record(
            STATE,
            phase=PIXELS if form.colours or form.blocks else 0,
            padding=form.padding,
            pixel=form.pixel,
            sample=form.sample,
            samples=form.pixel // form.sample,
            exact=int(form.is_exact),
            ring=ring - 1,
            line_mask=lines - 1,
            first_relative=n,
            first_direct=first_direct,
            first_match=first_match,
            bias=bias,
            top=255 * 16 if form.sample == 1 else 65535,
        ),
        hashes=np.zeros(n, np.uint64),
        slots=layout.aligned_zeros(lines * layout.LINE),
        slot=np.zeros(n, np.uint32),
        entry=np.zeros(n, np.uint32),
        maps=np.tile(histories.START, n),
        values=np.zeros(PREDICTIONS, np.int64),
        centres=np.zeros(preset.predictions, np.int64),
        levels=np.zeros(preset.predictions, np.int64),
        relative=np.tile(START, 2 * preset.predictions),
        relative_at=np.zeros(2 * preset.predictions, np.int64),
        direct=np.full(preset.direct * 65536, 1 << 31, np.uint32),
        direct_at=np.zeros(preset.direct, np.int64),
        **_regressions(form, preset),
        matches=np.zeros(preset.matches, match.STATE),
        least_lengths=np.array(_LEAST_LENGTHS[: preset.matches], np.int64),
        match_table=match.fresh_table(preset.matches, data.size),
        match_maps=match.fresh_maps(preset.matches),
        inputs=np.zeros(inputs, np.int32),
        weights=_first_weights(form, inputs, n, first_direct, sets),
        rows=np.zeros(sets, np.int64),
        logits=np.zeros(sets, np.int32),
        final_weights=np.full((PLANES * 8, sets), mixer.WEIGHT_ONE // sets, np.int32),
        apm_byte=mixer.fresh_apm(PLANES * 256),
        apm_level=mixer.fresh_apm(LEVELS * 8),
    )


def _regressions(form: Layout, preset: Preset) -> dict[str, np.ndarray]:
    """Return the arrays of regression.py and nearby.py."""
    regressions, planes = (preset.regressions, PLANES) if preset.regressions else (1, 1)
    columns = min(form.stride // form.sample, MOST_SUMS) if preset.regressions else 0
    return {
        "neighbours": np.zeros(NEIGHBOURS * min(preset.regressions, 1), np.int32),
        "covariances": np.zeros((regressions, planes, NEIGHBOURS, NEIGHBOURS), np.int32),
        "products": np.zeros((regressions, planes, NEIGHBOURS), np.int64),
        "factors": np.zeros((regressions, planes, NEIGHBOURS), np.int32),
        "sums": np.zeros((2, columns, TERMS), np.int32),
        "left": np.zeros((PLANES, TERMS), np.int32),
        "right": np.zeros(TERMS, np.int32),
        "equations": np.zeros((INPUTS, INPUTS), np.float64),
        "solved": np.zeros(INPUTS, np.float64),
    }


def _first_weights(form: Layout, inputs: int, first_relative: int, first_direct: int, sets: int) -> np.ndarray:
    """Return int32 [sets of weights, inputs]; inputs below `first_relative` are contexts, then come relative maps."""
    weights = np.full((sum(ROWS[:sets]), inputs), WEIGHT, np.int32)
    if form.is_exact:
        weights[:, :first_relative], weights[:, first_relative:first_direct] = CONTEXT_WEIGHT, RELATIVE_WEIGHT
    return weights
