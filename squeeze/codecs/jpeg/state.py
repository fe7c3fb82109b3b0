"""The state of the model of coefficients: its arrays, their sizes, and their first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.jpeg.layout import Component, Frame
from squeeze.numerics.bitmodels import layout, mixer

__all__ = ["CONTEXTS", "SETS", "SIGNED", "UNSIGNED", "Model", "Plane", "fresh", "memory", "plane"]

CONTEXTS = 16
INPUTS = CONTEXTS + 2  # a constant, and padding
SETS = 4  # weight sets of the mixer
ROW, ROWS = 256, 8 * 256  # rows of each for one kind of decisions, and for all eight
APMS, APM_ROWS = 2, 1 << 16
SIGNED, UNSIGNED = 10, 12  # inputs of the linear predictors of a coefficient and of its size
_MOST_BITS = 20  # of the indices of a table of contexts
_ENTRIES = 100  # of a table for each block
_CLASSES = 2  # luma and chroma
_WEIGHT = 8192  # first weight of an input; 65536 is 1
_FIRST_SIGNED, _FIRST_UNSIGNED = 4096, 6000  # first weights of the linear predictors; 65536 is 1

STATE = layout.fields(
    "mask apm0 apm1"  # mask of the indices of a table, and contexts of the APMs
    " left up corner next_up other"  # blocks around the present one, and that of the component before, or -1
    " spread edge energy before second_before"  # what is known of it
)


class Model(NamedTuple):
    """The model of an image's coefficients, which encoder and decoder share."""

    state: Any  # a record of STATE
    table: np.ndarray  # uint32 [CONTEXTS, 2^bits]: probabilities of a one, 22 bits, and below them counts, 10 bits
    hashes: np.ndarray  # uint64 [CONTEXTS]: contexts of a number
    places: np.ndarray  # int64 [CONTEXTS]: their entries for a bit
    inputs: np.ndarray  # int32 [INPUTS]
    weights: np.ndarray  # int32 [SETS * ROWS, INPUTS]
    choices: np.ndarray  # int64 [SETS]: contexts that choose a row of each weight set
    rows: np.ndarray  # int64 [SETS]: the rows of a bit
    logits: np.ndarray  # int32 [SETS]
    final_weights: np.ndarray  # int32 [ROWS, SETS]
    apms: np.ndarray  # uint32 [APMS * APM_ROWS, APM_STEPS]
    signed: np.ndarray  # int64 [64 * _CLASSES, SIGNED]: weights that predict a coefficient
    unsigned: np.ndarray  # int64 [64 * _CLASSES, UNSIGNED]: weights that predict its size
    signs: np.ndarray  # int64 [SIGNED]: inputs of the first
    sizes: np.ndarray  # int64 [UNSIGNED]: inputs of the second
    edges: np.ndarray  # int64 [16]: upper and left edge of a block, as the blocks there end
    known: np.ndarray  # int64 [16]: the same edges of the part of a block that is coded
    counts: np.ndarray  # uint8 [blocks]: coefficients other than zero, the first left out
    residuals: np.ndarray  # int32 [blocks]: errors of the prediction of the first coefficient
    below: np.ndarray  # int64 [most blocks of a row, 8]: lower edges of the row above
    coefficients: np.ndarray  # int16 [blocks, 64], in rows


class Plane(NamedTuple):
    """A component as arrays of numbers: the shape of its blocks, and where those of the component before are."""

    first: int
    wide: int
    high: int
    chroma: int  # 1 for chroma, else 0
    other_first: int  # of the component before; -1 if there is none
    other_wide: int
    other_high: int
    steps: np.ndarray  # int64 [64], at least 1


def plane(components: tuple[Component, ...], index: int) -> Plane:
    """Return a component for the model."""
    own, before = components[index], components[index - 1] if index else None
    shape = (before.first, before.wide, before.high) if before else (-1, 1, 1)
    return Plane(own.first, own.wide, own.high, int(index in (1, 2)), *shape, np.maximum(own.steps, 1))


def _bits(blocks: int) -> int:
    return min(max((blocks * _ENTRIES).bit_length(), 12), _MOST_BITS)


def memory(blocks: int) -> int:
    """Return the bytes of a model, its coefficients, and the order of a scan."""
    return 160 * blocks + (4 * CONTEXTS << _bits(blocks)) + (24 << 20)


def fresh(frame: Frame, coefficients: np.ndarray) -> Model:
    """Return the model at the start of an image, int16 [blocks, 64]."""
    bits, widest = _bits(frame.blocks), max(component.wide for component in frame.components)
    return Model(
        state=layout.record(STATE, mask=(1 << bits) - 1),
        table=np.full((CONTEXTS, 1 << bits), 1 << 31, np.uint32),
        hashes=np.zeros(CONTEXTS, np.uint64),
        places=np.zeros(CONTEXTS, np.int64),
        inputs=np.zeros(INPUTS, np.int32),
        weights=np.full((SETS * ROWS, INPUTS), _WEIGHT, np.int32),
        choices=np.zeros(SETS, np.int64),
        rows=np.zeros(SETS, np.int64),
        logits=np.zeros(SETS, np.int32),
        final_weights=np.full((ROWS, SETS), mixer.WEIGHT_ONE // SETS, np.int32),
        apms=mixer.fresh_apm(APMS * APM_ROWS),
        signed=np.full((64 * _CLASSES, SIGNED), _FIRST_SIGNED, np.int64),
        unsigned=np.full((64 * _CLASSES, UNSIGNED), _FIRST_UNSIGNED, np.int64),
        signs=np.zeros(SIGNED, np.int64),
        sizes=np.zeros(UNSIGNED, np.int64),
        edges=np.zeros(16, np.int64),
        known=np.zeros(16, np.int64),
        counts=np.zeros(frame.blocks, np.uint8),
        residuals=np.zeros(frame.blocks, np.int32),
        below=np.zeros((widest, 8), np.int64),
        coefficients=coefficients,
    )
