"""Coding a block with deep context mixing, levels 4 to 6: model.py drives the arithmetic coder, the network gets every
byte."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep import ahead, predictors
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.initial_state import Start, initial_model
from squeeze.codecs.deep.model import begin_byte, code_byte, meter_begin_byte, meter_end_byte
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent import model as recurrent, weights
from squeeze.codecs.recurrent.weights import Network
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic, context_state, frequencies
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.bitmodels.meter import Meter, Recorder
from squeeze.numerics.jit import kernel

STEP = 1 << 13
Progress = Callable[[int], None] | None


@kernel
def code(  # noqa: PLR0913
    m: DeepModel,
    network: Network,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    end: int,
    decoding: bool,
    meter: Meter | None = None,
    text_size: int = 0,
) -> int:
    """Code a range of the block's bytes in either direction.

    Args:
        m: mixers and predictors.
        network: the byte network, if the preset has one.
        coder: state of the arithmetic coder (bitmodels/coder.py).
        coded: uint8, coded bytes to write or read.
        begin: first byte to code.
        end: the byte after the last.
        decoding: the direction.
        meter: notes the cost of every bit, if given.
        text_size: bytes of a dictionary's text before the block, which the meter does not count.

    Returns:
        `end`, or the byte where `coded` was full (encoding) or used up (decoding).
    """
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        begin_byte(m)
        if m.state.has_network:
            network.fed[0] = np.int64(m.registers[context_state.HISTORY] & np.uint64(0xFF))
            recurrent.predict(network, 0, 1)
            m.registers[context_state.TOP_BYTE] = frequencies.top_prediction(network.counts[0])
        if meter is not None:
            meter_begin_byte(meter, m, network, position - text_size, text_size)
        code_byte(m, coder, coded, position, decoding, meter)
        if meter is not None:
            meter_end_byte(meter, m, network, position - text_size, position)
    return end


class Job(NamedTuple):
    """A block with its models and coder."""

    model: DeepModel
    network: Network
    coder: np.ndarray  # state of bitmodels/coder.py
    coded: np.ndarray  # uint8
    counts: np.ndarray | None  # int64 [512]: the network's frequencies that the mixers see
    begin: int  # first byte of the block in the model's data, after a dictionary's text
    decoding: bool
    meter: Meter | None = None


def _start(job: Job) -> None:
    if job.decoding:
        arithmetic.start_decoder(job.coder, job.coded)
    else:
        arithmetic.start_encoder(job.coder)


def _run(job: Job, progress: Progress) -> bool:
    """Code the whole block, in steps that are short enough to notice an interrupt; return whether its end was
    reached."""
    _start(job)
    size = job.model.data.size
    for begin in range(job.begin, size, STEP):
        end = min(begin + STEP, size)
        direction = (job.decoding,) if job.meter is None else (job.decoding, job.meter, job.begin)
        if code(job.model, job.network, job.coder, job.coded, begin, end, *direction) < end:
            return False
        if progress:
            progress(end - begin)
    return True


def _run_with_predictions(job: Job, known: np.ndarray, progress: Progress) -> bool:
    """Code the whole block as `_run` does, with the network in a thread of its own, on the expected bytes."""
    _start(job)
    latest = int(job.model.registers[context_state.HISTORY]) & 0xFF
    for begin, predictions in ahead.predict_ahead(job.network, latest, known):
        first, part = job.begin + begin, known[begin : begin + predictions.top.size]
        reached = ahead.code(job.model, job.counts, predictions, part, job.coder, job.coded, first, job.decoding)
        if reached < first + part.size:
            return False
        if progress:
            progress(part.size)
    return True


def _job(
    data: np.ndarray, coded: np.ndarray, preset: DeepPreset, record: int, start: Start | None, predicted: bool = False
) -> Job:
    """Build models and coder for a block.

    Args:
        data: uint8 [n], the block.
        coded: uint8, buffer of the coded bytes.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        start: what a dictionary knows, or None.
        predicted: whether the mixers get frequencies computed before, not the network's own.
    """
    coder = np.zeros(3, np.uint64)
    network = weights.network(preset.network, start.network if start else None)
    counts = network.counts[0] if preset.network else None
    if predicted:
        counts = np.ones_like(network.counts[0])
    if start is None:
        return Job(build_model(data, preset, record, 0, counts), network, coder, coded, counts, 0, False)
    text = start.text
    model = initial_model(np.concatenate([text, data]), preset, record, start, counts)
    return Job(model, network, coder, coded, counts, text.size, False)


def _runs_ahead(preset: DeepPreset, size: int, threads: int) -> bool:
    """Return whether the network gets a thread of its own for `size` known bytes."""
    return preset.network and threads > 1 and size >= ahead.LEAST


def encode(
    data: np.ndarray,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    start: Start | None = None,
    threads: int = 1,
) -> bytes | None:
    """Return the coded bytes of a block, or None if they are no shorter.

    Args:
        data: uint8 [n], the block.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        progress: is called with the number of bytes coded since its last call.
        start: what a dictionary knows, or None.
        threads: 2 or more let the network run ahead.
    """
    coded = np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    predicted = _runs_ahead(preset, data.size, threads)
    job = _job(data.copy(), coded, preset, record, start, predicted)
    if not (_run_with_predictions(job, data, progress) if predicted else _run(job, progress)):
        return None
    length = arithmetic.finish_encoder(job.coder, coded)
    return coded[:length].tobytes() if length < data.size else None


def decode(  # noqa: PLR0913
    payload: bytes,
    length: int,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    start: Start | None = None,
    recorder: Recorder | None = None,
    guessed: np.ndarray | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Decode a block.

    Args:
        payload: coded bytes.
        length: raw bytes of the block.
        preset: the models that coded it.
        record: length of a record in bytes for tables, or 0.
        progress: is called with the number of bytes decoded since its last call.
        start: what a dictionary knows, or None.
        recorder: measures the cost of every byte, if given.
        guessed: uint8 [length], the bytes that are expected, so that the network can run ahead.
        threads: 2 or more let the network run ahead.

    Raises:
        DamagedError: if the coded bytes end too early.
    """
    coded = np.frombuffer(bytearray(payload), np.uint8)
    if guessed is not None and recorder is None and _runs_ahead(preset, length, threads):
        job = _job(np.zeros(length, np.uint8), coded, preset, record, start, True)._replace(decoding=True)
        if _run_with_predictions(job, guessed, progress):
            return job.model.data[job.begin :]
        progress = None  # all bytes were reported
    meter = recorder.start(length, [predictors.input_names(preset)]) if recorder else None
    job = _job(np.zeros(length, np.uint8), coded, preset, record, start)._replace(decoding=True, meter=meter)
    if not _run(job, progress):
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return job.model.data[job.begin :]


_PIECES, _PIECE = 4, 256  # pieces of a sample at equal distances, and bytes of each


def network_predicts(data: np.ndarray) -> bool:
    """Return whether the byte network predicts a sample of uint8 `data` better than its order-0 frequencies do.

    It does not for hexadecimal digits, EBCDIC or base64, which are coded with other models then. The comparison is of
    integers, so all machines agree.
    """
    sample = _sample(data)
    network = weights.network()
    likely, total = 1, 1  # products of numerators and of denominators of probabilities
    for begin, predictions in ahead.predict_ahead(network, 0, sample):
        known = sample[begin : begin + predictions.top.size]
        likely *= math.prod(predictions.leaves[np.arange(known.size), known].tolist())
        total *= math.prod(predictions.leaves.sum(1, dtype=np.int64).tolist())
    counts = np.bincount(sample, minlength=BYTES).tolist()
    return bool(likely * sample.size**sample.size > total * math.prod(count**count for count in counts))


def _sample(data: np.ndarray) -> np.ndarray:
    if data.size <= _PIECES * _PIECE:
        return data
    starts = (2 * np.arange(_PIECES) + 1) * data.size // (2 * _PIECES) - _PIECE // 2
    return np.concatenate([data[start : start + _PIECE] for start in starts])
