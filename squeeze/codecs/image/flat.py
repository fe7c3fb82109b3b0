"""Flat parts of images: a pixel among equal ones is one decision, whether it equals them, and no model is asked."""

from squeeze.codecs.image import nearby
from squeeze.numerics.bitmodels import adaptive, match
from squeeze.numerics.jit import inline, part

__all__ = ["ENTRIES", "code_pixel", "is_flat"]

_LONGEST_CLASS = 15  # of pixels in a row that were as expected
ENTRIES = 2 * (_LONGEST_CLASS + 1)


@inline
def _are_equal(m, i, j):
    """Return whether the pixels that begin at two bytes are equal."""
    k = 0
    while k < m.state.pixel and m.data[i + k] == m.data[j + k]:
        k += 1
    return k == m.state.pixel


@inline
def is_flat(m, i):
    """Return whether the pixels W, WW, N, NW and NE of the one that begins at byte `i` are equal."""
    b, up = m.state.pixel, m.state.up
    if m.state.column % b or m.state.column + b > m.state.row:
        return False
    w = i - b
    return (
        _are_equal(m, w, i - up)
        and _are_equal(m, w, i - up - b)
        and _are_equal(m, w, i - up + b)
        and _are_equal(m, w, i - 2 * b)
    )


@inline
def _context(m, i):
    """Return the entry for the pixel at byte `i`: by the pixels that were as expected, and by two more neighbours."""
    run, size = m.state.run, 0
    while run and size < _LONGEST_CLASS:
        run >>= 1
        size += 1
    w, up = i - m.state.pixel, m.state.up
    return 2 * size + (_are_equal(m, w, i - 2 * up) and _are_equal(m, w, i - up + 2 * m.state.pixel))


@part
def code_pixel(m, coder, coded, i, decoding):
    """Code whether the pixel at byte `i`, in a flat part, equals the one before; pass over it if so."""
    entry, b = _context(m, i), m.state.pixel
    is_same = 0 if decoding else _are_equal(m, i, i - b)
    if not adaptive.code_bit(is_same, m.flat_entries, entry, coder, coded, decoding):
        m.state.run = 0
        return False
    m.state.run += 1
    if m.sums.shape[1]:
        nearby.skip(m)
    for k in range(b):
        byte = m.data[i + k - b]
        for n in range(m.matches.shape[0]):
            if m.matches[n].pointer > 0 and m.data[m.matches[n].pointer] != byte:
                m.matches[n].length = 0
                m.matches[n].misses = m.matches[n].misses << 1 | 1
        m.data[i + k] = byte
        match.update_byte(m.matches, m.least_lengths, m.match_table, m.data, i + k)
        if k % m.state.sample == 0:
            for n in range(m.misses.shape[1]):
                m.misses[(i + k) & m.state.ring, n] = 0
    m.state.column += b
    return True
