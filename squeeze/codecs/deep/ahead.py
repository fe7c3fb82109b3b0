"""The byte network of levels 5 and 6 ahead of the mixers, if a block's bytes are known.

Its predictions depend on the bytes alone. So the encoder computes those of many bytes at once, which takes less time,
and with two threads while earlier bytes are coded. So does the decoder that verifies a block just encoded. The coded
bytes are those of a network that gets one byte at a time.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from squeeze.codecs.recurrent import model as recurrent
from squeeze.codecs.recurrent.weights import ROWS, Network
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.jit import kernel

CHUNK = 20 * ROWS  # bytes of a chunk; in a thread, the network is a chunk ahead


def predict_ahead(network: Network, latest: int, known: np.ndarray, threads: int = 1) -> Iterator[np.ndarray]:
    """Yield the frequencies of each byte of a chunk, int32 [n, 256]; they are overwritten after the next chunk.

    Args:
        network: with fresh state.
        latest: the byte before the first, 0 to 255.
        known: uint8 [n], all bytes.
        threads: 2 or more compute a chunk while the caller uses the one before.
    """
    fed = np.concatenate([np.array([latest], np.uint8), known[:-1]])
    buffers = np.zeros((2, CHUNK, BYTES), np.int32)
    begins = range(0, known.size, CHUNK)

    def run(begin: int) -> np.ndarray:
        chunk = fed[begin : begin + CHUNK]
        found: np.ndarray = buffers[begin // CHUNK % 2, : chunk.size]
        _predict(network, chunk, found)
        return found

    if threads < 2:
        yield from map(run, begins)
        return
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(run, 0)
        for begin in begins:
            found = following.result()
            if begin + CHUNK < known.size:
                following = pool.submit(run, begin + CHUNK)
            yield found


@kernel
def _predict(network: Network, fed: np.ndarray, found: np.ndarray) -> None:
    """Feed uint8 [n], and store the frequencies of the byte after each, int32 [n, 256]."""
    for begin in range(0, fed.size, ROWS):
        some = fed[begin : begin + ROWS]
        recurrent.predict(network, some)
        for row in range(some.size):
            for byte in range(BYTES):
                found[begin + row, byte] = network.frequencies[row, byte]
