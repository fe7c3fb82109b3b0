"""The arrays of the deep model (model.py) outside its predictors: mixers and APMs, their sizes and first values."""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.deep import predictors
from squeeze.codecs.deep.byte_predictions import TOP_PREDICTIONS
from squeeze.codecs.deep.predictor import Arrays, Extent
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics import vectors
from squeeze.numerics.bitmodels import cells, context_state, copied, fields, layout, mixer, strides


class Sets(NamedTuple):
    """Mixer weight sets by the context that selects a row; a preset uses the first N of them."""

    always: int
    bits: int  # bits of the byte so far, and the bit that the longest match predicts
    latest: int  # last byte
    known: int  # number of contexts that were seen before, and the match length
    second: int  # second last byte
    classes: int  # classes of the last two bytes
    expected: int  # byte that the longest match predicts
    column: int
    third: int
    top_prediction: int  # most probable byte of the network
    word_length: int
    bracket: int
    history2: int  # bit history of order 2
    history3: int


class Finals(NamedTuple):
    """Mixers of the second layer by the context that selects a row; the last is used with a network only."""

    bits: int
    latest: int
    known: int
    top_prediction: int


class Refinements(NamedTuple):
    """Adaptive probability maps (APM, or SSE) by the context that selects a row; each has 65,536 rows."""

    bits: int
    latest: int
    order2: int
    word: int


_SET_ROWS = Sets(1, 768, *[2048] * 12)
SET, FIRST_ROW = Sets(*range(len(_SET_ROWS))), layout.offsets(_SET_ROWS)
FINAL_ROWS = Finals(bits=256, latest=2048, known=256, top_prediction=TOP_PREDICTIONS * 8)
FINAL, FIRST_FINAL = Finals(*range(len(FINAL_ROWS))), layout.offsets(FINAL_ROWS)
APM = Refinements(*range(len(Refinements._fields)))
_APM_ROWS = 1 << 16
FIRST_APM = layout.offsets(Refinements(*[_APM_ROWS] * len(APM)))

# Learning rates: of a weight set after many updates, added at first, decay of that, of the second layer.
_RATES = ("rate", "first_rate", "fading", "final_rate")
STATE = layout.fields(
    "record machine lines copied sets has_network cells strides"  # record length, or 0 without records; machine of
    #   risc.py, 1 for x86, or 0; number of weight sets; the others are 0 or 1
    " partial shift node known matched top_prediction history2 history3 logit mixed",  # the bit being coded
    floats=" ".join(_RATES) + " network_logit",
)


class DeepModel(NamedTuple):
    """All predictors and mixers of a block as arrays: the state that encoder and decoder share."""

    data: np.ndarray  # uint8: the block, as far as it is decoded
    state: Any  # a record of STATE
    registers: np.ndarray  # uint64
    followed1: np.ndarray  # uint16 [256]
    followed2: np.ndarray  # uint16 [65536]
    followed3: np.ndarray  # uint16 [2^18]
    stack: np.ndarray  # uint8 [STACK]: open brackets
    places: np.ndarray  # int32 [PLACES] of fields.py, or [1] without lines
    numbers: np.ndarray  # int64 [NUMBERS, 3], or [1, 3]
    distances: np.ndarray  # int32 [2 * ROWS] of copied.py, or [1] if no context has its registers
    usual: np.ndarray  # int32 [PLACES, WIDTH] of cells.py, or [1, WIDTH] without cells
    positions: np.ndarray  # int32 [POSITIONS] of strides.py, or [1] if no context has its registers
    predictors: tuple[Arrays, ...]  # arrays of each of predictors.PREDICTORS
    first: np.ndarray  # int64 [predictors]: first input of each
    inputs: np.ndarray  # float32
    weights: np.ndarray  # float32 [rows * inputs]
    rows: np.ndarray  # int64 [len(SET)]
    visits: np.ndarray  # int32 [rows]: updates of a row, which lower its learning rate
    logits: np.ndarray  # float32 [sets and padding]
    finals: np.ndarray  # float32 [rows * logits]
    final_rows: np.ndarray  # int64 [len(FINAL)]
    final_logits: np.ndarray  # float32 [len(FINAL)]
    apms: np.ndarray  # uint32 [rows, STEPS]
    apm_rows: np.ndarray  # int64 [len(APM)]


def build_model(
    data: np.ndarray, preset: DeepPreset, record: int = 0, text_size: int = 0, has_network: bool = False
) -> DeepModel:
    """Allocate untrained models for one block; sizes of tables follow from its length.

    Args:
        data: uint8 [n], a dictionary's text and the block.
        preset: contexts, match models, mixers.
        record: length of a record in bytes for tables and cells, or 0.
        text_size: bytes of `data` that a dictionary has read already.
        has_network: whether the byte network takes part.
    """
    first, weights = predictors.lay_out(preset)
    rows, finals = sum(_SET_ROWS[: preset.selectors]), sum(FINAL_ROWS)
    logits = -(-(preset.selectors + 1) // vectors.LANES) * vectors.LANES  # the network's logit is the last
    settings = {"record": 0 if preset.machine else record, "machine": preset.machine, "lines": preset.lines}
    settings |= {"sets": preset.selectors, "has_network": has_network}
    registers = {register for first, _, second, _ in preset.contexts for register in (first, second)}
    settings["cells"] = context_state.CELLS in registers
    settings["copied"] = context_state.COPIED in registers
    settings["strides"] = not registers.isdisjoint(range(context_state.STRIDES, context_state.REGISTERS))
    model = DeepModel(
        data=data,
        state=layout.record(STATE, **settings, **dict(zip(_RATES, preset.rates, strict=True)), partial=1),
        registers=np.zeros(context_state.REGISTERS, np.uint64),
        followed1=np.zeros(256, np.uint16),
        followed2=np.zeros(65536, np.uint16),
        followed3=np.zeros(1 << 18, np.uint16),
        stack=np.zeros(context_state.STACK, np.uint8),
        places=np.zeros(fields.PLACES if preset.lines else 1, np.int32),
        numbers=np.zeros((fields.NUMBERS if preset.lines else 1, 3), np.int64),
        distances=np.zeros(2 * copied.ROWS if settings["copied"] else 1, np.int32),
        usual=np.zeros((cells.PLACES if settings["cells"] else 1, cells.WIDTH), np.int32),
        positions=np.zeros(strides.POSITIONS if settings["strides"] else 1, np.int32),
        predictors=predictors.build(preset, Extent(data.size, text_size)),
        first=first,
        inputs=np.zeros(weights.size, np.float32),
        weights=np.zeros(rows * weights.size, np.float32),  # row 0: below
        rows=np.zeros(len(SET), np.int64),
        visits=np.zeros(rows, np.int32),
        logits=np.zeros(logits, np.float32),
        finals=np.full(finals * logits, 1 / preset.selectors, np.float32),
        final_rows=np.zeros(len(FINAL), np.int64),
        final_logits=np.zeros(len(FINAL), np.float32),
        apms=mixer.fresh_apm(len(APM) * _APM_ROWS),
        apm_rows=np.zeros(len(APM), np.int64),
    )
    model.weights[: weights.size] = weights
    return model
