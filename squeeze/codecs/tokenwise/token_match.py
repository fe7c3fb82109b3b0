"""A match model of tokens: the token that followed the last occurrence of the latest four tokens, in any lane, is
expected."""

import numpy as np

from squeeze.numerics.bitmodels import contexts, histories, layout
from squeeze.numerics.jit import inline
from squeeze.numerics.logistic import STRETCH

STATE = layout.fields("pointer length")  # match of a lane
TABLE_BITS = 18
LENGTHS = 32  # classes of match length, each with an entry of the adaptive map
LIMIT = 255  # largest count of the adaptive map
_ORDER = 4  # tokens that are hashed


@inline
def expect(x, lane):
    """Enter a lane, and set the entry that its match expects."""
    lane_match = x.token_matches[lane]
    x.state.expected, x.state.match_length = -1, lane_match.length
    if lane_match.length > 0 and x.state.has_token_match:
        x.state.expected = x.tokens[lane_match.pointer]


@inline
def gather(x, t, node, inputs, first):
    """Write two mixer inputs, by what followed the latest tokens before."""
    leaf = x.state.expected
    x.state.match_entry, x.state.matched = -1, 0
    inputs[first], inputs[first + 1] = 0, 0
    if leaf >= t.low[node] and leaf < t.high[node]:
        bit = np.int64(leaf >= t.middle[node])
        entry = min(x.state.match_length, LENGTHS - 1)
        x.state.match_entry, x.state.matched = entry * 2 + bit, 1 + min(entry >> 2, 3)
        probability = np.int64(x.token_maps[entry] >> np.uint32(20))
        logit, tilt = np.int64(STRETCH[probability]), (probability - 2048) * 2
        inputs[first] = logit if bit else -logit
        inputs[first + 1] = tilt if bit else -tilt


@inline
def follow_bit(x, bit):
    """Drop a match that expected another bit."""
    entry = x.state.match_entry
    if entry >= 0 and (entry & 1) != bit:
        x.state.expected = -1


@inline
def update_bit(x, bit):
    """Train the adaptive map on a bit, and drop a match that expected another."""
    entry = x.state.match_entry
    if entry >= 0:
        histories.learn(x.token_maps, entry >> 1, np.int64((entry & 1) == bit), LIMIT)
    follow_bit(x, bit)


@inline
def update_token(x, lane, entry):
    """Append a token: extend the lane's match, or find one."""
    place = x.token_places[lane]
    x.tokens[place] = entry
    x.token_places[lane] = place + 1
    pointer, length = x.token_matches[lane].pointer, x.token_matches[lane].length
    if length > 0 and pointer + 1 < x.tokens.size and x.tokens[pointer] == entry:
        pointer, length = pointer + 1, length + 1
    else:
        length = 0
    h = np.uint64(0)
    for k in range(_ORDER):
        h = contexts.mix_hash(h, np.uint64((x.tokens[place - k] if place >= k else -1) + 300))
    row = np.int64(h >> np.uint64(64 - TABLE_BITS))
    candidate = np.int64(x.token_table[row])
    if length == 0 and candidate > 0:
        while (
            length < min(candidate, 32)
            and length <= place
            and x.tokens[candidate - 1 - length] == x.tokens[place - length]
        ):
            length += 1
        pointer, length = candidate, length if length >= _ORDER - 1 else 0
    x.token_matches[lane].pointer, x.token_matches[lane].length = pointer, length
    x.token_table[row] = place + 1 if place + 1 < x.tokens.size else 0
