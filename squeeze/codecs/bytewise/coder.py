"""Coding a block with bytewise context mixing, levels 1 to 3: model.py drives the arithmetic coder."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import numpy as np

from squeeze.codecs.bytewise import presets
from squeeze.codecs.bytewise.model import append_byte, code_bits, expect_byte, hash_contexts, meter_begin_byte
from squeeze.codecs.bytewise.presets import Preset
from squeeze.codecs.bytewise.state import ByteModel, initial_model
from squeeze.codecs.proving import FAULTY, Proof
from squeeze.errors import DamagedError, VerifyError
from squeeze.numerics.bitmodels import coder as arithmetic, match, meter as meters
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
    """Code a range of the block's bytes in either direction.

    Args:
        m: models of the block.
        coder: state of the arithmetic coder (bitmodels/coder.py).
        coded: uint8, coded bytes to write or read.
        begin: first byte to code.
        end: the byte after the last.
        decoding: the direction.
        meter: notes the cost of every bit, if given.

    Returns:
        `end`, or the byte where `coded` was full (encoding) or used up (decoding).
    """
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        hash_contexts(m)
        if position:  # memory answers the matches of the byte before while that of the slots is on its way
            match.update_byte(m.matches, m.least_lengths, m.match_table, m.data, position - 1)
        if meter is not None:
            meter_begin_byte(meter, m, position)
        expect_byte(m)
        code_bits(m, coder, coded, position, decoding, meter)
        append_byte(m, position)
        if meter is not None:
            meters.finish(meter, position)
    return end


def encode(
    data: np.ndarray, preset: Preset, record: int = 0, progress: Progress = None, verify: bool = False
) -> bytes | None:
    """Return the coded bytes of a block, or None if they are no shorter.

    Args:
        data: uint8 [n], the block.
        preset: contexts, match models and table sizes.
        record: length of a record in bytes for tables, or 0.
        progress: is called with the number of bytes coded since its last call.
        verify: decode them in a second thread at the same time, and compare; `progress` counts bytes twice.

    Raises:
        VerifyError: if they do not decode to `data`.
    """
    model = initial_model(data.copy(), preset, record)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    with Proof(coded, lambda: _comparison(data, coded, preset, record)) if verify else nullcontext() as proof:
        for begin, end in _steps(data.size):
            if code(model, coder, coded, begin, end, False) < end:
                return None
            if proof:
                proof.note(begin, end, int(coder[arithmetic.POSITION]))
            if progress:
                progress((end - begin) * (1 + verify))
        length = arithmetic.finish_encoder(coder, coded)
        if length >= data.size:
            return None
        if proof and not proof.holds():
            raise VerifyError(FAULTY)
    return coded[:length].tobytes()


def _comparison(data: np.ndarray, coded: np.ndarray, preset: Preset, record: int) -> Callable[[int, int], bool]:
    """Return a function that decodes ranges of a block in turn, and tells whether they are those of `data`."""
    model, coder = initial_model(np.zeros_like(data), preset, record), np.zeros(3, np.uint64)
    arithmetic.start_decoder(coder, coded)

    def is_same(begin: int, end: int) -> bool:
        whole = code(model, coder, coded, begin, end, True) == end
        return whole and np.array_equal(model.data[begin:end], data[begin:end])

    return is_same


def growth(data: np.ndarray, preset: Preset, step: int) -> np.ndarray:
    """Return by how many bytes the code is longer than the data after each `step` bytes, int64 [ceil(n / step)]."""
    model = initial_model(data.copy(), preset)
    coder, coded = np.zeros(3, np.uint64), np.zeros(2 * data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    found = []
    for begin in range(0, data.size, step):
        end = min(begin + step, data.size)
        code(model, coder, coded, begin, end, False)
        found.append(int(coder[arithmetic.POSITION]) - end)
    return np.array(found, np.int64)


def decode(
    payload: bytes,
    length: int,
    preset: Preset,
    record: int = 0,
    progress: Progress = None,
    recorder: Recorder | None = None,
) -> np.ndarray:
    """Decode a block.

    Args:
        payload: coded bytes.
        length: raw bytes of the block.
        preset: the models that coded it.
        record: length of a record in bytes for tables, or 0.
        progress: is called with the number of bytes decoded since its last call.
        recorder: measures the cost of every byte, if given.

    Raises:
        DamagedError: if the coded bytes end too early.
    """
    data = np.zeros(length, np.uint8)
    model = initial_model(data, preset, record)
    meter = (recorder.start(length, [presets.input_names(preset, model.inputs.size)]),) if recorder else ()
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(payload), np.uint8)
    arithmetic.start_decoder(coder, coded)
    for begin, end in _steps(length):
        if code(model, coder, coded, begin, end, True, *meter) < end:
            raise DamagedError("a block's coded bytes end too early: the file is damaged")
        if progress:
            progress(end - begin)
    return data


def encode_after(known: np.ndarray, data: np.ndarray, preset: Preset) -> bytes | None:
    """Return the coded bytes of short `data` by models that have read `known` bytes, uint8, or None if no shorter."""
    model = _after(known, data, preset)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    if code(model, coder, coded, known.size, model.data.size, False) < model.data.size:
        return None
    length = arithmetic.finish_encoder(coder, coded)
    return coded[:length].tobytes() if length < data.size else None


def decode_after(known: np.ndarray, payload: bytes, length: int, preset: Preset) -> np.ndarray:
    """Undo `encode_after`, for uint8 [length].

    Raises:
        DamagedError: if the coded bytes end too early.
    """
    model = _after(known, np.zeros(length, np.uint8), preset)
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(payload), np.uint8)
    arithmetic.start_decoder(coder, coded)
    if code(model, coder, coded, known.size, model.data.size, True) < model.data.size:
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return model.data[known.size :]


def _after(known: np.ndarray, data: np.ndarray, preset: Preset) -> ByteModel:
    """Return models that have read some bytes in front of `data`."""
    model = initial_model(np.concatenate([known, data]), preset)
    coder, coded = np.zeros(3, np.uint64), np.zeros(known.size + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    code(model, coder, coded, 0, known.size, False)
    return model


def _steps(length: int) -> Iterator[tuple[int, int]]:
    """Yield ranges that are short enough to report progress and to notice an interrupt."""
    for begin in range(0, length, STEP):
        yield begin, min(begin + STEP, length)
