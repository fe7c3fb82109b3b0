"""What the models of levels 4 to 6 begin with where a dictionary is used, in place of knowing nothing.

A *memory* is what reading a text leaves behind: what happened in contexts, runs,
matches, registers. *Learned* is what coding sample files has taught everything
that has no memory: mixers and adaptive maps. codecs/stream
makes both, and keeps them in a file.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep import predictors
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.model import advance, begin_byte, begin_nibble, end_byte, gather, update
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent.weights import Weights
from squeeze.numerics.bitmodels import layout, mixer
from squeeze.numerics.jit import kernel

_COPIED = ("registers", "followed1", "followed2", "followed3", "stack")  # of a memory, besides what predictors keep


class Learned(NamedTuple):
    """Of weight sets and adaptive probability maps only the rows that were used often."""

    rows: np.ndarray  # int64 [r], ascending: which weight sets; the first is 0, which is always used
    visits: np.ndarray  # int32 [r]
    weights: np.ndarray  # float32 [r, inputs]
    apm_rows: np.ndarray  # int64 [a], ascending
    apms: np.ndarray  # uint32 [a, APM_STEPS]
    maps: list[np.ndarray]  # uint32: adaptive maps, as `maps_of` has them
    finals: np.ndarray  # float32: weights of the last mixers


class Memory(NamedTuple):
    """The model that has read a dictionary's text. Blocks copy from it and never write to it."""

    text: np.ndarray  # uint8
    model: DeepModel


class Start(NamedTuple):
    memory: Memory | None  # None where no text is read
    learned: tuple[Learned, ...]  # in order: what a later one says counts
    network: Weights | None = None  # None for the pretrained one

    @property
    def text(self) -> np.ndarray:
        return self.memory.text if self.memory else np.zeros(0, np.uint8)


@kernel
def _read(m: DeepModel, count: int) -> None:
    for position in range(count):
        begin_byte(m)
        begin_nibble(m)
        byte = np.int64(m.data[position])
        for shift in range(7, -1, -1):
            bit = (byte >> shift) & 1
            gather(m)
            update(m, bit)
            advance(m, bit)
        end_byte(m, position)


def read(text: np.ndarray, preset: DeepPreset, record: int) -> Memory:
    """The memory of uint8 `text`. No network reads it."""
    model = build_model(text.copy(), preset, record)
    _read(model, text.size)
    return Memory(text, model)


def arrays_of(memory: Memory) -> dict[str, np.ndarray]:
    """All that `remember` takes of a memory, by name: what a file must keep of it."""
    model = memory.model
    copied = {name: getattr(model, name) for name in _COPIED}
    return {"text": memory.text, **copied, **predictors.remembered(model.predictors)}


def restored(kept: Mapping[str, np.ndarray], preset: DeepPreset, record: int) -> Memory:
    """The memory that `arrays_of` took apart; `kept` has the bytes of each array, uint8. Raises KeyError or ValueError
    where they are not its own."""
    model = build_model(kept["text"], preset, record)
    copied = {name: layout.seen_as(kept[name], getattr(model, name)) for name in _COPIED}
    read = predictors.with_remembered(model.predictors, kept)
    return Memory(kept["text"], model._replace(predictors=read, **copied))


def started_model(
    data: np.ndarray, preset: DeepPreset, record: int, start: Start, counts: np.ndarray | None = None
) -> DeepModel:
    """The models for one block that begin with `start`; `data` is its text and then the block."""
    if start.memory:
        model = remember(data, preset, record, start.memory, counts)
    else:
        model = build_model(data, preset, record, 0, counts)
    for known in start.learned:
        _recall(model, known)
    return model


def remember(
    data: np.ndarray, preset: DeepPreset, record: int, memory: Memory, counts: np.ndarray | None = None
) -> DeepModel:
    """A model that has read the text, and has learned nothing else."""
    before = memory.model
    model = build_model(data, preset, record, memory.text.size, counts)
    for name in _COPIED:
        getattr(model, name)[...] = getattr(before, name)
    return model._replace(predictors=predictors.remember(model.predictors, before.predictors))


def maps_of(model: DeepModel) -> list[np.ndarray]:
    """uint32: the adaptive maps, whose sizes are multiples of 256."""
    return predictors.adaptive_maps(model.predictors)


def sharing(model: DeepModel, learner: DeepModel) -> DeepModel:
    """The model, which goes on with what the other one learned: both share the arrays."""
    return model._replace(
        weights=learner.weights,
        visits=learner.visits,
        apms=learner.apms,
        finals=learner.finals,
        predictors=predictors.with_maps(model.predictors, maps_of(learner)),
    )


def _recall(model: DeepModel, learned: Learned) -> None:
    width = model.inputs.size
    model.weights.reshape(-1, width)[learned.rows] = learned.weights
    model.visits[learned.rows] = learned.visits
    model.apms[learned.apm_rows] = learned.apms ^ mixer.IDENTITY
    model.finals[...] = learned.finals
    for fresh, taught in zip(maps_of(model), learned.maps, strict=True):
        fresh[...] = taught
