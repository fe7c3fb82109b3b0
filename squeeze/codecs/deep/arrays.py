"""The arrays of deep context mixing (deepmodel.py), their sizes, and what fresh ones hold."""

from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import evidence, histories, match, mixer
from squeeze.codecs.bitmodels import surroundings as around
from squeeze.codecs.bytewise import aligned_zeros
from squeeze.codecs.deep.presets import GROUPS, DeepPreset, group_of

# Scalars of a model.
PARTIAL, SHIFT, NODE, KNOWN, MATCHED, LOGIT, MIXED, OUTLOOK, SSM_ENTRY = range(9)
# Settings of a model.
RECORD, BUCKETS, RUN_MASK, SETS, SSM, LEARNED = range(6)
# Rates of a model: of a weight set used for long, what is added at first, how fast that fades, of the last layer.
RATE, FIRST_RATE, FADING, FINAL_RATE = range(4)

PER_CONTEXT = 4  # inputs, one of each kind
_SET_ROWS = (1, 768, *[2048] * 12)
OUTLOOKS = 8 * 3  # how sure the state-space model is, and what its likeliest byte says of the next bit
FINAL_ROWS = (256, 2048, 256, OUTLOOKS * 8)  # the last with a state-space model only
FINALS = len(FINAL_ROWS)
APMS = 4
APM_ROWS = 1 << 16
_START_WEIGHT = 0.03
_MEAN_WEIGHTS = (0.84, 0, 0, 0)  # at first, of the means of inputs
_START_COUNT = 6  # observations that a fresh adaptive map's first guess is worth


class Model(NamedTuple):
    """Everything that predicts but the state-space model, in arrays: the shared state of encoder and decoder."""

    data: np.ndarray  # uint8: the block, as far as it is known
    settings: np.ndarray  # int64
    rates: np.ndarray  # float32
    scalars: np.ndarray  # int64
    registers: np.ndarray  # uint64
    followed1: np.ndarray
    followed2: np.ndarray
    followed3: np.ndarray
    stack: np.ndarray
    specs: np.ndarray  # uint64 [n, 4]
    groups: np.ndarray  # int64 [GROUPS + 1]: where each group of contexts begins
    hashes: np.ndarray  # uint64 [n]
    slots: np.ndarray  # uint8, aligned to cache lines
    counters: np.ndarray  # the same memory as uint16
    history_at: np.ndarray  # int64 [n]
    counter_at: np.ndarray  # int64 [n]
    entry: np.ndarray  # int64 [n]
    maps: np.ndarray  # uint32 [n * 256]
    runs: np.ndarray  # uint16 [n, 2^bits]
    run_at: np.ndarray  # int64 [n]
    run_entry: np.ndarray  # int64 [n]
    run_maps: np.ndarray  # uint32 [n * RUN_MAP]
    matches: np.ndarray  # int64 [matches, 5]
    least_lengths: np.ndarray
    match_table: np.ndarray
    match_maps: np.ndarray
    match_inputs: np.ndarray  # int32
    inputs: np.ndarray  # float32
    weights: np.ndarray  # float32 [rows, inputs] flat
    first_row: np.ndarray  # int64 [selectors]
    rows: np.ndarray  # int64 [selectors]
    visits: np.ndarray  # int32 [rows]: how often a row was used
    logits: np.ndarray  # float32 [selectors padded]
    finals: np.ndarray  # float32 [rows * selectors padded]
    final_rows: np.ndarray  # int64 [FINALS]
    final_logits: np.ndarray  # float32
    apms: np.ndarray  # uint32 [APMS * APM_ROWS, STEPS]
    apm_rows: np.ndarray
    ssm_map: np.ndarray  # uint32 [32 * 192]
    learned: np.ndarray  # uint8: slots of a dictionary, settings[LEARNED] buckets of them; only read
    learned_counters: np.ndarray  # the same memory as uint16


