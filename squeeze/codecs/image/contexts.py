"""The contexts of a byte of an image that are hashed: what is around it, exactly or nearly."""

import numpy as np

from squeeze.codecs.image.state import MEDIAN
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import inline, part


@inline
def _at(m, i):
    return np.uint64(m.data[i])


@inline
def _join(a, b):
    return np.uint64(a) << np.uint64(8) | np.uint64(b)


@inline
def _whole(m, i):
    """Return the bytes of a pixel, of which the first is at `i`, as a number."""
    number = np.uint64(0)
    for k in range(min(m.state.pixel, 8)):
        number = _join(number, m.data[i + k])
    return number


@part
def hash_contexts(m, i):
    """Write the hash of each context of the byte at `i`."""
    if m.state.exact or m.state.pixel == 1:
        _of_bytes(m, i)
    else:
        _of_colours(m, i)
    place = np.uint64(m.state.column % m.state.pixel if m.state.column < m.state.row else 8)
    for k in range(m.hashes.size):
        m.hashes[k] = mix_hash(m.hashes[k], np.uint64(k) << np.uint64(8) | place)


@inline
def _of_bytes(m, i):
    """Write the contexts of images with a byte for each pixel, or with several pixels in one."""
    up, h = m.state.up, m.hashes
    w, ww, n, nw, ne = _at(m, i - 1), _at(m, i - 2), _at(m, i - up), _at(m, i - up - 1), _at(m, i - up + 1)
    h[0] = _join(w, n)
    h[1] = _join(h[0], nw)
    h[2] = _join(h[1], ne)
    if h.size < 6:
        return
    h[3] = w
    h[4] = n
    h[5] = _join(_join(w, ww), _at(m, i - 3))
    if h.size < 8:
        return
    nn, nee, nww = _at(m, i - 2 * up), _at(m, i - up + 2), _at(m, i - up - 2)
    mean = np.uint64(m.values[m.centres.size - 1])
    h[6] = _join(n, nn)
    h[7] = _join(n, ne)
    h[8] = _join(w, nw)
    h[9] = np.uint64(m.values[MEDIAN]) << np.uint64(4) | np.uint64(m.state.activity)
    h[10] = mean >> np.uint64(3)
    h[11] = mean >> np.uint64(5) << np.uint64(32) | w >> np.uint64(2) << np.uint64(16) | n >> np.uint64(2)
    h[12] = np.uint64(m.state.column) << np.uint64(8) | n
    h[13] = np.uint64(0)
    h[14] = _join(w, ww)
    h[15] = _join(_join(n, ne), nee)
    h[16] = _join(_join(h[0], ww), nn)
    h[17] = _join(h[5], _at(m, i - 4))
    h[18] = _join(h[2], ww)
    h[19] = _join(h[18], nn)
    h[20] = _join(_join(h[19], nee), nww)
    h[21] = mix_hash(h[20], _join(_at(m, i - 2 * up + 1), _at(m, i - 2 * up - 1)))
    h[22] = mix_hash(h[21], _join(_join(_at(m, i - 3), _at(m, i - 3 * up)), _at(m, i - up + 3)))
    h[23] = mix_hash(h[22], _join(_join(_at(m, i - 4), _at(m, i - 2 * up - 2)), _at(m, i - 2 * up + 2)))


@inline
def _of_colours(m, i):
    """Write the contexts of images with several bytes for each pixel: bytes and predictions, then whole pixels."""
    up, b, h = m.state.up, m.state.pixel, m.hashes
    place = m.state.column % b
    w, n, nw, ne = _at(m, i - b), _at(m, i - up), _at(m, i - up - b), _at(m, i - up + b)
    p = _at(m, i - 1) if place > 0 else np.uint64(0)
    pq = _join(p, _at(m, i - 2) if place > 1 else np.uint64(0))
    h[0] = _join(pq, w)
    h[1] = _join(pq, n)
    if h.size > 3:
        h[3] = np.uint64(m.values[0] >> 4) << np.uint64(16) | pq
    _of_pixels(m, i - place, pq)
    if h.size < 8:
        return
    mean = np.uint64(m.values[m.centres.size - 1])
    h[6] = _join(_join(w, n), p)
    h[7] = _join(_join(n, ne), p)
    h[8] = np.uint64(m.values[2]) << np.uint64(16) | np.uint64(m.values[3])
    h[9] = np.uint64(m.values[0]) << np.uint64(4) | np.uint64(m.state.activity)
    h[10] = _join(_join(_join(w, n), nw), ne)
    h[11] = mean >> np.uint64(3)
    h[12] = mean >> np.uint64(5) << np.uint64(32) | w >> np.uint64(2) << np.uint64(16) | n >> np.uint64(2)
    h[13] = pq


@inline
def _of_pixels(m, first, pq):
    """Write the contexts of whole pixels around the one that begins at `first`, of which `pq` are known bytes."""
    up, b, h = m.state.up, m.state.pixel, m.hashes
    north = _whole(m, first - up)
    left, both = mix_hash(_whole(m, first - b), pq), mix_hash(north, pq)
    h[2] = mix_hash(north, left)
    if h.size < 6:
        return
    h[4] = left
    h[5] = both
    if h.size < 8:
        return
    east, second = _whole(m, first - up + b), _whole(m, first - 2 * b)
    h[14] = mix_hash(east, both)
    h[15] = mix_hash(_whole(m, first - 2 * up), both)
    h[16] = mix_hash(second, left)
    h[17] = mix_hash(_whole(m, first - 3 * b), h[16])
    h[18] = mix_hash(_whole(m, first - up - b), h[2])
    h[19] = mix_hash(east, h[18])
    h[20] = mix_hash(_whole(m, first - 2 * up), mix_hash(second, h[19]))
    h[21] = mix_hash(_whole(m, first - up - 2 * b), mix_hash(_whole(m, first - up + 2 * b), h[20]))
    h[22] = mix_hash(_whole(m, first - 2 * up - b), mix_hash(_whole(m, first - 2 * up + b), h[21]))
    h[23] = mix_hash(_whole(m, first - 3 * b), mix_hash(_whole(m, first - up + 3 * b), h[22]))
