"""The state of tokenwise context mixing (model.py): its arrays, their sizes, and their first values."""

from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.bytewise.state import ByteModel
from squeeze.codecs.tokenwise import token_match
from squeeze.numerics import trie
from squeeze.numerics.bitmodels import contexts, layout, match, mixer


class Inputs(NamedTuple):
    """Mixer inputs in addition to those of the bytewise models: the number of each."""

    model: int  # the language model's logit
    token_match: int
    bytewise: int  # logit of the bytewise models alone
    refined: int  # the language model's logit after an APM


class Sets(NamedTuple):
    """Mixer weight sets by the context that selects a row."""

    match: int  # length of the byte match, and whether tokens match
    bits: int  # bits of the byte so far
    confidence: int  # confidence of the language model
    latest: int  # last byte
    known: int  # number of contexts that were seen before
    column: int
    token: int  # previous token
    node: int  # node of the trie


class Refinements(NamedTuple):
    """Adaptive probability maps (APM, or SSE) by the context that selects a row."""

    bits: int  # bits of the byte so far
    latest: int  # last two bytes
    column: int
    word: int
    model: int  # last byte; refines the language model's logit, which is an input


STOP_ORDERS = 6  # contexts of the decision whether a token ends
STOP_BITS = 20
CONFIDENCES, TOP_CLASSES = 12, 8  # classes of the model's logit, and of its top token's probability
WIDTHS = Inputs(model=1, token_match=2, bytewise=1, refined=1)
INPUT = layout.offsets(WIDTHS)  # places after the first extra input of the bytewise models
EXTRA = sum(WIDTHS)
SET = Sets(*range(len(Sets._fields)))
_ROWS = Sets(
    match=32,
    bits=512,
    confidence=CONFIDENCES * TOP_CLASSES,
    latest=2048,
    known=256,
    column=2048,
    token=4096,
    node=0,  # one per node of the trie
)
FIRST_ROW = layout.offsets(_ROWS)
FINAL_ROWS = 1024
APM = Refinements(*range(len(Refinements._fields)))
_APM_ROWS = 1 << 16  # of each
FIRST_APM = layout.offsets(Refinements(*[_APM_ROWS] * len(APM)))
_WEIGHT = mixer.FINE_ONE // 50  # first weight of inputs other than the language model, whose weight is 1

# Parts that can be left out for ablations: inputs, weight sets, refinements, and contexts of stopping.
PARTS = (
    *(f"input {name}" for name in ("token_match", "bytewise", "refined")),
    *(f"set {name}" for name in SET._fields),
    *(f"refinement {name}" for name in APM._fields[: APM.model]),
    "stops",
)

STATE = layout.fields(
    "top_nll model_logit logit mixed final_row decisions"  # the decision being coded; decisions so far
    " match_entry match_length expected matched"  # of the lane's token match
    " has_token_match has_bytewise has_refined has_stops"  # which inputs there are: 0 or 1
)


class TokenMix(NamedTuple):
    """The arrays that levels 7 to 9 add to the bytewise models."""

    state: Any  # a record of STATE
    registers: np.ndarray  # uint64 [lanes, REGISTERS]: history registers of lanes that are not being coded
    matches: np.ndarray  # match.STATE [lanes, matches]
    places: np.ndarray  # int64 [lanes]: offset of the lane's next byte
    tokens: np.ndarray  # int32: entries of all lanes, one lane after the other; -1 if not coded yet
    token_places: np.ndarray  # int64 [lanes]
    token_matches: np.ndarray  # token_match.STATE [lanes]
    token_table: np.ndarray  # int32 [2^bits]: last place of each hash of tokens
    token_maps: np.ndarray  # uint32 [token_match.LENGTHS]
    escape: np.ndarray  # uint32 [1]: probability that a byte is escaped
    weights: np.ndarray  # int32 [rows, inputs]
    sets: np.ndarray  # int64: weight sets that are used, places in SET
    rows: np.ndarray  # int64 [len(SET)]
    logits: np.ndarray  # int32 [len(SET)]
    final_weights: np.ndarray  # int32 [FINAL_ROWS, len(SET)]
    apms: np.ndarray  # uint32 [rows, steps]
    apm_rows: np.ndarray  # int64 [len(APM)]
    refines: np.ndarray  # bool [len(APM)]: which refinements there are
    stop_maps: np.ndarray  # uint32 [orders, 2^bits]
    stop_entries: np.ndarray  # int64 [orders]


def build_mix(m: ByteModel, t: trie.Trie, counts: np.ndarray, without: Set[str] = frozenset()) -> TokenMix:
    """Allocate untrained models for a block.

    Args:
        m: the bytewise models.
        t: trie of the vocabulary.
        counts: int64 [lanes], entries of each lane.
        without: names in PARTS that are left out, for ablations.
    """
    assert without <= set(PARTS), without
    lanes, extra = counts.size, int(m.state.first_extra)
    weights = np.full((FIRST_ROW.node + max(t.low.size, 1), m.inputs.size), _WEIGHT, np.int32)
    weights[:, extra + INPUT.model] = mixer.FINE_ONE
    weights[:, (m.state.bias, extra + INPUT.refined)] = 0  # the latter repeats the model
    sets = [k for k, name in enumerate(SET._fields) if f"set {name}" not in without]
    uses = {f"has_{name}": f"input {name}" not in without for name in ("token_match", "bytewise", "refined")}
    return TokenMix(
        state=layout.record(STATE, has_stops="stops" not in without, **uses),
        registers=np.zeros((lanes, contexts.REGISTERS), np.uint64),
        matches=np.zeros((lanes, m.matches.size), match.STATE),
        places=np.zeros(lanes, np.int64),
        tokens=np.full(int(counts.sum()), -1, np.int32),
        token_places=np.cumsum(counts) - counts,
        token_matches=np.zeros(lanes, token_match.STATE),
        token_table=np.zeros(1 << token_match.TABLE_BITS, np.int32),
        token_maps=np.full(token_match.LENGTHS, match.START_ENTRY, np.uint32),
        escape=np.full(1, (1 << 12) << 10, np.uint32),
        weights=weights,
        sets=np.array(sets, np.int64),
        rows=np.zeros(len(SET), np.int64),
        logits=np.zeros(len(SET), np.int32),
        final_weights=np.full((FINAL_ROWS, len(SET)), mixer.FINE_ONE // len(sets), np.int32),
        apms=mixer.fresh_apm(len(APM) * _APM_ROWS),
        apm_rows=np.zeros(len(APM), np.int64),
        refines=np.array([f"refinement {name}" not in without for name in APM._fields]),
        stop_maps=np.full((STOP_ORDERS, 1 << STOP_BITS), 1 << 31, np.uint32),
        stop_entries=np.zeros(STOP_ORDERS, np.int64),
    )
