"""The network of levels 5 and 6 ahead of the mixers, in a thread of its own, where a block's bytes are known.

What it says depends on the bytes alone, so that encoding need not wait for it; nor need decoding what was just encoded.
The bytes are those of one thread.
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

CHUNK = 512  # bytes that the network is ahead
LEAST = 1 << 15  # bytes of a block: what runs behind it is compiled apart, which fewer are not worth


class Said(NamedTuple):
    """What the network says of each byte of a chunk (frequencies.py)."""

    leaves: np.ndarray  # int32 [n, 256]: frequencies
    top: np.ndarray  # uint64 [n]: its top prediction


def listen(network: Network, latest: int, known: np.ndarray) -> Iterator[tuple[int, Said]]:
    """The place of each chunk of uint8 `known`, and what the network says of it: it hears `latest` first."""
    fed = np.concatenate([np.array([latest], np.uint8), known[:-1]])
    buffers = [Said(np.zeros((CHUNK, BYTES), np.int32), np.zeros(CHUNK, np.uint64)) for _ in range(2)]

    def hear(begin: int) -> Said:
        chunk = fed[begin : begin + CHUNK]
        said = Said(*(part[: chunk.size] for part in buffers[begin // CHUNK % 2]))
        _hear(network, chunk, said)
        return said

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(hear, 0)
        for begin in range(0, fed.size, CHUNK):
            said = following.result()
            if begin + CHUNK < fed.size:
                following = pool.submit(hear, begin + CHUNK)
            yield begin, said


@kernel
def _hear(network: Network, fed: np.ndarray, said: Said) -> None:
    """Feed uint8 [n], and note what is said of the byte after each."""
    for i in range(fed.size):
        recurrent.predict(network, np.int64(fed[i]))
        for byte in range(BYTES):
            said.leaves[i, byte] = np.int32(network.counts[BYTES + byte])
        said.top[i] = frequencies.top_prediction(network.counts)


@kernel
def code(
    m: DeepModel,
    counts: np.ndarray,
    said: Said,
    known: np.ndarray,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    decoding: bool,
) -> int:
    """As `coder.code`, from byte `begin` on, with what was said of the bytes `known`, which the mixers see in `counts`,
    int64 [512]. It stops behind a byte that decodes to another one."""
    for i in range(known.size):
        if arithmetic.is_over(coder, coded, decoding):
            return begin + i
        begin_byte(m)
        for byte in range(BYTES):
            counts[BYTES + byte] = np.int64(said.leaves[i, byte])
        frequencies.add_up(counts)
        m.registers[context_state.TOP_BYTE] = said.top[i]
        code_byte(m, coder, coded, begin + i, decoding, None)
        if m.data[begin + i] != known[i]:
            return begin + i
    return begin + known.size
