"""The predictors of levels 4 to 6, in the order of their inputs, which is part of the format."""

from collections.abc import Mapping

import numpy as np

from squeeze.codecs.deep import byte_predictions, contexts, matches
from squeeze.codecs.deep.predictor import WEIGHT, Arrays, Extent, Predictor, gather_in_turn, in_turn
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.numerics import vectors
from squeeze.numerics.bitmodels import layout
from squeeze.numerics.jit import inline

_BIAS = np.float32(0.3)  # a constant input


@inline
def _gather_bias(m, own, inputs):
    inputs[0] = _BIAS


BIAS = Predictor(
    lambda preset, extent: (), lambda preset: np.full(1, WEIGHT, np.float32), _gather_bias, lambda preset: ["bias"]
)

PREDICTORS = (contexts.PREDICTOR, matches.PREDICTOR, BIAS, byte_predictions.PREDICTOR)
CONTEXTS, MATCHES, NETWORK = 0, 1, 3  # places in PREDICTORS

gather = gather_in_turn([predictor.gather for predictor in PREDICTORS])
begin_byte = in_turn([predictor.begin_byte for predictor in PREDICTORS])
fetch_nibble = in_turn([predictor.fetch_nibble for predictor in PREDICTORS])
begin_nibble = in_turn([predictor.begin_nibble for predictor in PREDICTORS])
update = in_turn([predictor.update for predictor in PREDICTORS])
prefetch = in_turn([predictor.prefetch for predictor in PREDICTORS])
end_byte = in_turn([predictor.end_byte for predictor in PREDICTORS])


def build(preset: DeepPreset, extent: Extent) -> tuple[Arrays, ...]:
    """Allocate the arrays of every predictor."""
    return tuple(predictor.arrays(preset, extent) for predictor in PREDICTORS)


def lay_out(preset: DeepPreset) -> tuple[np.ndarray, np.ndarray]:
    """Return the first input of each predictor, int64 [predictors], and the first mixer weights, float32 [inputs and
    padding]."""
    weights = [predictor.weights(preset) for predictor in PREDICTORS]
    ends = np.cumsum([part.size for part in weights])
    padding = np.full(-int(ends[-1]) % vectors.LANES, WEIGHT, np.float32)
    return np.concatenate([[0], ends[:-1]]), np.concatenate([*weights, padding])


def width(preset: DeepPreset) -> int:
    """Return the number of inputs without padding."""
    return sum(predictor.weights(preset).size for predictor in PREDICTORS)


def input_names(preset: DeepPreset) -> list[str]:
    """Name what each mixer input belongs to; padding counts as bias."""
    names = [name for predictor in PREDICTORS for name in predictor.names(preset)]
    return names + ["bias"] * (-len(names) % vectors.LANES)


def adaptive_maps(arrays: tuple[Arrays, ...]) -> list[np.ndarray]:
    """Return the adaptive maps that a dictionary keeps, uint32, in the order of its file."""
    return [getattr(own, name) for p, own in zip(PREDICTORS, arrays, strict=True) for name in p.maps]


def with_maps(arrays: tuple[Arrays, ...], maps: list[np.ndarray]) -> tuple[Arrays, ...]:
    """Return the arrays with these adaptive maps in place of their own."""
    remaining = iter(maps)
    return tuple(
        own._replace(**{name: next(remaining) for name in p.maps}) if p.maps else own
        for p, own in zip(PREDICTORS, arrays, strict=True)
    )


def remembered(arrays: tuple[Arrays, ...]) -> dict[str, np.ndarray]:
    """Return the arrays of a memory that `remember` needs, by name."""
    found = enumerate(zip(PREDICTORS, arrays, strict=True))
    return {f"{k}.{name}": getattr(own, name) for k, (p, own) in found for name in p.remembers}


def with_remembered(arrays: tuple[Arrays, ...], kept: Mapping[str, np.ndarray]) -> tuple[Arrays, ...]:
    """Return the arrays with those of a memory in place of their own.

    Args:
        arrays: of every predictor.
        kept: bytes of the memory's arrays, uint8, by name.

    Raises:
        KeyError: if an array is missing.
        ValueError: if an array has another size.
    """
    new = {name: layout.view_as(kept[name], fresh) for name, fresh in remembered(arrays).items()}
    return tuple(
        own._replace(**{name: new[f"{k}.{name}"] for name in p.remembers}) if p.remembers else own
        for k, (p, own) in enumerate(zip(PREDICTORS, arrays, strict=True))
    )


def remember(arrays: tuple[Arrays, ...], before: tuple[Arrays, ...]) -> tuple[Arrays, ...]:
    """Return arrays that start from what `before` has read, with untrained maps."""
    return tuple(
        p.remember(own, read) if p.remember else own for p, own, read in zip(PREDICTORS, arrays, before, strict=True)
    )
