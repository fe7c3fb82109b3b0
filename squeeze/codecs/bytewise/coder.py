"""Bytewise context mixing, levels 1 to 3: the drivers of model.py."""

from collections.abc import Callable, Iterator

import numpy as np

from squeeze.codecs.bytewise import presets
from squeeze.codecs.bytewise.model import code_byte, meter_begin_byte
from squeeze.codecs.bytewise.presets import Preset
from squeeze.codecs.bytewise.state import ByteModel, started_model
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic, meter as meters
from squeeze.numerics.bitmodels.meter import Meter, Recorder
from squeeze.numerics.jit import kernel

STEP = 1 << 15
Progress = Callable[[int], None] | None


@kernel
def code(
    m: ByteModel,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    end: int,
    decoding: bool,
    meter: Meter | None = None,
) -> int:
    """Code bytes begin to end of the block, in either direction, and measure what they cost where there is a meter.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding).
    """
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        if meter is not None:
            meter_begin_byte(meter, m, position)
        code_byte(m, coder, coded, position, decoding, meter)
        if meter is not None:
            meters.finish(meter, position)
    return end


def encode(data: np.ndarray, preset: Preset, record: int = 0, progress: Progress = None) -> bytes | None:
    """The coded form of uint8 `data`, or None where it would not be shorter."""
    model = started_model(data.copy(), preset, record)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    for begin, end in _steps(data.size):
        if code(model, coder, coded, begin, end, False) < end:
            return None
        if progress:
            progress(end - begin)
    length = arithmetic.finish_encoder(coder, coded)
    return coded[:length].tobytes() if length < data.size else None


def decode(
    payload: bytes,
    length: int,
    preset: Preset,
    record: int = 0,
    progress: Progress = None,
    recorder: Recorder | None = None,
) -> np.ndarray:
    """The `length` bytes that `payload` was coded from, as uint8; DamagedError where it cannot be so. A recorder
    measures what each cost."""
    data = np.zeros(length, np.uint8)
    model = started_model(data, preset, record)
    meter = (recorder.start(length, [presets.input_names(preset, model.inputs.size)]),) if recorder else ()
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(payload), np.uint8)
    arithmetic.start_decoder(coder, coded)
    for begin, end in _steps(length):
        if code(model, coder, coded, begin, end, True, *meter) < end:
            raise DamagedError("a block's coded bytes end too early: the file is damaged")
        if progress:
            progress(end - begin)
    return data


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """Ranges small enough to report progress and to notice an interrupt between them."""
    for begin in range(0, length, STEP):
        yield begin, min(begin + STEP, length)
