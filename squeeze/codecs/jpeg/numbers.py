"""Coding numbers bit by bit: a hash of each context finds an adaptive probability, and mixers make one of them.

A number is whether it is zero, its sign, how many bits follow its highest one, and these. The mixing is that of
PAQ (Mahoney): two layers, and adaptive probability maps.
"""

import numpy as np

from squeeze.codecs.jpeg.state import APM_ROWS, CONTEXTS, ROW, ROWS, SETS
from squeeze.numerics.bitmodels import coder as arithmetic, histories, mixer
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline, part
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

BIAS = 1024  # Q12: a constant input
LIMIT = 255  # largest counts of probabilities
RATE, FINAL_RATE, APM_RATE = 20, 4, 6
IS_ZERO, IS_NEGATIVE, SIZE, REST, COUNT = 0, 1, 2, 5, 6  # kinds of decisions; sizes have three
_LONGEST = 20  # bits after the highest one
_REST, _COUNT = 64, 4096  # first nodes of the bits after the highest one, and of a count
_NODE = np.uint64(0xD6E8FEB86659FD93)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
CONFIDENCE = np.array([256 * 2 * n // (2 * n + 3) for n in range(1024)], np.int64)  # Q8: of a probability, by its count


@inline
def set_context(m, i, base, a, b, c):
    """Set context `i` to numbers from -2048 to 2047; those of another base are apart."""
    packed = (a + 2048) << 24 | (b + 2048) << 12 | (c + 2048)
    m.hashes[i] = mix_hash(np.uint64(base * 16 + i), np.uint64(packed))


@inline
def choose(m, a, b, c, d, x, y):
    """Set the contexts of the next number that choose weights, from 0 to 255, and those of its APMs."""
    m.choices[0], m.choices[1], m.choices[2], m.choices[3] = a, b, c, d
    m.state.apm0, m.state.apm1 = x, y


@part
def _code_bit(m, coder, coded, bit, kind, node, decoding):
    """Code a bit in either direction, and learn it; `node` says which bit of its number it is."""
    s = m.state
    salt, mask = np.uint64(node) * _NODE, np.uint64(s.mask)
    for i in range(CONTEXTS):
        place = np.int64(((m.hashes[i] + salt) * _SPREAD >> np.uint64(40)) & mask)
        m.places[i] = place
        entry = np.int64(m.table[i, place])
        m.inputs[i] = np.int64(STRETCH[entry >> 20]) * CONFIDENCE[entry & 1023] >> 8
    m.inputs[CONTEXTS] = BIAS
    for k in range(SETS):
        m.rows[k] = k * ROWS + kind * ROW + m.choices[k]
    total, final = np.int64(0), m.final_weights[m.rows[0]]
    for k in range(SETS):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = logit
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    mixed = squash(logit)
    apm0 = np.int64(mix_hash(np.uint64(node), np.uint64(s.apm0)) >> np.uint64(48))
    apm1 = APM_ROWS + np.int64(mix_hash(np.uint64(node), np.uint64(s.apm1)) >> np.uint64(48))
    probability = (2 * mixed + mixer.refine(m.apms, apm0, logit) + mixer.refine(m.apms, apm1, logit)) >> 2
    probability = min(max(probability, 1), (1 << 32) - 1)
    if decoding:
        bit = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(bit, probability, coder, coded)
    target = (bit << 32) - bit
    mixer.learn_apm(m.apms, apm0, logit, bit, APM_RATE)
    mixer.learn_apm(m.apms, apm1, logit, bit, APM_RATE)
    for k in range(SETS):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    mixer.train(final, m.logits, (target - mixed) >> 16, FINAL_RATE)
    for i in range(CONTEXTS):
        histories.learn(m.table[i], m.places[i], bit, LIMIT)
    return bit


@part
def code_number(m, coder, coded, number, decoding):
    """Code a number of at most 20 bits in either direction, and return it."""
    magnitude = abs(number)
    if not _code_bit(m, coder, coded, np.int64(number != 0), IS_ZERO, 0, decoding):
        return 0
    negative = _code_bit(m, coder, coded, np.int64(number < 0), IS_NEGATIVE, 1, decoding)
    size, more = 0, np.int64(1)
    while more and size < _LONGEST:
        more = np.int64(magnitude >> (size + 1) != 0)
        more = _code_bit(m, coder, coded, more, SIZE + min(size, 2), 2 + negative * 32 + size, decoding)
        size += more
    value = np.int64(1)
    for i in range(size):
        place = value if i < 2 else 4 + min(i - 2, 3)
        node = _REST + (negative * 32 + size) * 8 + place
        value = 2 * value + _code_bit(m, coder, coded, magnitude >> (size - 1 - i) & 1, REST, node, decoding)
    return -value if negative else value


@part
def code_count(m, coder, coded, count, decoding):
    """Code a number from 0 to 63 in either direction, and return it."""
    node, first = np.int64(1), m.choices[0]
    for k in range(5, -1, -1):
        m.choices[0] = first + node
        node = 2 * node + _code_bit(m, coder, coded, count >> k & 1, COUNT, _COUNT + node, decoding)
    return node - 64
