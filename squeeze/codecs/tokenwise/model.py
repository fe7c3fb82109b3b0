"""Tokenwise context mixing, levels 7 to 9: a token is coded as a path through the trie of the vocabulary.

At each node of the path one binary decision is coded (decision.py): a bit of the token's next byte, or whether the
token ends. Tokens come in *lanes*, which take turns, one token each. All lanes share tables and weights; each has its
own history. A byte that no token spells is an *escape*, coded by the bytewise models.
"""

import numpy as np

from squeeze.codecs.bytewise import model as bytewise
from squeeze.codecs.tokenwise import measure, repeats, token_match
from squeeze.codecs.tokenwise.decision import (
    correct,
    gather_byte,
    gather_stop,
    learn_byte,
    learn_stop,
    predict,
)
from squeeze.numerics import frequencies, trie
from squeeze.numerics.bitmodels import coder as arithmetic, contexts, histories
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.trie import STOP

ESCAPE_LIMIT = 1000  # largest count of the escape probability


@inline
def spare_bytes(decisions):
    """Return more bytes than an entry of `decisions` decisions can add to the coded bytes."""
    return 4 * decisions + arithmetic.SPARE


@inline
def top_nll(cdf, r):
    """Return -ln(p) of the language model's top token with 24 fractional bits; 0 if that was ruled out."""
    return max(trie.logarithm(np.int64(frequencies.total(cdf, r))) - trie.FIRST_CHOICE, 0)


@inline
def _end_byte(m, position, byte):
    m.state.partial = 256 | np.int64(byte)
    bytewise.end_byte(m, position)
    contexts.update_token_byte(m.registers, np.uint64(byte))


@inline
def _enter_lane(m, x, lane):
    for i in range(m.registers.size):
        m.registers[i] = x.registers[lane, i]
    for k in range(m.matches.size):
        m.matches[k] = x.matches[lane, k]
    token_match.expect(x, lane)


@inline
def _put_aside(m, x, lane):
    for i in range(m.registers.size):
        x.registers[lane, i] = m.registers[i]
    for k in range(m.matches.size):
        x.matches[lane, k] = m.matches[k]


@inline
def _leave_lane(m, x, lane, entry, r):
    contexts.update_token(m.registers, np.uint64(entry + 256))
    _put_aside(m, x, lane)
    if r is not None:
        repeats.follow(r, x, lane, entry)
    else:
        token_match.update_token(x, lane, entry)


@inline
def _code_escape(x, coder, coded, escaped, decoding, meter):
    """Code whether the next entry is a byte that no token spells."""
    probability = max((np.int64(x.escape[0]) >> 10) << 10, 1 << 8)
    if decoding:
        escaped = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(escaped, probability, coder, coded)
    if meter is not None:
        measure.note_escape(meter, escaped, probability)
    histories.learn(x.escape, 0, escaped, ESCAPE_LIMIT)
    return escaped


@inline
def _code_byte(m, x, lane, entry, coder, coded, decoding, meter):
    """Code a byte by the bytewise models alone, and return its entry."""
    position = x.places[lane]
    if not decoding:
        m.data[position] = np.uint8(-1 - entry)
    bytewise.code_byte(m, coder, coded, position, decoding, meter)
    byte = m.data[position]
    contexts.update_token_byte(m.registers, np.uint64(byte))
    x.places[lane] = position + 1
    return -1 - np.int64(byte)


@inline
def _code_token(m, x, t, lane, entry, counts, row, logits, coder, coded, decoding, meter):
    """Code the path from the root of the trie to a leaf, and return the leaf."""
    position, depth, begun, decisions = x.places[lane], 0, False, 0
    node = 0 if t.low.size > 0 else -1
    while node >= 0:
        spelling = t.offsets[t.low[node]]
        while depth < t.depth[node]:
            _end_byte(m, position + depth, t.spelling[spelling + depth])
            depth += 1
            begun = False
        logit = trie.logit_of(t, counts, row, node) if decoding else np.int64(logits[decisions])
        stop = t.shift[node] == STOP
        if stop:
            gather_stop(m, x, node)
        else:
            if not begun:
                bytewise.begin_byte(m)
                begun = True
            byte = np.int64(t.spelling[spelling + depth])
            while m.state.shift > t.shift[node]:
                bytewise.advance(m, (byte >> m.state.shift) & 1)
            gather_byte(m, x)
        probability = predict(m, x, t, node, logit)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = np.int64(entry >= t.middle[node])
            arithmetic.encode(bit, probability, coder, coded)
        if meter is not None:
            measure.note_decision(meter, m, x, bit, probability, stop)
        correct(m, x, bit)
        if stop:
            learn_stop(x, bit)
        else:
            learn_byte(m, bit)
        node = t.children[node, bit]
        decisions += 1
    leaf = np.int64(~node)
    begin, length = t.offsets[leaf], t.offsets[leaf + 1] - t.offsets[leaf]
    while depth < length:
        _end_byte(m, position + depth, t.spelling[begin + depth])
        depth += 1
    x.places[lane] = position + length
    return leaf


