"""Bytewise context mixing, levels 1 to 3: the drivers of model.py."""

from collections.abc import Callable, Iterator

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bytewise.arrays import ByteModel, build_model
from squeeze.codecs.bytewise.model import advance, begin_byte, end_byte, gather, learn, mix, select
from squeeze.codecs.presets import Preset
from squeeze.errors import DamagedError
from squeeze.numerics.jit import kernel

STEP = 1 << 15
Progress = Callable[[int], None] | None


@kernel
def code(m: ByteModel, coder: np.ndarray, coded: np.ndarray, begin: int, end: int, decoding: bool) -> int:
    """Code bytes begin to end of the block, in either direction.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding).
    """
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        begin_byte(m)
        byte = np.int64(m.data[position])
        for shift in range(7, -1, -1):
            gather(m)
            select(m)
            probability = mix(m)
            if decoding:
                bit = arithmetic.decode(probability, coder, coded)
            else:
                bit = (byte >> shift) & 1
                arithmetic.encode(bit, probability, coder, coded)
            learn(m, bit)
            advance(m, bit)
        end_byte(m, position)
    return end


def encode(data: np.ndarray, preset: Preset, record: int = 0, progress: Progress = None) -> bytes | None:
    """The coded form of uint8 `data`, or None where it would not be shorter."""
    model = build_model(data.copy(), preset, record)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    for begin, end in _steps(data.size):
        if code(model, coder, coded, begin, end, False) < end:
            return None
        if progress:
            progress(end - begin)
    length = arithmetic.finish_encoder(coder, coded)
    return coded[:length].tobytes() if length < data.size else None


def decode(payload: bytes, length: int, preset: Preset, record: int = 0, progress: Progress = None) -> np.ndarray:
    """The `length` bytes that `payload` was coded from, as uint8; DamagedError where it cannot be so."""
    data = np.zeros(length, np.uint8)
    model = build_model(data, preset, record)
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(payload), np.uint8)
    arithmetic.start_decoder(coder, coded)
    for begin, end in _steps(length):
        if code(model, coder, coded, begin, end, True) < end:
            raise DamagedError("a block's coded bytes end too early: the file is damaged")
        if progress:
            progress(end - begin)
    return data


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """Ranges small enough to report progress and to notice an interrupt between them."""
    for begin in range(0, length, STEP):
        yield begin, min(begin + STEP, length)
