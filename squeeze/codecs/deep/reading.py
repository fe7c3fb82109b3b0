"""Whether the pretrained network of levels 5 and 6 reads what a block holds, by a sample of it.

Of hexadecimal digits, EBCDIC or base64 it knows less than nothing, and what levels 5 and 6 leave out or were taught
since it is there does harm.
"""

import math

import numpy as np

from squeeze.codecs.deep import ahead
from squeeze.codecs.recurrent import weights
from squeeze.numerics.bitmodels.frequencies import BYTES

_PIECES, _PIECE = 4, 256  # of a sample, at equal distances; bytes of each


def reads(data: np.ndarray) -> bool:
    """Whether the network finds a sample of uint8 `data` likelier than how often each byte is in it
    makes it. Of integers alone, so the same everywhere."""
    sample = _sample(data)
    network = weights.network()
    likely, of = 1, 1  # numerators and denominators of its probabilities, multiplied
    for begin, said in ahead.listen(network, 0, sample):
        known = sample[begin : begin + said.top.size]
        likely *= math.prod(said.leaves[np.arange(known.size), known].tolist())
        of *= math.prod(said.leaves.sum(1, dtype=np.int64).tolist())
    counts = np.bincount(sample, minlength=BYTES).tolist()
    return bool(likely * sample.size**sample.size > of * math.prod(count**count for count in counts))


def _sample(data: np.ndarray) -> np.ndarray:
    if data.size <= _PIECES * _PIECE:
        return data
    starts = (2 * np.arange(_PIECES) + 1) * data.size // (2 * _PIECES) - _PIECE // 2
    return np.concatenate([data[start : start + _PIECE] for start in starts])