def build_model(data: np.ndarray, preset: DeepPreset, record: int = 0, known: int = 0) -> Model:
    """Fresh models for one block, the first `known` bytes of `data` left out; table sizes follow from its length."""
    n, matches, sets = len(preset.contexts), len(preset.matches), preset.selectors
    width = -(-(PER_CONTEXT * (n + 1 + GROUPS) + 2 * matches + 4) // 16) * 16
    deep = -(-(sets + 1) // 16) * 16  # logits of the sets and of the state-space model
    buckets = min(
        max((data.size - known) * n // 3, 1 << 8), preset.buckets
    )  # two slots for a byte and context, two thirds of them
    match_bits = min(max(data.size.bit_length(), 8), 22)
    slots = aligned_zeros(buckets * evidence.BUCKET)
    run_bits = min(max(data.size.bit_length(), 8), 20)
    rows = np.array(_SET_ROWS[:sets])
    model = Model(
        data=data,
        settings=np.array([record, buckets, (1 << run_bits) - 1, sets, preset.ssm is not None, 0], np.int64),
        rates=np.array(preset.rates, np.float32),
        scalars=np.zeros(16, np.int64),
        registers=np.zeros(around.REGISTERS, np.uint64),
        followed1=np.zeros(256, np.uint16),
        followed2=np.zeros(65536, np.uint16),
        followed3=np.zeros(1 << 18, np.uint16),
        stack=np.zeros(around.STACK, np.uint8),
        specs=np.array(preset.contexts, np.uint64),
        groups=np.searchsorted([group_of(context) for context in preset.contexts], np.arange(GROUPS + 1)),
        hashes=np.zeros(n, np.uint64),
        slots=slots,
        counters=slots.view(np.uint16),
        history_at=np.zeros(n, np.int64),
        counter_at=np.zeros(n, np.int64),
        entry=np.zeros(n, np.int64),
        maps=np.tile(histories.START | np.uint32(_START_COUNT), n),
        runs=np.zeros((n, 1 << run_bits), np.uint16),
        run_at=np.zeros(n, np.int64),
        run_entry=np.zeros(n, np.int64),
        run_maps=np.full(n * evidence.RUN_MAP, match.START_ENTRY, np.uint32),
        matches=np.zeros((matches, 5), np.int64),
        least_lengths=np.array(preset.matches, np.int64),
        match_table=np.zeros((matches, 1 << match_bits), np.int32),
        match_maps=np.full(matches * match.ENTRIES, match.START_ENTRY, np.uint32),
        match_inputs=np.zeros(2 * matches, np.int32),
        inputs=np.zeros(width, np.float32),
        weights=np.zeros(int(rows.sum()) * width, np.float32),  # but the first row, which the others begin as
        first_row=np.array([sum(_SET_ROWS[:k]) for k in range(len(_SET_ROWS))], np.int64),
        rows=np.zeros(len(_SET_ROWS), np.int64),
        visits=np.zeros(int(rows.sum()), np.int32),
        logits=np.zeros(deep, np.float32),
        finals=np.full(sum(FINAL_ROWS) * deep, 1 / sets, np.float32),
        final_rows=np.zeros(FINALS, np.int64),
        final_logits=np.zeros(FINALS, np.float32),
        apms=mixer.fresh_apm(APMS * APM_ROWS),
        apm_rows=np.zeros(APMS, np.int64),
        ssm_map=np.repeat(((np.arange(32, dtype=np.uint32) * 2 + 1) << 26) | _START_COUNT, OUTLOOKS * 8).astype(
            np.uint32
        ),
        learned=slots[:0],
        learned_counters=slots.view(np.uint16)[:0],
    )
    model.weights[:width] = _START_WEIGHT
    model.weights[PER_CONTEXT * n : PER_CONTEXT * (n + 1)] = _MEAN_WEIGHTS
    model.weights[PER_CONTEXT * (n + 1) : PER_CONTEXT * (n + 1 + GROUPS)] = 0
    model.scalars[PARTIAL] = 1
    return model
