"""Deep context mixing, levels 4 to 6: the drivers of model.py and of the state-space model beside it.

The state-space model is fed every byte, and at the end of each of its chunks
it turns to the next: it takes over the weights that were trained on the chunks
before, and training on the one just coded begins. That training may run in a
second thread while the next chunk is coded, with the same result.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic, context_state, ssm, ssm_training
from squeeze.codecs.bitmodels.ssm_arrays import StateSpaceModel
from squeeze.codecs.deep.arrays import DeepModel, build_model, build_network
from squeeze.codecs.deep.learned import Start, started_models
from squeeze.codecs.deep.model import advance, begin_byte, end_byte, gather, learn, mix, select
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel

SPARE = 64  # bytes: more than one byte of input can add to the coded bytes
STEP = 1 << 13
Progress = Callable[[int], None] | None


@inline
def _predict(m: DeepModel, network: StateSpaceModel) -> None:
    """Feed the state-space model the latest byte; a register tells the contexts what it expects next."""
    ssm.predict(network, np.int64(m.registers[context_state.HISTORY] & np.uint64(0xFF)))
    m.registers[context_state.TOP_BYTE] = ssm.top_prediction(network)


@kernel
def code(
    m: DeepModel,
    network: StateSpaceModel,
    coder: np.ndarray,
    coded: np.ndarray,
    begin: int,
    end: int,
    decoding: bool,
    trains: bool,
) -> int:
    """Code bytes begin to end of the block, in either direction.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding), and, unless it
    `trains` the state-space model itself, after a byte that completes a chunk; `resume` goes on from there.
    """
    for position in range(begin, end):
        if np.int64(coder[arithmetic.POSITION]) > coded.size + (SPARE if decoding else -2 * SPARE):
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
        if m.state.has_ssm:
            if ssm.update(network, np.int64(m.data[position])):
                if not trains:
                    return position + 1
                bank = network.state.bank
                ssm.refresh(network)
                ssm.next_chunk(network)
                ssm_training.train(network, bank)
            _predict(m, network)
    return end


@kernel
def resume(m: DeepModel, network: StateSpaceModel) -> None:
    """After a chunk, when training on the one before it is done: take over its weights and begin the next chunk."""
    ssm.refresh(network)
    ssm.next_chunk(network)
    _predict(m, network)


class Job(NamedTuple):
    """A block on its way through models and coder."""

    model: DeepModel
    network: StateSpaceModel
    coder: np.ndarray  # of bitmodels/coder.py
    coded: np.ndarray  # uint8
    begin: int  # where the block begins in the model's data, after what a dictionary has read
    decoding: bool


def _run(job: Job, progress: Progress, threads: int) -> bool:
    """Code the whole block; whether its end was reached."""
    if job.decoding:
        arithmetic.start_decoder(job.coder, job.coded)
    else:
        arithmetic.start_encoder(job.coder)
    drive = _overlapped if threads > 1 and job.model.state.has_ssm else _alone
    for count in drive(job):
        if count < 0:
            return False
        if progress:
            progress(count)
    return True


def _alone(job: Job) -> Iterator[int]:
    """Code in steps small enough to notice an interrupt between them; yields their lengths, or -1 and ends."""
    size = job.model.data.size
    for begin in range(job.begin, size, STEP):
        end = min(begin + STEP, size)
        if code(job.model, job.network, job.coder, job.coded, begin, end, job.decoding, True) < end:
            yield -1
            return
        yield end - begin


def _overlapped(job: Job) -> Iterator[int]:
    """The same, with training in a second thread."""
    training: Future[None] | None = None
    network, begin, size = job.network, job.begin, job.model.data.size
    chunk = network.acts.tokens.shape[1]
    with ThreadPoolExecutor(1) as pool:
        while begin < size:
            complete = begin + chunk - int(network.state.byte) + (begin == job.begin)
            expected = min(complete, size)
            end = code(job.model, job.network, job.coder, job.coded, begin, expected, job.decoding, False)
            if training:
                training.result()
            if end < expected:
                yield -1
                return
            if end == complete:
                bank = int(network.state.bank)
                resume(job.model, network)
                training = pool.submit(ssm_training.train, network, bank)
            yield end - begin
            begin = end


def _job(data: np.ndarray, coded: np.ndarray, preset: DeepPreset, record: int, start: Start | None) -> Job:
    """A job for uint8 `data`, by models that begin with `start`; nothing of the block is coded yet."""
    coder = np.zeros(3, np.uint64)
    if start is None:
        network = build_network(preset)
        return Job(build_model(data, preset, record, 0, network), network, coder, coded, 0, False)
    text = start.memory.text
    model, network = started_models(np.concatenate([text, data]), preset, record, start)
    return Job(model, network, coder, coded, text.size, False)


def encode(
    data: np.ndarray,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    threads: int = 1,
    start: Start | None = None,
) -> bytes | None:
    """The coded form of uint8 `data`, or None where it would not be shorter. `start` is what a dictionary knows."""
    coded = np.zeros(data.size + 4 * SPARE, np.uint8)
    job = _job(data.copy(), coded, preset, record, start)
    if not _run(job, progress, threads):
        return None
    length = arithmetic.finish_encoder(job.coder, coded)
    return coded[:length].tobytes() if length < data.size else None


def decode(
    payload: bytes,
    length: int,
    preset: DeepPreset,
    record: int = 0,
    progress: Progress = None,
    threads: int = 1,
    start: Start | None = None,
) -> np.ndarray:
    """The `length` bytes that `payload` was coded from, as uint8; DamagedError where it cannot be so."""
    coded = np.frombuffer(bytearray(payload), np.uint8)
    job = _job(np.zeros(length, np.uint8), coded, preset, record, start)._replace(decoding=True)
    if not _run(job, progress, threads):
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return job.model.data[job.begin :]
