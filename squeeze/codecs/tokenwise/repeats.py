"""Repeats: tokens that a match model predicts with near certainty cost one decision, and bypass the language model.

If the latest tokens occurred before, the token that followed them is expected. Adaptive maps give the probability that
it comes again: of earlier repeats of this place, of hashes of the last one to five tokens, and of the lane's latest
expectations. A mixer combines them. At 98 % or more, only the decision whether it comes is coded. So the model spends
its time on what is new in a record. It is fed only the last tokens of a run of repeats.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.tokenwise import token_match
from squeeze.codecs.tokenwise.layout import LaneLayout
from squeeze.numerics.bitmodels import coder as arithmetic, contexts, histories, layout, mixer
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import STRETCH, squash
from squeeze.numerics.trie import Trie

_CERTAIN = np.int64((98 << 32) // 100)  # probability from which an entry bypasses the model
_INPUTS = 6
_MAP_BITS = 18
_LENGTHS = 32  # at least the number of classes of match length
_LIMITS = (255, 20, 20, 20, 20, 255)  # largest count of each input's map
_RATE = 80  # learning rate of weights in 1/4096
_BIAS = 1638  # Q12
_STATE = layout.fields("row logit")
NONE = -1


class Repeats(NamedTuple):
    """The arrays that coding repeats adds to a TokenMix."""

    state: Any  # a record of _STATE: row of weights and logit of the prediction
    to_encode: np.ndarray  # int64: all entries, one lane after the other; empty for decoding
    ends: np.ndarray  # int64 [lanes]: end of a lane's entries
    sizes: np.ndarray  # int64 [lanes]: end of a lane's bytes
    ruled_out: np.ndarray  # int64 [lanes]: the leaf that a lane's next entry is not, or NONE
    recent: np.ndarray  # int64 [lanes]: failures of its latest expectations, a bit each
    chains: np.ndarray  # uint16 [tokens]: failures at this place and at earlier places of its match, a bit each
    maps: np.ndarray  # uint32 [inputs, 2^bits]
    weights: np.ndarray  # int32 [rows, inputs + 1]
    places: np.ndarray  # int64 [inputs]: entry of each map
    inputs: np.ndarray  # int32 [inputs + 1]


def build(lanes: LaneLayout, to_encode: np.ndarray | None) -> Repeats:
    """Allocate untrained arrays; `to_encode` are the entries to encode, or None for decoding."""
    weights = np.full((64, _INPUTS + 1), mixer.FINE_ONE * 35 // 100, np.int32)
    weights[:, _INPUTS] = 0
    return Repeats(
        state=layout.record(_STATE),
        to_encode=np.zeros(0, np.int64) if to_encode is None else to_encode.astype(np.int64, copy=False),
        ends=np.cumsum(lanes.counts),
        sizes=np.cumsum(lanes.lengths),
        ruled_out=np.full(lanes.lanes, NONE, np.int64),
        recent=np.zeros(lanes.lanes, np.int64),
        chains=np.zeros(lanes.entries, np.uint16),
        maps=np.full((_INPUTS, 1 << _MAP_BITS), 1 << 31, np.uint32),
        weights=weights,
        places=np.zeros(_INPUTS, np.int64),
        inputs=np.zeros(_INPUTS + 1, np.int32),
    )


@inline
def _token(x, place, k):
    return np.uint64((np.int64(x.tokens[place - k]) if place >= k else -1) + 300)


@inline
def _place(h):
    return np.int64(h >> np.uint64(64 - _MAP_BITS))


@inline
def _predict(r, x, lane):
    """Return the 32-bit probability that a lane's next entry is the one its match expects; 0 if there is no match."""
    length, pointer = x.token_matches[lane].length, x.token_matches[lane].pointer
    if length == 0 or x.tokens[pointer] < 0:
        return np.int64(0)
    place, chain, recent = x.token_places[lane], np.int64(r.chains[pointer]), r.recent[lane]
    size = length if length < 16 else 16 + (length >= 32)
    h = contexts.mix_hash(np.uint64(x.tokens[pointer]), _token(x, place, 1))
    r.places[1] = _place(h)
    h = contexts.mix_hash(h, _token(x, place, 2))
    r.places[2] = _place(h)
    h = contexts.mix_hash(h, _token(x, place, 3))
    r.places[3] = _place(h)
    h = contexts.mix_hash(contexts.mix_hash(h, _token(x, place, 4)), _token(x, place, 5))
    r.places[4] = _place(h)
    r.places[0] = (chain & 4095) * _LENGTHS + size
    r.places[5] = ((recent & 63) * 16 + min(size, 15)) * 64 + (chain & 63)
    for k in range(_INPUTS):
        entry = np.int64(r.maps[k, r.places[k]])
        r.inputs[k] = STRETCH[entry >> 20] if entry & 1023 else 0
    r.inputs[_INPUTS] = _BIAS
    known = np.int64(r.maps[3, r.places[3]]) & 1023
    r.state.row = min(size, 15) * 4 + (chain & 1) * 2 + (known > 2)
    r.state.logit = mixer.dot_fine(r.weights[r.state.row], r.inputs)
    return np.int64(squash(r.state.logit))


