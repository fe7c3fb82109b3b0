"""Coding a block with deep context mixing, levels 4 to 6: model.py drives the arithmetic coder, the network gets every
byte."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep import ahead, predictors
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.initial_state import Start, initial_model
from squeeze.codecs.deep.model import begin_byte, code_byte, meter_begin_byte, meter_end_byte
from squeeze.codecs.deep.predictors import NETWORK
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.proving import FAULTY, Proof
from squeeze.codecs.recurrent import model as recurrent, weights
from squeeze.codecs.recurrent.weights import Network
from squeeze.errors import DamagedError, VerifyError
from squeeze.numerics.bitmodels import coder as arithmetic, context_state, frequencies
from squeeze.numerics.bitmodels.frequencies import BYTES
from squeeze.numerics.bitmodels.meter import Meter, Recorder
from squeeze.numerics.jit import kernel

STEP = 1 << 13  # bytes after which progress is reported, and an interrupt is noticed
UNKNOWN = np.zeros((0, BYTES), np.int32)  # no predictions: `code` runs the network
Progress = Callable[[int], None] | None


class Job(NamedTuple):
    """A block with its models and coder."""

    model: DeepModel
    network: Network  # never run if the preset has none
    coder: np.ndarray  # state of bitmodels/coder.py
    coded: np.ndarray  # uint8, coded bytes to write or read
    begin: int  # first byte of the block in the model's data, after a dictionary's text


@kernel
def code(job: Job, begin: int, end: int, decoding: bool, known: np.ndarray, meter: Meter | None) -> int:
    """Code a range of the block's bytes in either direction.

    Args:
        job: the block.
        begin: first byte to code, in the model's data.
        end: the byte after the last.
        decoding: the direction.
        known: int32 [end - begin, 256], the network's frequencies of these bytes, or UNKNOWN.
        meter: notes the cost of every bit, if given.

    Returns:
        `end`, or the byte where `coded` was full (encoding) or used up (decoding).
    """
    m, network, counts = job.model, job.network, job.model.predictors[NETWORK].counts
    for position in range(begin, end):
        if arithmetic.is_over(job.coder, job.coded, decoding):
            return position
        begin_byte(m)
        if m.state.has_network:
            if known.shape[0]:
                frequencies.add_up(known[position - begin], counts)
            else:
                network.fed[0] = np.uint8(m.registers[context_state.HISTORY] & np.uint64(0xFF))
                recurrent.predict(network, network.fed)
                frequencies.add_up(network.frequencies[0], counts)
            m.registers[context_state.TOP_BYTE] = frequencies.top_prediction(counts)
        if meter is not None:
            meter_begin_byte(meter, m, position - job.begin, job.begin)
        code_byte(m, job.coder, job.coded, position, decoding, meter)
        if meter is not None:
            meter_end_byte(meter, m, position - job.begin, position)
    return end


def _pieces(job: Job, known: np.ndarray | None, threads: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield ranges of the block's bytes, first and last, with the network's frequencies, or UNKNOWN."""
    size, begin = job.model.data.size, job.begin
    if known is None or not job.model.state.has_network:
        for first in range(begin, size, STEP):
            yield first, min(first + STEP, size), UNKNOWN
        return
    latest = int(job.model.registers[context_state.HISTORY]) & 0xFF
    for found in ahead.predict_ahead(job.network, latest, known, threads):
        yield begin, begin + len(found), found
        begin += len(found)


def _run(
    job: Job,
    decoding: bool,
    progress: Progress,
    known: np.ndarray | None,
    threads: int,
    meter: Meter | None = None,
    proof: Proof | None = None,
) -> bool:
    """Code the whole block.

    Args:
        job: the block.
        decoding: the direction.
        progress: is called with the number of bytes coded since its last call.
        known: uint8 [n], the block's bytes if they are known or guessed, so that the network can run ahead.
        threads: 2 or more run it in a thread of its own.
        meter: notes the cost of every bit, if given.
        proof: verifies the coded bytes at the same time, if given.

    Returns:
        whether the end was reached, and no byte differs from a guess.
    """
    if decoding:
        arithmetic.start_decoder(job.coder, job.coded)
    else:
        arithmetic.start_encoder(job.coder)
    for begin, end, found in _pieces(job, known, threads):
        if code(job, begin, end, decoding, found, meter) < end:
            return False
        place = slice(begin - job.begin, end - job.begin)
        if known is not None and not np.array_equal(job.model.data[begin:end], known[place]):
            return False
        if proof:
            proof.note(place.start, place.stop, int(job.coder[arithmetic.POSITION]))
        if progress:
            progress((end - begin) * (2 if proof else 1))
    return True


