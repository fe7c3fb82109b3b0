"""The byte network of levels 5 and 6 in a thread of its own, ahead of the mixers, if a block's bytes are known.

Its predictions depend on the bytes alone. So the encoder, and the decoder that verifies a block just encoded, compute
them while earlier bytes are coded. The coded bytes are the same as with one thread.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep.arrays import DeepModel
from squeeze.codecs.deep.model import begin_byte, code_byte
from squeeze.codecs.recurrent import model as recurrent
from squeeze.codecs.recurrent.weights import Network
from squeeze.numerics.bitmodels import coder as arithmetic, context_state, frequencies
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.jit import kernel

CHUNK = 512  # bytes of a chunk; the network is a chunk ahead
LEAST = 1 << 15  # bytes of a block from which a thread pays for compiling `code`


class Predictions(NamedTuple):
    """The network's predictions of each byte of a chunk (frequencies.py)."""

    leaves: np.ndarray  # int32 [n, 256]: frequencies
    top: np.ndarray  # uint64 [n]: the most probable byte and its confidence


def predict_ahead(network: Network, latest: int, known: np.ndarray) -> Iterator[tuple[int, Predictions]]:
    """Yield the first byte of each chunk, and the network's predictions of its bytes, computed in a thread.

    Args:
        network: with fresh state.
        latest: the byte before the first, 0 to 255.
        known: uint8 [n], all bytes.
    """
    fed = np.concatenate([np.array([latest], np.uint8), known[:-1]])
    buffers = [Predictions(np.zeros((CHUNK, BYTES), np.int32), np.zeros(CHUNK, np.uint64)) for _ in range(2)]

    def run(begin: int) -> Predictions:
        chunk = fed[begin : begin + CHUNK]
        predictions = Predictions(*(part[: chunk.size] for part in buffers[begin // CHUNK % 2]))
        _predict_bytes(network, chunk, predictions)
        return predictions

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(run, 0)
        for begin in range(0, fed.size, CHUNK):
            predictions = following.result()
            if begin + CHUNK < fed.size:
                following = pool.submit(run, begin + CHUNK)
            yield begin, predictions


@kernel
def _predict_bytes(network: Network, fed: np.ndarray, predictions: Predictions) -> None:
    """Feed uint8 [n], and store the predictions of the byte after each."""
    counts = network.counts[0]
    for i in range(fed.size):
        network.fed[0] = fed[i]
        recurrent.predict(network, 0, 1)
        for byte in range(BYTES):
            predictions.leaves[i, byte] = np.int32(counts[BYTES + byte])
        predictions.top[i] = frequencies.top_prediction(counts)


@kernel
def code(
    m: DeepModel,
    counts: np.ndarray,
    predictions: Predictions,
    known: np.ndarray,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    decoding: bool,
) -> int:
    """Code bytes as `coder.code` does, with the network's predictions computed before.

    Args:
        m: the mixers and predictors.
        counts: int64 [512], through which the mixers see the network's frequencies.
        predictions: those of the bytes `known`.
        known: uint8 [n], the bytes that are expected.
        coder: state of the arithmetic coder.
        coded: uint8, coded bytes.
        begin: place of the first byte in the block.
        decoding: the direction.

    Returns:
        `begin + n`, or the byte where coding stopped; decoding stops after a byte that is not the expected one.
    """
    for i in range(known.size):
        if arithmetic.is_over(coder, coded, decoding):
            return begin + i
        begin_byte(m)
        for byte in range(BYTES):
            counts[BYTES + byte] = np.int64(predictions.leaves[i, byte])
        frequencies.add_up(counts)
        m.registers[context_state.TOP_BYTE] = predictions.top[i]
        code_byte(m, coder, coded, begin + i, decoding, None)
        if m.data[begin + i] != known[i]:
            return begin + i
    return begin + known.size
