"""The model of images of two values: a pixel is one binary decision, mixed from templates of the pixels around it.

Templates are those of JBIG and JBIG2 (ITU-T T.82 and T.88), several at a time, as Mahoney's PAQ8 has them. The mixers
are those of the other models of images. Rows are coded by groups of eight pixels. A group in a flat part is
one decision, whether it continues that, and no model is asked.
"""

import numpy as np

from squeeze.codecs.image.bilevel import (
    ABOVE,
    BEGINS,
    FIRST_ROWS,
    LINES,
    MARGIN,
    PARTS,
    POSITION,
    ROWS,
)
from squeeze.codecs.image.filters import code_filter
from squeeze.numerics.bitmodels import adaptive, coder as arithmetic, histories, mixer
from squeeze.numerics.jit import inline, kernel, part
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

BIAS = 1024
LIMIT = 255
RATE, FINAL_RATE, APM_RATE = 14, 1, 6
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_LONGEST = 1 << 11  # pixels of a run that are told apart
_AROUND = 0x3FFE0  # pixels of a window from two before a group to two after it
_AFTER = 0x1F  # those after that
_LONGEST_FLAT = 15  # class of the flat groups in a row


@inline
def _size_class(value):
    """Return the bit length of a number."""
    size = 0
    while value:
        value >>= 1
        size += 1
    return size


@inline
def _gather(m, j):
    """Write the logits of all contexts of pixel `j` of the group to the mixer's inputs, and select weights."""
    known, bits = np.int64(0), m.state.bits
    left = m.windows[0]
    for k in range(m.at.size):
        context = np.uint64(0)
        if k < POSITION:
            for p in range(BEGINS[k], BEGINS[k + 1]):
                row = PARTS[p, 0]
                pixels = m.windows[row] >> (ABOVE - j - PARTS[p, 1]) if row else left
                context |= np.uint64(pixels & PARTS[p, 2]) << np.uint64(PARTS[p, 3])
        else:
            place = (m.state.line & 7) << 9 | j << 6
            context = np.uint64(place | (m.windows[1] >> (ABOVE - 1 - j) & 7) << 3 | (left & 7))
        context = (context + np.uint64(1)) * _SPREAD
        at = k << bits | np.int64((context ^ context >> np.uint64(29)) * _SPREAD >> np.uint64(64 - bits))
        m.at[k] = at
        entry = m.entries[at]
        count = entry & np.uint32(1023)
        known += (count > 0) + (count > 2)
        m.inputs[k] = STRETCH[entry >> np.uint32(20)] if count else 0
    m.inputs[m.at.size] = BIAS
    above, second = m.windows[1] >> (ABOVE - 2 - j), m.windows[2] >> (ABOVE - 1 - j)
    near = (second & 7) << 8 | (above & 31) << 3 | (left & 7)
    wide = (m.windows[1] >> (ABOVE - 4 - j) & 0x1FF) << 1 | (left & 1)
    m.rows[0] = near
    m.rows[1] = FIRST_ROWS[1] + wide
    m.rows[2] = FIRST_ROWS[2] + (min(_size_class(m.state.run), 15) << 3 | (above >> 1 & 7))
    m.rows[3] = FIRST_ROWS[3] + min(known, 63)


@inline
def _mix(m):
    """Return the 32-bit probability that the pixel is a one: two mixer layers, then two APMs."""
    total = np.int64(0)
    final = m.final_weights[m.rows[0] & 255]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    mixed = squash(logit)
    m.state.logit = logit
    m.state.mixed = mixed
    refined = mixer.refine(m.apm_near, m.rows[0], logit) + mixer.refine(m.apm_run, m.rows[2] - FIRST_ROWS[2], logit)
    return min(max((2 * mixed + refined) >> 2, 1), (1 << 32) - 1)


@inline
def _learn(m, bit):
    """Train everything on the coded pixel."""
    logit, target = m.state.logit, (bit << 32) - bit
    mixer.learn_apm(m.apm_near, m.rows[0], logit, bit, APM_RATE)
    mixer.learn_apm(m.apm_run, m.rows[2] - FIRST_ROWS[2], logit, bit, APM_RATE)
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, RATE)
    mixer.train(m.final_weights[m.rows[0] & 255], m.logits, (target - m.state.mixed) >> 16, FINAL_RATE)
    for k in range(m.at.size):
        histories.learn(m.entries, m.at[k], bit, LIMIT)