def prepare(data: np.ndarray, coded: np.ndarray, preset: DeepPreset, record: int, start: Start | None) -> Job:
    """Build models and coder for a block.

    Args:
        data: uint8 [n], the block, or zeros to decode it.
        coded: uint8, buffer of the coded bytes.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        start: what a dictionary knows, or None.
    """
    network = weights.network(preset.network, start.network if start else None)
    coder = np.zeros(3, np.uint64)
    if start is None:
        return Job(build_model(data.copy(), preset, record, 0, preset.network), network, coder, coded, 0)
    text = start.text
    model = initial_model(np.concatenate([text, data]), preset, record, start, preset.network)
    return Job(model, network, coder, coded, text.size)


def encode(
    data: np.ndarray,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    start: Start | None = None,
    threads: int = 1,
    verify: bool = False,
) -> bytes | None:
    """Return the coded bytes of a block, or None if they are no shorter.

    Args:
        data: uint8 [n], the block.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        progress: is called with the number of bytes coded since its last call.
        start: what a dictionary knows, or None.
        threads: 2 or more run the network in a thread of its own.
        verify: decode them in another thread at the same time, and compare; `progress` counts bytes twice.

    Raises:
        VerifyError: if they do not decode to `data`.
    """
    coded = np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    job = prepare(data, coded, preset, record, start)

    def start_comparison() -> Callable[[int, int], bool]:
        return _comparison(data, prepare(np.zeros_like(data), coded, preset, record, start))

    with Proof(coded, start_comparison) if verify else nullcontext() as proof:
        if not _run(job, False, progress, data, threads, proof=proof):
            return None
        length = arithmetic.finish_encoder(job.coder, coded)
        if length >= data.size:
            return None
        if proof and not proof.holds():
            raise VerifyError(FAULTY)
    return coded[:length].tobytes()


def _comparison(data: np.ndarray, job: Job) -> Callable[[int, int], bool]:
    """Return a function that decodes ranges of a block in turn, and tells whether they are those of `data`."""
    arithmetic.start_decoder(job.coder, job.coded)

    def is_same(begin: int, end: int) -> bool:
        first, last = job.begin + begin, job.begin + end
        whole = code(job, first, last, True, UNKNOWN, None) == last
        return whole and np.array_equal(job.model.data[first:last], data[begin:end])

    return is_same


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
        threads: 2 or more let it do so in a thread of its own.

    Raises:
        DamagedError: if the coded bytes end too early.
    """
    coded, empty = np.frombuffer(bytearray(payload), np.uint8), np.zeros(length, np.uint8)
    if guessed is not None and recorder is None and preset.network:
        job = prepare(empty, coded, preset, record, start)
        if _run(job, True, progress, guessed, threads):
            return job.model.data[job.begin :]
        progress = None  # all bytes were reported
    meter = recorder.start(length, [predictors.input_names(preset)]) if recorder else None
    job = prepare(empty, coded, preset, record, start)
    if not _run(job, True, progress, None, 1, meter):
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return job.model.data[job.begin :]


_PIECES, _PIECE = 4, 256  # pieces of a sample at equal distances, and bytes of each


def network_predicts(data: np.ndarray) -> bool:
    """Return whether the byte network predicts a sample of uint8 `data` better than its order-0 frequencies do.

    It does not for hexadecimal digits, EBCDIC or base64, which are coded with other models then. The comparison is of
    integers, so all machines agree.
    """
    sample = _sample(data)
    likely, total, begin = 1, 1, 0  # products of numerators and of denominators of probabilities
    for found in ahead.predict_ahead(weights.network(), 0, sample):
        known = sample[begin : begin + len(found)]
        likely *= math.prod(found[np.arange(known.size), known].tolist())
        total *= math.prod(found.sum(1, dtype=np.int64).tolist())
        begin += known.size
    counts = np.bincount(sample, minlength=BYTES).tolist()
    return bool(likely * sample.size**sample.size > total * math.prod(count**count for count in counts))


def _sample(data: np.ndarray) -> np.ndarray:
    if data.size <= _PIECES * _PIECE:
        return data
    starts = (2 * np.arange(_PIECES) + 1) * data.size // (2 * _PIECES) - _PIECE // 2
    return np.concatenate([data[start : start + _PIECE] for start in starts])
