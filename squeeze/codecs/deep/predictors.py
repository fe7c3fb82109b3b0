"""All predictors of levels 4 to 6, in the order of their inputs. The order is part of the format."""

from collections.abc import Mapping

import numpy as np

from squeeze.codecs.deep import byte_predictions, contexts, matches
from squeeze.codecs.deep.predictor import WEIGHT, Arrays, Extent, Predictor, gather_in_turn, in_turn
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics import vectors
from squeeze.numerics.bitmodels import layout
from squeeze.numerics.jit import inline

_BIAS = np.float32(0.3)  # a logit that never changes


@inline
def _gather_bias(m, own, inputs):
    inputs[0] = _BIAS


BIAS = Predictor(
    lambda preset, extent: (), lambda preset: np.full(1, WEIGHT, np.float32), _gather_bias, lambda preset: ["bias"]
)

PREDICTORS = (contexts.PREDICTOR, matches.PREDICTOR, BIAS, byte_predictions.PREDICTOR)
CONTEXTS, MATCHES, NETWORK = 0, 1, 3  # of PREDICTORS

gather = gather_in_turn([predictor.gather for predictor in PREDICTORS])
begin_byte = in_turn([predictor.begin_byte for predictor in PREDICTORS])
begin_nibble = in_turn([predictor.begin_nibble for predictor in PREDICTORS])
update = in_turn([predictor.update for predictor in PREDICTORS])
prefetch = in_turn([predictor.prefetch for predictor in PREDICTORS])
end_byte = in_turn([predictor.end_byte for predictor in PREDICTORS])


def build(preset: DeepPreset, extent: Extent) -> tuple[Arrays, ...]:
    """Fresh arrays of every predictor."""
    return tuple(predictor.arrays(preset, extent) for predictor in PREDICTORS)


def lay_out(preset: DeepPreset) -> tuple[np.ndarray, np.ndarray]:
    """int64 [predictors], where the inputs of each begin; float32 [inputs and padding], weights to begin with."""
    weights = [predictor.weights(preset) for predictor in PREDICTORS]
    ends = np.cumsum([part.size for part in weights])
    padding = np.full(-int(ends[-1]) % vectors.LANES, WEIGHT, np.float32)
    return np.concatenate([[0], ends[:-1]]), np.concatenate([*weights, padding])


def input_names(preset: DeepPreset) -> list[str]:
    """In words, what each input belongs to; padding is the bias's."""
    names = [name for predictor in PREDICTORS for name in predictor.names(preset)]
    return names + ["bias"] * (-len(names) % vectors.LANES)


def adaptive_maps(arrays: tuple[Arrays, ...]) -> list[np.ndarray]:
    """uint32: those that a dictionary keeps, in the order of its file."""
    return [getattr(own, name) for p, own in zip(PREDICTORS, arrays, strict=True) for name in p.maps]


def with_maps(arrays: tuple[Arrays, ...], maps: list[np.ndarray]) -> tuple[Arrays, ...]:
    """The arrays, with these adaptive maps in the place of theirs."""
    remaining = iter(maps)
    return tuple(
        own._replace(**{name: next(remaining) for name in p.maps}) if p.maps else own
        for p, own in zip(PREDICTORS, arrays, strict=True)
    )


def remembered(arrays: tuple[Arrays, ...]) -> dict[str, np.ndarray]:
    """Those of a memory that `remember` takes, by name."""
    found = enumerate(zip(PREDICTORS, arrays, strict=True))
    return {f"{k}.{name}": getattr(own, name) for k, (p, own) in found for name in p.remembers}


def with_remembered(arrays: tuple[Arrays, ...], kept: Mapping[str, np.ndarray]) -> tuple[Arrays, ...]:
    """The arrays, with those of a memory in the place of theirs, whose bytes are kept by name. Raises KeyError or
    ValueError where they are other ones."""
    new = {name: layout.seen_as(kept[name], fresh) for name, fresh in remembered(arrays).items()}
    return tuple(
        own._replace(**{name: new[f"{k}.{name}"] for name in p.remembers}) if p.remembers else own
        for k, (p, own) in enumerate(zip(PREDICTORS, arrays, strict=True))
    )


def remember(arrays: tuple[Arrays, ...], before: tuple[Arrays, ...]) -> tuple[Arrays, ...]:
    """The arrays of predictors that go on from what others have read, and else know nothing."""
    return tuple(
        p.remember(own, read) if p.remember else own for p, own, read in zip(PREDICTORS, arrays, before, strict=True)
    )
