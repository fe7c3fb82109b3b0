"""Deep context mixing, levels 4 to 6: the drivers of model.py and of the network beside it, which is fed every byte."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep import ahead, predictors
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.learned import Start, started_model
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
    known: int = 0,
) -> int:
    """Code bytes begin to end of the block, in either direction, and measure what they cost where there is a meter,
    which knows nothing of the first `known` bytes.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding).
    """
    for position in range(begin, end):
        if arithmetic.is_over(coder, coded, decoding):
            return position
        begin_byte(m)
        if m.state.has_network:
            recurrent.predict(network, np.int64(m.registers[context_state.HISTORY] & np.uint64(0xFF)))
            m.registers[context_state.TOP_BYTE] = frequencies.top_prediction(network.counts)
        if meter is not None:
            meter_begin_byte(meter, m, network, position - known, known)
        code_byte(m, coder, coded, position, decoding, meter)
        if meter is not None:
            meter_end_byte(meter, m, network, position - known, position)
    return end


class Job(NamedTuple):
    """A block on its way through models and coder."""

    model: DeepModel
    network: Network  # beside the model
    coder: np.ndarray  # of bitmodels/coder.py
    coded: np.ndarray  # uint8
    counts: np.ndarray | None  # int64 [512]: those of the network that the model sees
    begin: int  # where the block begins in the model's data, after what a dictionary has read
    decoding: bool
    meter: Meter | None = None


def _start(job: Job) -> None:
    if job.decoding:
        arithmetic.start_decoder(job.coder, job.coded)
    else:
        arithmetic.start_encoder(job.coder)


def _run(job: Job, progress: Progress) -> bool:
    """Code the whole block, in steps small enough to notice an interrupt between them; whether its end was reached."""
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


def _run_behind(job: Job, known: np.ndarray, progress: Progress) -> bool:
    """As `_run`, where the network is ahead, in a thread of its own: the block holds the bytes `known`, or should."""
    _start(job)
    latest = int(job.model.registers[context_state.HISTORY]) & 0xFF
    for begin, said in ahead.listen(job.network, latest, known):
        first, part = job.begin + begin, known[begin : begin + said.top.size]
        if ahead.code(job.model, job.counts, said, part, job.coder, job.coded, first, job.decoding) < first + part.size:
            return False
        if progress:
            progress(part.size)
    return True


def _job(
    data: np.ndarray, coded: np.ndarray, preset: DeepPreset, record: int, start: Start | None, behind: bool = False
) -> Job:
    """A job for uint8 `data`, by models that begin with `start`; nothing of the block is coded yet. behind: the models
    see what the network said, and not what it says."""
    coder = np.zeros(3, np.uint64)
    network = weights.network(preset.network, start.network if start else None)
    counts = network.counts if preset.network else None
    if behind:
        counts = np.ones_like(network.counts)
    if start is None:
        return Job(build_model(data, preset, record, 0, counts), network, coder, coded, counts, 0, False)
    text = start.text
    model = started_model(np.concatenate([text, data]), preset, record, start, counts)
    return Job(model, network, coder, coded, counts, text.size, False)


def _goes_ahead(preset: DeepPreset, size: int, threads: int) -> bool:
    """Whether the network gets a thread of its own for `size` known bytes."""
    return preset.network and threads > 1 and size >= ahead.LEAST


def encode(
    data: np.ndarray,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    start: Start | None = None,
    threads: int = 1,
) -> bytes | None:
    """The coded form of uint8 `data`, or None where it would not be shorter. `start` is what a dictionary knows."""
    coded = np.zeros(data.size + 4 * arithmetic.SPARE, np.uint8)
    behind = _goes_ahead(preset, data.size, threads)
    job = _job(data.copy(), coded, preset, record, start, behind)
    if not (_run_behind(job, data, progress) if behind else _run(job, progress)):
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
    """The `length` bytes that `payload` was coded from, as uint8; DamagedError where it cannot be so. Where they are as
    guessed, threads help. A recorder measures what each cost."""
    coded = np.frombuffer(bytearray(payload), np.uint8)
    if guessed is not None and recorder is None and _goes_ahead(preset, length, threads):
        job = _job(np.zeros(length, np.uint8), coded, preset, record, start, True)._replace(decoding=True)
        if _run_behind(job, guessed, progress):
            return job.model.data[job.begin :]
        progress = None  # it was told
    meter = recorder.start(length, [predictors.input_names(preset)]) if recorder else None
    job = _job(np.zeros(length, np.uint8), coded, preset, record, start)._replace(decoding=True, meter=meter)
    if not _run(job, progress):
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return job.model.data[job.begin :]


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