@inline
def _learn(r, hit):
    """Train maps and weights on whether the expected entry came."""
    error = ((hit << 32) - hit - squash(r.state.logit)) >> 12
    mixer.train_fine(r.weights[r.state.row], r.inputs, error, _RATE)
    for k in range(_INPUTS):
        histories.learn(r.maps[k], r.places[k], hit, _LIMITS[k])


@inline
def follow(r, x, lane, entry):
    """Append a lane's next entry, and train if the match expected one."""
    place, pointer = x.token_places[lane], x.token_matches[lane].pointer
    probability, chain = _predict(r, x, lane), np.int64(1)
    if probability > 0:
        hit = np.int64(np.int64(x.tokens[pointer]) == entry)
        if r.ruled_out[lane] == NONE:
            _learn(r, hit)
        chain = np.int64(r.chains[pointer]) << 1 | (1 - hit)
        r.recent[lane] = (r.recent[lane] << 1 | (1 - hit)) & 0xFFFF
    r.chains[place] = np.uint16(chain & 0xFFFF)
    r.ruled_out[lane] = NONE
    token_match.update_token(x, lane, entry)


@inline
def code_run(r, m, x, t, lane, coder, coded, decoding):
    """Code the entries of a lane that its match expects, until one is not certain or does not come.

    Without bytewise models (`m` None) nothing is coded, which plans what the model is fed.

    Returns:
        False if `coded` is full, or cannot have been coded so.
    """
    while x.token_places[lane] < r.ends[lane]:
        probability = _predict(r, x, lane)
        if probability < _CERTAIN:
            break
        place, leaf = x.token_places[lane], np.int64(x.tokens[x.token_matches[lane].pointer])
        begin, length = t.offsets[leaf], t.offsets[leaf + 1] - t.offsets[leaf]
        if x.places[lane] + length > r.sizes[lane]:
            break
        hit = np.int64(0)
        if not decoding:
            hit = np.int64(r.to_encode[place] == leaf)
        if m is not None:
            room = arithmetic.SPARE if decoding else -arithmetic.SPARE
            if np.int64(coder[arithmetic.POSITION]) > coded.size + room:
                return False
            if decoding:
                hit = np.int64(arithmetic.decode(probability, coder, coded))
            else:
                arithmetic.encode(hit, probability, coder, coded)
        if hit == 0:
            _learn(r, hit)
            r.ruled_out[lane] = leaf
            break
        follow(r, x, lane, leaf)
        if m is not None:
            for i in range(length):
                m.state.partial = 256 | np.int64(t.spelling[begin + i])
                bytewise.end_byte(m, x.places[lane] + i)
                contexts.update_token_byte(m.registers, np.uint64(t.spelling[begin + i]))
            contexts.update_token(m.registers, np.uint64(leaf + 256))
        x.places[lane] += length
    return True


class _Tokens(NamedTuple):
    """The arrays of a TokenMix that repeats use."""

    places: np.ndarray
    tokens: np.ndarray
    token_places: np.ndarray
    token_matches: np.ndarray
    token_table: np.ndarray


@kernel
def _plan(r, x, t, coder, coded, repeated, ruled_out):
    left = True
    while left:
        left = False
        for lane in range(r.ends.size):
            place = x.token_places[lane]
            if place >= r.ends[lane]:
                continue
            left = True
            entry, ruled_out[place] = r.to_encode[place], r.ruled_out[lane]
            x.places[lane] += t.offsets[entry + 1] - t.offsets[entry] if entry >= 0 else 1
            follow(r, x, lane, entry)
            code_run(r, None, x, t, lane, coder, coded, False)
            repeated[place + 1 : x.token_places[lane]] = True


def plan(t: Trie, lanes: LaneLayout, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decide which entries of a block bypass the model.

    Args:
        t: trie of the vocabulary.
        lanes: layout of the block.
        entries: int64 [entries].

    Returns:
        entries that bypass it, bool [entries], and the leaf that each other entry is not, int64 [entries] or -1.
    """
    x = _Tokens(
        places=np.cumsum(lanes.lengths) - lanes.lengths,
        tokens=np.full(entries.size, -1, np.int32),
        token_places=np.cumsum(lanes.counts) - lanes.counts,
        token_matches=np.zeros(lanes.lanes, token_match.STATE),
        token_table=np.zeros(1 << token_match.TABLE_BITS, np.int32),
    )
    repeated, ruled_out = np.zeros(entries.size, np.bool_), np.full(entries.size, NONE, np.int64)
    _plan(build(lanes, entries), x, t, np.zeros(3, np.uint64), np.zeros(0, np.uint8), repeated, ruled_out)
    return repeated, ruled_out
