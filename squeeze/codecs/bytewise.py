"""Bytewise context mixing: a byte is eight decisions, high bit first. The levels that need no language model.

The model is driven in small steps, so that others can drive it too:

    begin_byte
    eight times: gather, select, mix -> probability, [code the bit], learn, advance
    end_byte

`code` is one such driver, for both directions. A predictor from outside joins
by asking `build_model` for extra inputs and writing its logits to
`inputs[first_extra(m):]` between `gather` and `mix`. A driver whose decisions
are sometimes forced calls `gather` and `advance` for a bit that is not coded
(with `learn` too, where the models should see it), and a decision
that is no bit of a byte uses mixer.py with weights of its own.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import coder as arithmetic
from squeeze.codecs.bitmodels import contexts, histories, match, mixer
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.presets import Preset
from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel, prefetch
from squeeze.numerics.logistic import STRETCH, clamp_logit, squash

if TYPE_CHECKING:
    from squeeze.codecs.deep.learned import Start

# Scalars of a model.
PARTIAL, SHIFT, NODE, KNOWN, MATCHED, LOGIT, MIXED, APM_ROW = range(8)
# Settings of a model.
RECORD, MAP_LIMIT, MATCH_LIMIT, RATE, FINAL_RATE, LINE_MASK = range(6)

SPARE = 64  # bytes: more than one byte of input can add to the coded bytes
STEP = 1 << 15
Progress = Callable[[int], None] | None

_ROWS = (768, 2048, 256)  # rows of each weight-set selector


class Model(NamedTuple):
    """Everything that predicts, in arrays: the shared state of encoder and decoder."""

    data: np.ndarray  # uint8: the block, as far as it is known
    settings: np.ndarray  # int64
    scalars: np.ndarray  # int64
    registers: np.ndarray  # uint64 [REGISTERS]
    followed1: np.ndarray  # uint16 [256]
    followed2: np.ndarray  # uint16 [65536]
    specs: np.ndarray  # uint64 [n, 3]: register, its mask, history mask
    hashes: np.ndarray  # uint64 [n]
    slots: np.ndarray  # uint8, aligned to cache lines
    slot: np.ndarray  # uint32 [n]: the present slot of each context
    entry: np.ndarray  # uint32 [n]: the present adaptive map entry of each context
    maps: np.ndarray  # uint32 [n * 256]
    matches: np.ndarray  # int64 [matches, 5]
    least_lengths: np.ndarray  # int64 [matches]
    match_table: np.ndarray  # int32 [matches, 2^bits]
    match_maps: np.ndarray  # uint32 [matches * ENTRIES]
    inputs: np.ndarray  # int32 [inputs]: contexts, two a match, bias, extra, padding
    weights: np.ndarray  # int32 [rows of all selectors, inputs]
    rows: np.ndarray  # int64 [selectors]
    logits: np.ndarray  # int32 [selectors]
    final_weights: np.ndarray  # int32 [256, selectors]
    apm_byte: np.ndarray  # uint32 [256, APM_STEPS]
    apm_order2: np.ndarray  # uint32 [65536, APM_STEPS]


def aligned_zeros(size: int) -> np.ndarray:
    """uint8 zeros that start at a cache line."""
    memory = np.zeros(size + histories.LINE, np.uint8)
    skip = -memory.ctypes.data % histories.LINE
    return memory[skip : skip + size]


def table_size(size: int, preset: Preset) -> int:
    """Bytes of the slots for a block of `size` bytes."""
    return histories.LINE << _line_bits(size, preset)


def _line_bits(size: int, preset: Preset) -> int:
    return min(max((size * len(preset.contexts) // 4).bit_length(), 8), preset.slot_bits)


def build_model(data: np.ndarray, preset: Preset, record: int = 0, extra: int = 0) -> Model:
    """Fresh models for one block, with room for `extra` inputs; table sizes follow from the block's length."""
    n, matches, selectors = len(preset.contexts), len(preset.matches), preset.selectors
    inputs = -(-(n + 2 * matches + 1 + extra) // 4) * 4
    line_bits = _line_bits(data.size, preset)
    match_bits = min(max(data.size.bit_length(), 8), 22)
    model = Model(
        data=data,
        settings=np.array([record, 511, 255, 10, 1, (1 << line_bits) - 1], np.int64),
        scalars=np.zeros(8, np.int64),
        registers=np.zeros(contexts.REGISTERS, np.uint64),
        followed1=np.zeros(256, np.uint16),
        followed2=np.zeros(65536, np.uint16),
        specs=np.array(preset.contexts, np.uint64),
        hashes=np.zeros(n, np.uint64),
        slots=aligned_zeros(histories.LINE << line_bits),
        slot=np.zeros(n, np.uint32),
        entry=np.zeros(n, np.uint32),
        maps=np.tile(histories.START, n),
        matches=np.zeros((matches, 5), np.int64),
        least_lengths=np.array(preset.matches, np.int64),
        match_table=np.zeros((matches, 1 << match_bits), np.int32),
        match_maps=np.full(matches * match.ENTRIES, match.START_ENTRY, np.uint32),
        inputs=np.zeros(inputs, np.int32),
        weights=np.full((sum(_ROWS[:selectors]), inputs), 12000, np.int32),
        rows=np.zeros(selectors, np.int64),
        logits=np.zeros(selectors, np.int32),
        final_weights=np.full((256, selectors), mixer.WEIGHT_ONE // selectors, np.int32),
        apm_byte=mixer.fresh_apm(256),
        apm_order2=mixer.fresh_apm(65536),
    )
    model.scalars[PARTIAL] = 1
    return model


@inline
def _find_slots(m, salt):
    """Enter the slots of this nibble: all contexts' cache lines are asked for before any is read."""
    mask = np.uint64(m.settings[LINE_MASK])
    for i in range(m.hashes.size):
        prefetch(m.slots, histories.line_of(contexts.mix_hash(m.hashes[i], salt), mask))
    for i in range(m.hashes.size):
        m.slot[i] = histories.find_slot(m.slots, contexts.mix_hash(m.hashes[i], salt), mask)
    m.scalars[NODE] = 1


@inline
def begin_byte(m):
    for i in range(m.hashes.size):
        spec = m.specs[i]
        m.hashes[i] = contexts.context_hash(m.registers, np.int64(spec[0]), spec[1], spec[2], np.uint64(i))
    match.begin_byte(m.matches, m.data)
    m.scalars[PARTIAL] = 1
    m.scalars[SHIFT] = 7
    _find_slots(m, np.uint64(0))


@inline
def first_extra(m):
    """Where the inputs of predictors from outside begin."""
    return m.slot.size + 2 * m.matches.shape[0] + 1


@inline
def gather(m):
    """Fill the inputs with what every context and match says of the next bit."""
    node, known, n = np.uint64(m.scalars[NODE]), 0, m.slot.size
    for i in range(n):
        history = m.slots[np.uint64(m.slot[i]) + node]
        entry = np.uint32(i * 256) + np.uint32(history)
        m.entry[i] = entry
        m.inputs[i] = STRETCH[m.maps[entry] >> np.uint32(20)] if history else 0
        known += history > 0
    partial = m.scalars[PARTIAL]
    found = match.gather(m.matches, m.match_maps, partial, m.scalars[SHIFT], m.inputs, n)
    m.inputs[first_extra(m) - 1] = 1024  # bias
    m.scalars[KNOWN] = known * 7 // n
    m.scalars[MATCHED] = found


@inline
def select(m):
    """Choose the weight sets."""
    partial, found = m.scalars[PARTIAL], m.scalars[MATCHED]
    latest = np.int64(m.registers[contexts.HISTORY] & np.uint64(0xFF))
    selectors = m.rows.size
    m.rows[0] = partial + (256 * (1 + (found & 1)) if found else 0)
    if selectors > 1:
        m.rows[1] = 768 + latest * 8 + m.scalars[SHIFT]
    if selectors > 2:
        m.rows[2] = 768 + 2048 + m.scalars[KNOWN] * 16 + found


@inline
def mix(m):
    """The 32-bit probability that the next bit is a one."""
    total = np.int64(0)
    final = m.final_weights[m.scalars[PARTIAL]]
    for k in range(m.rows.size):
        logit = mixer.dot(m.weights[m.rows[k]], m.inputs)
        m.logits[k] = np.int32(logit)
        total += logit * np.int64(final[k])
    logit = clamp_logit(total >> 16)
    m.scalars[LOGIT] = logit
    mixed = squash(logit)
    m.scalars[MIXED] = mixed
    partial = m.scalars[PARTIAL]
    row = np.int64(
        contexts.mix_hash(m.registers[contexts.HISTORY] & np.uint64(0xFFFF), np.uint64(partial)) >> np.uint64(48)
    )
    m.scalars[APM_ROW] = row
    refined = mixed + mixer.refine(m.apm_byte, partial, logit) + 2 * mixer.refine(m.apm_order2, row, logit)
    return min(max(refined >> 2, 1), (1 << 32) - 1)


@inline
def learn(m, bit):
    """Tell everything that predicted what the bit was."""
    logit, target = m.scalars[LOGIT], (bit << 32) - bit
    mixer.learn_apm(m.apm_byte, m.scalars[PARTIAL], logit, bit, 6)
    mixer.learn_apm(m.apm_order2, m.scalars[APM_ROW], logit, bit, 5)
    rate = m.settings[RATE]
    for k in range(m.rows.size):
        error = (target - squash(np.int64(m.logits[k]))) >> 16
        mixer.train(m.weights[m.rows[k]], m.inputs, error, rate)
    error = (target - m.scalars[MIXED]) >> 16
    mixer.train(m.final_weights[m.scalars[PARTIAL]], m.logits, error, m.settings[FINAL_RATE])
    note(m, bit)


@inline
def note(m, bit):
    """Tell the contexts and matches what the bit was; the mixers are told by `learn`."""
    node, limit, taken = np.uint64(m.scalars[NODE]), m.settings[MAP_LIMIT], np.uint32(bit << 8)
    for i in range(m.slot.size):
        at = np.uint64(m.slot[i]) + node
        m.slots[at] = histories.NEXT[taken | np.uint32(m.slots[at])]
        histories.learn(m.maps, m.entry[i], bit, limit)
    match.note_bit(m.matches, m.match_maps, bit, m.scalars[SHIFT], m.settings[MATCH_LIMIT])


@inline
def advance(m, bit):
    """Move past a bit."""
    m.scalars[PARTIAL] = 2 * m.scalars[PARTIAL] + bit
    m.scalars[NODE] = 2 * m.scalars[NODE] + bit
    m.scalars[SHIFT] -= 1
    if m.scalars[SHIFT] == 3:
        _find_slots(m, np.uint64(m.scalars[PARTIAL]))


@inline
def end_byte(m, position):
    m.data[position] = np.uint8(m.scalars[PARTIAL] & 255)
    contexts.note_byte(m.registers, m.followed1, m.followed2, m.data, position, m.settings[RECORD])
    match.note_byte(m.matches, m.least_lengths, m.match_table, m.data, position)


@kernel
def code(m, coder, coded, begin, end, decoding):
    """Code bytes begin to end of the block, in either direction.

    Returns where it stopped: before `end` when `coded` is full (encoding) or used up (decoding).
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
    return end


def encode(
    data: np.ndarray,
    preset: Preset | DeepPreset,
    record: int = 0,
    progress: Progress = None,
    *,
    threads: int = 1,
    start: "Start | None" = None,
) -> bytes | None:
    """The coded form of uint8 `data`, or None where it would not be shorter.

    What the presets of levels 4 to 6 alone use: `threads`, which change no byte, and `start`, what a dictionary knows.
    """
    if isinstance(preset, DeepPreset):
        from squeeze.codecs.deep import coder as deep

        return deep.encode(data, preset, record, progress, threads, start)
    model = build_model(data.copy(), preset, record)
    coder, coded = np.zeros(3, np.uint64), np.zeros(data.size + 4 * SPARE, np.uint8)
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
    preset: Preset | DeepPreset,
    record: int = 0,
    progress: Progress = None,
    *,
    threads: int = 1,
    start: "Start | None" = None,
) -> np.ndarray:
    """The `length` bytes that `payload` was coded from, as uint8; DamagedError where it cannot be so."""
    if isinstance(preset, DeepPreset):
        from squeeze.codecs.deep import coder as deep

        return deep.decode(payload, length, preset, record, progress, threads, start)
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
