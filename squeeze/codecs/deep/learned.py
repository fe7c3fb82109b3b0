"""What the models of levels 4 to 6 begin with where a dictionary is used, in place of knowing nothing.

A *memory* is what reading a text leaves behind: evidence in slots, runs,
matches, registers. *Learned* is what coding sample files has taught everything
that has no memory: mixers, adaptive maps, the state-space model. dictionary.py
keeps both in a file, training.py makes them.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import ssm, ssm_arrays
from squeeze.codecs.deep import arrays as deeparrays
from squeeze.codecs.deep.arrays import Model, build_model
from squeeze.codecs.deep.model import advance, begin_byte, end_byte, gather, note
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics.jit import kernel

NO_SSM = ssm_arrays.Sizes(16, 16, 8, 1, 4)  # stands in where a preset has none, and is never asked
MAPS = ("maps", "run_maps", "match_maps", "ssm_map")  # adaptive maps, whose sizes are multiples of 256
WHOLE = (*MAPS, "finals")  # what is learned besides rows of weights and of adaptive probability maps
_COPIED = ("registers", "followed1", "followed2", "followed3", "stack", "matches")  # of a memory


class Learned(NamedTuple):
    """Of weight sets and adaptive probability maps only the rows that were used often."""

    rows: np.ndarray  # int64 [r], ascending: which weight sets; the first is 0, which is always used
    visits: np.ndarray  # int32 [r]
    weights: np.ndarray  # float32 [r, inputs]
    apm_rows: np.ndarray  # int64 [a], ascending
    apms: np.ndarray  # uint32 [a, APM_STEPS]
    whole: dict[str, np.ndarray]  # the arrays that WHOLE names
    ssm: np.ndarray  # float32, flat as in ssm.py; nothing where the level has no such model
    ssm_second: np.float32  # Adam's running mean of squared gradients, the mean of all weights'
    ssm_steps: int  # of training


class Memory(NamedTuple):
    """The model that has read a dictionary's text. Blocks copy from it and never write to it."""

    text: np.ndarray  # uint8
    model: Model


class Start(NamedTuple):
    memory: Memory
    learned: Learned


@kernel
def _read(m, s, count):
    for position in range(count):
        begin_byte(m)
        byte = np.int64(m.data[position])
        for shift in range(7, -1, -1):
            bit = (byte >> shift) & 1
            gather(m, s)
            note(m, bit)
            advance(m, bit)
        end_byte(m, position)


def read(text: np.ndarray, preset: DeepPreset, record: int) -> Memory:
    """The memory of uint8 `text`. No state-space model reads it."""
    model = build_model(text.copy(), replace(preset, ssm=None), record)
    _read(model, ssm_arrays.build(NO_SSM), text.size)
    return Memory(text, model)


def build_models(data: np.ndarray, preset: DeepPreset, record: int, start: Start) -> tuple[Model, ssm_arrays.Model]:
    """Models for one block that begin with `start`; `data` is its text and then the block."""
    model = remember(data, preset, record, start.memory)
    recall(model, start.learned)
    return model, build_ssm(preset, start.learned)


def remember(data: np.ndarray, preset: DeepPreset, record: int, memory: Memory) -> Model:
    """A model that has read the text, and has learned nothing else."""
    model, before = build_model(data, preset, record, memory.text.size), memory.model
    model = model._replace(
        learned=before.slots,
        learned_counters=before.counters,
        runs=_widened(before.runs, model.runs.shape[1]),
        match_table=_widened(before.match_table, model.match_table.shape[1]),
    )
    for name in _COPIED:
        getattr(model, name)[...] = getattr(before, name)
    model.settings[deeparrays.LEARNED] = before.settings[deeparrays.BUCKETS]
    model.settings[deeparrays.RUN_MASK] = model.runs.shape[1] - 1
    return model


def _widened(table: np.ndarray, size: int) -> np.ndarray:
    """A copy with rows of at least `size`, a power of two, in which every hash finds what it found before."""
    return np.tile(table, (1, max(size // table.shape[1], 1)))


def recall(model: Model, learned: Learned) -> None:
    width = model.inputs.size
    model.weights.reshape(-1, width)[learned.rows] = learned.weights
    model.visits[learned.rows] = learned.visits
    model.apms[learned.apm_rows] = learned.apms
    for name in WHOLE:
        getattr(model, name)[...] = learned.whole[name]


def build_ssm(preset: DeepPreset, learned: Learned) -> ssm_arrays.Model:
    if preset.ssm is None:
        return ssm_arrays.build(NO_SSM)
    network = ssm_arrays.build(preset.ssm, learned.ssm)
    network.trainer.second[: network.trainer.first.size] = learned.ssm_second
    network.place[ssm.STEPS] = learned.ssm_steps
    return network
