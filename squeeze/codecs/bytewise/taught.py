"""What models of levels 1 to 3 begin with: weights and maps that texts and programs taught.

A block of a few kilobytes has no time to learn them. training/mixers.py makes the files; docs/format.md
specifies them (6.2).
"""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from squeeze.codecs import shipped
from squeeze.codecs.bytewise.arrays import WEIGHT, ByteModel, build_model
from squeeze.codecs.presets import Preset
from squeeze.numerics.bitmodels import mixer

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"
CHECKSUMS = {  # XXH3-64 of the files: other ones give other bytes
    "text.1": 0x9461432E044553B7,
    "text.2": 0x4CA83D4048530F4F,
    "text.3": 0x9EB378A44E464AB8,
    "executable.1": 0x347A1AB3FE3B1899,
    "executable.2": 0x539DDDE19A323215,
    "executable.3": 0x6E2AD2143E822594,
}
_STEP = 256  # of weights
_MAP_SHIFT = 20  # of what is kept of an entry of an adaptive probability map, 12 bits
_FRESH = (mixer.IDENTITY >> _MAP_SHIFT).astype(np.int64)


class Taught(NamedTuple):
    """As the arrays of ByteModel have them."""

    weights: np.ndarray  # int32
    final_weights: np.ndarray  # int32
    apm_byte: np.ndarray  # uint32
    apm_rows: np.ndarray  # int64: rows of apm_order2, which begin as
    apms: np.ndarray  # uint32 [rows, APM_STEPS]
    maps: np.ndarray  # uint32
    match_maps: np.ndarray  # uint32


def started_model(data: np.ndarray, preset: Preset, record: int = 0) -> ByteModel:
    """The models of a block as they begin."""
    model = build_model(data, preset, record)
    if preset.taught:
        known = _read(preset.taught)
        model.weights[...] = known.weights
        model.final_weights[...] = known.final_weights
        model.apm_byte[...] = known.apm_byte
        model.apm_order2[known.apm_rows] = known.apms
        model.maps[...] = known.maps
        model.match_maps[...] = known.match_maps
    return model


def tensors_of(model: ByteModel, rows: int) -> dict[str, np.ndarray]:
    """The file's tensors of what a model has learned, with the `rows` rows of apm_order2 that moved most."""
    moved = np.abs(_above(model.apm_order2)).sum(1)
    apm_rows = np.sort(np.argsort(-moved, kind="stable")[:rows])
    return {
        "weights": np.rint((model.weights - WEIGHT) / _STEP).astype(np.int16),
        "final_weights": model.final_weights,
        "apm1": _above(model.apm_byte).astype(np.int16),
        "apm2_rows": apm_rows.astype(np.int32),
        "apm2": _above(model.apm_order2[apm_rows]).astype(np.int16),
        "maps": model.maps.reshape(-1, 256),
        "match_maps": model.match_maps.reshape(len(model.matches), -1),
    }


def _above(apms: np.ndarray) -> np.ndarray:
    """The high bits of entries of adaptive probability maps, as int64, less those of fresh ones."""
    above: np.ndarray = ((apms ^ mixer.IDENTITY) >> _MAP_SHIFT).astype(np.int64) - _FRESH
    return above


@cache
def _read(name: str) -> Taught:
    found = shipped.tensors(FOLDER / f"{name}{SUFFIX}", CHECKSUMS[name])
    return Taught(
        weights=WEIGHT + _STEP * found["weights"].astype(np.int32),
        final_weights=found["final_weights"],
        apm_byte=_apms(found["apm1"]),
        apm_rows=found["apm2_rows"].astype(np.int64),
        apms=_apms(found["apm2"]),
        maps=found["maps"].ravel(),
        match_maps=found["match_maps"].ravel(),
    )


def _apms(above: np.ndarray) -> np.ndarray:
    entries = mixer.IDENTITY + (above.astype(np.int64) << _MAP_SHIFT)
    stored: np.ndarray = entries.clip(0, (1 << 32) - 1).astype(np.uint32) ^ mixer.IDENTITY
    return stored
