"""The contexts of a sample that are hashed: samples before it, and predictions."""

import numpy as np

from squeeze.codecs.sound.state import FRACTION, MARGIN
from squeeze.numerics.bitmodels.contexts import mix_hash
from squeeze.numerics.jit import part


@part
def hash_contexts(m, i):
    """Write the hash of each context of sample `i`."""
    at, step, h = MARGIN + i, m.state.channels, m.hashes
    a, b, c = m.samples[at - step], m.samples[at - 2 * step], m.samples[at - 3 * step]
    other = m.samples[at - 1] if step > 1 else np.int64(0)
    first, span = m.values[0], max(m.state.span - 2, 0)
    h[0] = np.uint64(first >> span)
    h[1] = np.uint64(a)
    if h.size > 2:
        h[2] = np.uint64(0)
        h[3] = mix_hash(np.uint64(a), np.uint64(b))
        h[4] = mix_hash(h[3], np.uint64(c))
        h[5] = mix_hash(np.uint64(other), np.uint64(1))
        h[6] = mix_hash(np.uint64(a), np.uint64(other))
        h[7] = np.uint64((first + 128) >> FRACTION)
        h[8] = np.uint64(m.values[m.outputs.size + 1] >> max(span - 1, 0))
        h[9] = np.uint64(m.values[m.outputs.size + 2] >> span)
        h[10] = mix_hash(np.uint64(2 * a - b), np.uint64(m.state.pattern))
        h[11] = mix_hash(h[0], np.uint64(m.values[m.outputs.size + 1] >> span))
    for k in range(h.size):
        h[k] = mix_hash(h[k], np.uint64(k) << np.uint64(8) | np.uint64(m.state.channel))
