"""Deep context mixing, levels 4 to 6: the drivers of deepmodel.py and of the state-space model beside it.

The state-space model is told every byte, and at the end of each of its chunks
it turns to the next: it takes over the weights that were trained on the chunks
before, and training on the one just coded begins. That training may run in a
second thread while the next chunk is coded, with the same result.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bitmodels import ssm, ssm_arrays, ssm_training
from squeeze.codecs.bitmodels import surroundings as around
from squeeze.codecs.deep.arrays import SSM, build_model
from squeeze.codecs.deep.learned import NO_SSM, Start, build_models
from squeeze.codecs.deep.model import advance, begin_byte, end_byte, gather, learn, mix, select
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel

SPARE = 64  # bytes: more than one byte of input can add to the coded bytes
STEP = 1 << 13
Progress = Callable[[int], None] | None


@inline
def _tell(m, s):
    """Tell the state-space model the latest byte, and the contexts what it expects next."""
    ssm.predict(s, np.int64(m.registers[around.HISTORY] & np.uint64(0xFF)))
    m.registers[around.OUTSIDE] = ssm.outlook(s)


@kernel
def code(m, s, coder, coded, begin, end, decoding, alone):
    """Code bytes begin to end of the block, in either direction.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding), and, unless it
    is to train `alone`, after a byte that completes a chunk; `resume` goes on from there.
    """
    for position in range(begin, end):
        if np.int64(coder[arithmetic.POSITION]) > coded.size + (SPARE if decoding else -2 * SPARE):
            return position
        begin_byte(m)
        byte = np.int64(m.data[position])
        for shift in range(7, -1, -1):
            gather(m, s)
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
        if m.settings[SSM]:
            if ssm.note(s, np.int64(m.data[position])):
                if not alone:
                    return position + 1
                bank = s.place[ssm.BANK]
                ssm.refresh(s)
                ssm.turn(s)
                ssm_training.train(s, bank)
            _tell(m, s)
    return end


@kernel
def resume(m, s):
    """After a chunk, when training on the one before it is done: take over its weights and begin the next chunk."""
    ssm.refresh(s)
    ssm.turn(s)
    _tell(m, s)


def _run(
    data: np.ndarray,
    coded: np.ndarray,
    preset: DeepPreset,
    record: int,
    decoding: bool,
    progress: Progress,
    threads: int,
    start: Start | None,
) -> tuple[np.ndarray, bool]:
    """Code all of `data` that follows the text of `start`; the coder, and whether the end was reached."""
    if start:
        model, network = build_models(data, preset, record, start)
    else:
        model, network = build_model(data, preset, record), ssm_arrays.build(preset.ssm or NO_SSM)
    span = (start.memory.text.size if start else 0, data.size)
    coder = np.zeros(3, np.uint64)
    if decoding:
        arithmetic.start_decoder(coder, coded)
    else:
        arithmetic.start_encoder(coder)
    drive = _beside if threads > 1 and preset.ssm else _alone
    for count in drive(model, network, coder, coded, span, decoding):
        if count < 0:
            return coder, False
        if progress:
            progress(count)
    return coder, True


def _alone(
    model: Any, network: Any, coder: np.ndarray, coded: np.ndarray, span: tuple[int, int], decoding: bool
) -> Iterator[int]:
    """Code in steps small enough to notice an interrupt between them; yields their lengths, or -1 and ends."""
    for begin in range(*span, STEP):
        end = min(begin + STEP, span[1])
        if code(model, network, coder, coded, begin, end, decoding, True) < end:
            yield -1
            return
        yield end - begin


def _beside(
    model: Any, network: Any, coder: np.ndarray, coded: np.ndarray, span: tuple[int, int], decoding: bool
) -> Iterator[int]:
    """The same, with training in a second thread."""
    training: Future[None] | None = None
    with ThreadPoolExecutor(1) as pool:
        begin = span[0]
        while begin < span[1]:
            chunk = network.acts.tokens.shape[1]
            complete = begin + chunk - int(network.place[ssm.BYTE]) + (begin == span[0])
            expected = min(complete, span[1])
            end = code(model, network, coder, coded, begin, expected, decoding, False)
            if training:
                training.result()
            if end < expected:
                yield -1
                return
            if end == complete:
                bank = int(network.place[ssm.BANK])
                resume(model, network)
                training = pool.submit(ssm_training.train, network, bank)
            yield end - begin
            begin = end


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
    known = np.concatenate([start.memory.text, data]) if start else data.copy()
    coder, complete = _run(known, coded, preset, record, False, progress, threads, start)
    if not complete:
        return None
    length = arithmetic.finish_encoder(coder, coded)
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
    text = start.memory.text if start else np.zeros(0, np.uint8)
    data = np.concatenate([text, np.zeros(length, np.uint8)])
    if not _run(data, coded, preset, record, True, progress, threads, start)[1]:
        raise DamagedError("a block's coded bytes end too early: the file is damaged")
    return data[text.size :]