@part
def _code_pixels(m, coder, coded, group, count, decoding):
    """Code the first `count` pixels of a group of up to eight, and return the group."""
    known, done = np.int64(group), np.int64(0)
    for j in range(count):
        _gather(m, j)
        probability = _mix(m)
        if decoding:
            bit = arithmetic.decode(probability, coder, coded)
        else:
            bit = known >> (7 - j) & 1
            arithmetic.encode(bit, probability, coder, coded)
        _learn(m, bit)
        m.state.run = min(m.state.run + 1, _LONGEST) if (m.windows[0] & 1) == bit else 1
        m.windows[0] = (m.windows[0] << 1 | bit) & 0xFFFFFFFF
        done |= bit << (7 - j)
    return done


@inline
def _is_flat(m):
    """Return whether the group's eight pixels to the left, and those around it in the two rows above, are equal."""
    left, above, second = m.windows[0] & 0xFF, m.windows[1] & _AROUND, m.windows[2] & _AROUND
    return (left == 0 and above | second == 0) or (left == 0xFF and above & second == _AROUND)


@part
def _code_flat(m, coder, coded, group, decoding):
    """Code whether a group in a flat part continues it, and return that."""
    color = m.windows[0] & 1
    same = 255 * color
    entry = min(_size_class(m.state.flat), _LONGEST_FLAT) << 3
    entry |= ((m.windows[1] & _AFTER) == (_AFTER * color)) << 2
    entry |= ((m.windows[3] & _AROUND) == (_AROUND * color)) << 1
    entry |= (m.windows[0] >> 8 & 0xFF) == same
    is_same = adaptive.code_bit(np.int64(group == same), m.flat_entries, entry, coder, coded, decoding)
    if is_same:
        m.state.flat += 1
        m.state.run = min(m.state.run + 8, _LONGEST)
        m.windows[0] = (m.windows[0] << 8 | same) & 0xFFFFFFFF
    else:
        m.state.flat = 0
    return is_same


@part
def _code_row(m, coder, coded, line, pixels, decoding):
    """Code the groups of a row, which is row `line` modulo LINES in memory."""
    m.windows[0] = 0
    m.state.run = 0
    for row in range(1, ROWS):
        m.windows[row] = m.lines[(line - row) % LINES, MARGIN]
    for g in range((pixels + 7) >> 3):
        if arithmetic.is_over(coder, coded, decoding):
            return False
        for row in range(1, ROWS):
            m.windows[row] = (m.windows[row] << 8 | m.lines[(line - row) % LINES, MARGIN + g + 1]) & 0xFFFFFFFF
        count, group = min(pixels - 8 * g, 8), m.lines[line % LINES, MARGIN + g]
        if count == 8 and _is_flat(m) and _code_flat(m, coder, coded, group, decoding):
            m.lines[line % LINES, MARGIN + g] = np.uint8(m.windows[0] & 0xFF)
        else:
            m.lines[line % LINES, MARGIN + g] = np.uint8(_code_pixels(m, coder, coded, group, count, decoding))
    return True


@inline
def _take(m, line, i, size):
    """Write the `size` bytes of a row from `i` on to the row in memory."""
    to = line % LINES
    m.lines[to, :] = 0
    if m.state.bytes:
        for k in range(size):
            if m.data[i + k] != m.state.zero:
                m.lines[to, MARGIN + (k >> 3)] |= np.uint8(128 >> (k & 7))
    else:
        for k in range(size):
            m.lines[to, MARGIN + k] = m.data[i + k] ^ np.uint8(m.state.zero)


@inline
def _give(m, line, i, size):
    """Write the row in memory to the `size` bytes of a row from `i` on."""
    of = line % LINES
    if m.state.bytes:
        for k in range(size):
            bit = m.lines[of, MARGIN + (k >> 3)] >> np.uint8(7 - (k & 7)) & np.uint8(1)
            m.data[i + k] = np.uint8(m.state.one if bit else m.state.zero)
    else:
        for k in range(size):
            m.data[i + k] = m.lines[of, MARGIN + k] ^ np.uint8(m.state.zero)


@kernel
def code_rows(m, coder, coded, begin, end, row, count, decoding):
    """Code rows, each with its filter after it; the arguments and the result are those of `_code_rows` in coder.py."""
    i, stride = begin, m.state.stride
    for at in range(row, row + count):
        size = min(stride, end - i)
        m.state.line = at - m.state.first
        if decoding:
            m.lines[at % LINES, :] = 0
        else:
            _take(m, at, i, size)
        if not _code_row(m, coder, coded, at, size if m.state.bytes else 8 * size, decoding):
            return False
        if decoding:
            _give(m, at, i, size)
        i += size
        if m.filters.size and not code_filter(m, coder, coded, at, i, size, decoding):
            return False
    return True
