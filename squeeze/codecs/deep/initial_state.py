"""The state that models of levels 4 to 6 start with if a dictionary is used.

A *memory* is the state of hash tables, runs and match models after a text was read. *Learned* are the weights of mixers
and adaptive maps after sample files were coded. codecs/stream makes both, and keeps them in a file.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from squeeze.codecs.deep import contexts, predictors
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.model import advance, begin_byte, begin_nibble, end_byte, gather, update
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent.weights import Weights
from squeeze.numerics.bitmodels import layout, mixer
from squeeze.numerics.jit import kernel

# Arrays of a memory outside predictors.
_COPIED = ("registers", "followed1", "followed2", "followed3", "stack", "places", "numbers", "distances", "positions")


class Learned(NamedTuple):
    """Trained mixer weights and adaptive maps; of weight sets and APMs only the rows that were used often."""

    rows: np.ndarray  # int64 [r], ascending: rows of weight sets; the first is 0, which is always used
    visits: np.ndarray  # int32 [r]
    weights: np.ndarray  # float32 [r, inputs]
    apm_rows: np.ndarray  # int64 [a], ascending
    apms: np.ndarray  # uint32 [a, APM_STEPS]
    maps: list[np.ndarray]  # uint32: adaptive maps, in the order of `maps_of`
    finals: np.ndarray  # float32: weights of the second layer


class Memory(NamedTuple):
    """A model that has read a dictionary's text. Blocks read it, and never write to it."""

    text: np.ndarray  # uint8
    model: DeepModel


class Start(NamedTuple):
    """The state that a block's models start with."""

    memory: Memory | None  # None if the dictionary has no text
    learned: tuple[Learned, ...]  # in order: later ones overwrite earlier ones
    network: Weights | None = None  # fine-tuned weights of the byte network; None: the pretrained ones

    @property
    def text(self) -> np.ndarray:
        """The dictionary's text, uint8, which may be empty."""
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
    """Let untrained models read a text.

    Args:
        text: uint8 [n]. The byte network does not read it.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
    """
    model = build_model(text.copy(), preset, record)
    _read(model, text.size)
    return Memory(text, model)


def arrays_of(memory: Memory) -> dict[str, np.ndarray]:
    """Return all arrays of a memory that `remember` needs, by name, for a cache file."""
    model = memory.model
    copied = {name: getattr(model, name) for name in _COPIED}
    return {"text": memory.text, **copied, **predictors.remembered(model.predictors)}


def restored(kept: Mapping[str, np.ndarray], preset: DeepPreset, record: int) -> Memory:
    """Rebuild a memory from the arrays that `arrays_of` returned.

    Args:
        kept: the bytes of each array, uint8, by name.
        preset: the models.
        record: length of a record in bytes for tables, or 0.

    Raises:
        KeyError: if an array is missing.
        ValueError: if an array has another size.
    """
    model = build_model(kept["text"], preset, record)
    copied = {name: layout.view_as(kept[name], getattr(model, name)) for name in _COPIED}
    read = predictors.with_remembered(model.predictors, kept)
    return Memory(kept["text"], model._replace(predictors=read, **copied))


def initial_model(
    data: np.ndarray, preset: DeepPreset, record: int, start: Start, has_network: bool = False
) -> DeepModel:
    """Build the models of one block with what they start with.

    Args:
        data: uint8 [n], the dictionary's text and the block.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        start: memory and learned weights.
        has_network: whether the byte network takes part.
    """
    if start.memory:
        model = remember(data, preset, record, start.memory, has_network)
    else:
        model = build_model(data, preset, record, 0, has_network)
    for known in start.learned:
        _recall(model, known)
    return model


def remember(data: np.ndarray, preset: DeepPreset, record: int, memory: Memory, has_network: bool = False) -> DeepModel:
    """Build models that have read a dictionary's text, with untrained mixers.

    Args:
        data: uint8 [n], the dictionary's text and the block.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        memory: the text's.
        has_network: whether the byte network takes part.
    """
    before = memory.model
    model = build_model(data, preset, record, memory.text.size, has_network)
    for name in _COPIED:
        getattr(model, name)[...] = getattr(before, name)
    return model._replace(predictors=predictors.remember(model.predictors, before.predictors))


def maps_of(model: DeepModel) -> list[np.ndarray]:
    """Return the adaptive maps, uint32, whose sizes are multiples of 256."""
    return predictors.adaptive_maps(model.predictors)


def transferred(learned: Learned, trained: DeepPreset, preset: DeepPreset) -> Learned:
    """Return weights and maps for a preset from those of another one that has the same inputs apart from contexts.

    Contexts that only the new preset has start untrained.

    Args:
        learned: trained weights and maps.
        trained: the models that learned them.
        preset: the models to start.
    """
    if trained.contexts == preset.contexts:
        return learned
    fresh = build_model(np.zeros(1, np.uint8), preset)
    before, after = (len(models.contexts) * contexts.PER_CONTEXT for models in (trained, preset))
    others = predictors.width(preset) - after
    weights = np.tile(fresh.weights[: fresh.inputs.size], (learned.rows.size, 1))
    weights[:, after : after + others] = learned.weights[:, before : before + others]
    shaped = weights[:, :after].reshape(learned.rows.size, -1, contexts.PER_CONTEXT)
    known = learned.weights[:, :before].reshape(learned.rows.size, -1, contexts.PER_CONTEXT)
    maps = [*maps_of(fresh)[:2], *learned.maps[2:]]
    of_contexts = [array.reshape(len(preset.contexts), -1) for array in maps[:2]]
    of_trained = [array.reshape(len(trained.contexts), -1) for array in learned.maps[:2]]
    for k, context in enumerate(preset.contexts):
        if context in trained.contexts:
            place = trained.contexts.index(context)
            shaped[:, k] = known[:, place]
            for own, theirs in zip(of_contexts, of_trained, strict=True):
                own[k] = theirs[place]
    return learned._replace(weights=weights, maps=maps)


def sharing(model: DeepModel, learner: DeepModel) -> DeepModel:
    """Return the model with the mixers and maps of `learner`: both train the same arrays."""
    return model._replace(
        weights=learner.weights,
        visits=learner.visits,
        apms=learner.apms,
        finals=learner.finals,
        predictors=predictors.with_maps(model.predictors, maps_of(learner)),
    )


def _recall(model: DeepModel, learned: Learned) -> None:
    """Overwrite weights, APMs and maps of a model by learned ones."""
    width = model.inputs.size
    model.weights.reshape(-1, width)[learned.rows] = learned.weights
    model.visits[learned.rows] = learned.visits
    model.apms[learned.apm_rows] = learned.apms ^ mixer.IDENTITY
    model.finals[...] = learned.finals
    for fresh, trained in zip(maps_of(model), learned.maps, strict=True):
        fresh[...] = trained