@inline
def code_entry(m, x, t, lane, entry, counts, row, logits, coder, coded, decoding, meter, r=None):
    """Code one entry of a lane in either direction, and return it. An entry is a leaf, or -1 - byte.

    Args:
        m: the bytewise models.
        x: the tokenwise arrays.
        t: trie of the vocabulary.
        lane: the lane.
        entry: the entry to encode.
        counts: frequencies, for decoding.
        row: the lane's row of `counts`.
        logits: int32, those along the entry's path, for encoding.
        coder: state of the arithmetic coder.
        coded: uint8, coded bytes.
        decoding: the direction.
        meter: notes every decision, or None.
        r: repeats, which may rule out the entry that the match predicts, or None.
    """
    _enter_lane(m, x, lane)
    if r is not None and r.ruled_out[lane] >= 0:
        x.state.expected = -1
    if meter is not None:
        measure.begin_entry(meter, m, x, lane, counts, row)
    if _code_escape(x, coder, coded, np.int64(entry < 0), decoding, meter):
        entry = _code_byte(m, x, lane, entry, coder, coded, decoding, meter)
    else:
        entry = _code_token(m, x, t, lane, entry, counts, row, logits, coder, coded, decoding, meter)
    if meter is not None:
        measure.end_entry(meter, x, lane, entry, counts, row)
    _leave_lane(m, x, lane, entry, r)
    return entry


@kernel
def code_steps(
    m,
    x,
    t,
    known,
    counts,
    rows,
    first_lane,
    active,
    ends,
    logits,
    starts,
    top_nlls,
    coder,
    coded,
    decoding,
    meter=None,
    r=None,
):
    """Code entries of lanes, one step of all lanes after the other, in either direction.

    Args:
        m: the bytewise models.
        x: the tokenwise arrays.
        t: trie of the vocabulary.
        known: int64 [lanes, steps], the entries, which decoding fills in.
        counts: frequencies of leaves, for decoding, which takes one step.
        rows: int64 [lanes], a lane's row of `counts`.
        first_lane: lane of known[0].
        active: int64 [steps], lanes with an entry at each step.
        ends: int64 [all lanes], the end of each lane's bytes.
        logits: int32, along the paths of entries, for encoding.
        starts: int64 [lanes, steps], where each path starts in `logits`.
        top_nlls: int64 [lanes, steps], see `top_nll`, for encoding.
        coder: state of the arithmetic coder.
        coded: uint8, coded bytes.
        decoding: the direction.
        meter: notes every decision, or None.
        r: repeats, which follow each entry, or None; then lanes without an entry are skipped.

    Returns:
        False if `coded` is full, or cannot have been coded so.
    """
    for step in range(known.shape[1]):
        for i in range(active[step]):
            lane = first_lane + i
            if r is not None and x.token_places[lane] >= r.ends[lane]:
                continue
            room = arithmetic.SPARE if decoding else -spare_bytes(t.decisions[max(known[i, step], 0)])
            if np.int64(coder[arithmetic.POSITION]) > coded.size + room:
                return False
            if x.places[lane] >= ends[lane]:
                return False
            path, row = logits, 0
            if decoding:
                row = rows[i]
                x.state.top_nll = top_nll(counts, row)
            else:
                path = logits[starts[i, step] :]
                x.state.top_nll = top_nlls[i, step]
            known[i, step] = code_entry(
                m, x, t, lane, known[i, step], counts, row, path, coder, coded, decoding, meter, r
            )
            if x.places[lane] > ends[lane]:
                return False
            if r is not None:
                if not repeats.code_run(r, m, x, t, lane, coder, coded, decoding):
                    return False
                _put_aside(m, x, lane)
    return True


@inline
def path_row(t, counts, entry, position, logits, top_nlls, r):
    """Write what `path_logits` writes for one entry, the r-th."""
    top_nlls[r] = top_nll(counts, r)
    node = 0 if entry >= 0 and t.low.size > 0 else -1
    while node >= 0:
        logits[position] = np.int32(trie.logit_of(t, counts, r, node))
        position += 1
        node = t.children[node, 1 if entry >= t.middle[node] else 0]


@kernel
def path_logits(t, counts, entries, starts, logits, top_nlls):
    """Write the language model's logits along the path of each entry.

    Args:
        t: trie of the vocabulary.
        counts: frequencies, a row for each entry.
        entries: int64 [R], a leaf, or -1 - byte.
        starts: int64 [R], first logit of each path.
        logits: int32, the output.
        top_nlls: int64 [R], see `top_nll`, the other output.
    """
    for r in range(entries.size):
        path_row(t, counts, entries[r], starts[r], logits, top_nlls, r)
