"""The state of bytewise context mixing (model.py): its arrays, their sizes, and their first values.

A block of a few kilobytes is too short to learn mixer weights and adaptive maps. So those of text and executables start
with trained values, a warm start. Their files are made by training/mixers.py, and specified in docs/format.md (6.2).
"""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs import package_data
from squeeze.codecs.bytewise.presets import ABOVE, NUMBER, Preset, trained_contexts
from squeeze.numerics.bitmodels import contexts, fields, histories, layout, match, mixer


class Rows(NamedTuple):
    """Rows of each mixer weight set, by the context that selects a row; a preset uses two or all three sets."""

    bits: int  # bits of the byte so far, the match length, and the bit that the longest match predicts
    latest: int  # last byte, or column of a record, and the bit's place in its byte
    known: int  # number of contexts that were seen before, and the match length


ROWS = Rows(bits=256 * match.FOUND, latest=2048, known=256)
FIRST_ROW = layout.offsets(ROWS)
WEIGHT = 12000  # first weight of every input; WEIGHT_ONE is 1
_NEW_WEIGHT = 4000  # the same of a context that trained models do not have

STATE = layout.fields(
    "record lines above line_mask bias first_extra"  # settings: record length or 0, 1 for lines and for the line above,
    #   mask of hash table, inputs
    " partial shift node known matched logit mixed match_row apm_row"  # the bit being coded
)


class ByteModel(NamedTuple):
    """All predictors and mixers of a block as arrays: the state that encoder and decoder share."""

    data: np.ndarray  # uint8 [n]: the block, as far as it is decoded
    state: Any  # a record of STATE
    registers: np.ndarray  # uint64 [REGISTERS]
    followed1: np.ndarray  # uint16 [256]
    followed2: np.ndarray  # uint16 [65536]
    places: np.ndarray  # int32 [PLACES] of fields.py, or [1] without lines
    numbers: np.ndarray  # int64 [NUMBERS, 3], or [1, 3]
    specs: np.ndarray  # uint64 [n, 3]: register, its mask, history mask
    hashes: np.ndarray  # uint64 [n]
    slots: np.ndarray  # uint8: hash table of bit histories, aligned to cache lines
    slot: np.ndarray  # uint32 [n]: each context's slot for this nibble
    entry: np.ndarray  # uint32 [n]: each context's entry in `maps` for this bit
    maps: np.ndarray  # uint32 [n * 256]: probability of each bit history
    matches: np.ndarray  # match.STATE [matches]
    least_lengths: np.ndarray  # int64 [matches]
    match_table: np.ndarray  # int32 [matches, 2^bits]
    match_maps: np.ndarray  # uint32 [matches * ENTRIES]
    inputs: np.ndarray  # int32 [inputs]: contexts, two a match, bias, extra, padding
    weights: np.ndarray  # int32 [rows of all selectors, inputs]
    rows: np.ndarray  # int64 [selectors]
    logits: np.ndarray  # int32 [selectors]
    final_weights: np.ndarray  # int32 [256, selectors]
    apm_match: np.ndarray  # uint32 [256 * FOUND, APM_STEPS]
    apm_order2: np.ndarray  # uint32 [65536, APM_STEPS]


def table_size(size: int, preset: Preset) -> int:
    """Return the bytes of the hash table of bit histories for a block of `size` bytes."""
    return layout.LINE << _line_bits(size, preset)


def _line_bits(size: int, preset: Preset) -> int:
    return min(max((size * len(preset.contexts) // 4).bit_length(), 8), preset.slot_bits)


def build_model(data: np.ndarray, preset: Preset, record: int = 0, extra: int = 0) -> ByteModel:
    """Allocate untrained models for one block; the sizes of tables follow from the block's length.

    Args:
        data: uint8 [n], the block; the decoder passes zeros and fills it in.
        preset: contexts, match models and table sizes.
        record: length of a record in bytes for tables, or 0.
        extra: further mixer inputs that a caller fills in.
    """
    n, matches, selectors = len(preset.contexts), len(preset.matches), preset.selectors
    bias = n + 2 * matches
    inputs = -(-(bias + 1 + extra) // 8) * 8
    lines = 1 << _line_bits(data.size, preset)
    registers = {register for register, _, _ in preset.contexts}
    return ByteModel(
        data=data,
        state=layout.record(
            STATE,
            **{"record": record, "lines": preset.lines, "above": ABOVE in registers, "line_mask": lines - 1},
            **{"bias": bias, "first_extra": bias + 1, "partial": 1},
        ),
        registers=np.zeros(contexts.REGISTERS, np.uint64),
        followed1=np.zeros(256, np.uint16),
        followed2=np.zeros(65536, np.uint16),
        places=np.zeros(fields.PLACES if preset.lines else 1, np.int32),
        numbers=np.zeros((fields.NUMBERS if NUMBER in registers else 1, 3), np.int64),
        specs=np.array(preset.contexts, np.uint64),
        hashes=np.zeros(n, np.uint64),
        slots=layout.aligned_zeros(table_size(data.size, preset)),
        slot=np.zeros(n, np.uint32),
        entry=np.zeros(n, np.uint32),
        maps=np.tile(histories.START, n),
        matches=np.zeros(matches, match.STATE),
        least_lengths=np.array(preset.matches, np.int64),
        match_table=match.fresh_table(matches, data.size),
        match_maps=match.fresh_maps(matches),
        inputs=np.zeros(inputs, np.int32),
        weights=np.full((sum(ROWS[:selectors]), inputs), WEIGHT, np.int32),
        rows=np.zeros(selectors, np.int64),
        logits=np.zeros(selectors, np.int32),
        final_weights=np.full((256, selectors), mixer.WEIGHT_ONE // selectors, np.int32),
        apm_match=mixer.fresh_apm(256 * match.FOUND),
        apm_order2=mixer.fresh_apm(65536),
    )


FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"
CHECKSUMS = {  # XXH3-64 of the files; other weights would change coded bytes
    "text.1": 0x9211EF03F90A1824,
    "text.2": 0x350DFD06C5C1B050,
    "text.3": 0x5B6B711EE2F85A0A,
    "executable.1": 0xC3E8D2B396296C86,
    "executable.2": 0xF082F5EF46DB237D,
    "executable.3": 0x247E53AE6FB1F3CE,
}
_STEP = 256  # quantisation step of stored weights
_MAP_SHIFT = 20  # a file keeps the high 12 of 32 bits of an APM entry
_FRESH = (mixer.IDENTITY >> _MAP_SHIFT).astype(np.int64)


class WarmStart(NamedTuple):
    """Trained values for arrays of ByteModel."""

    weights: np.ndarray  # int32
    final_weights: np.ndarray  # int32
    apm_match: np.ndarray  # uint32
    apm_rows: np.ndarray  # int64 [rows]: rows of apm_order2 that have trained values
    apms: np.ndarray  # uint32 [rows, APM_STEPS]: their values
    maps: np.ndarray  # uint32
    match_maps: np.ndarray  # uint32


def initial_model(data: np.ndarray, preset: Preset, record: int = 0) -> ByteModel:
    """Allocate the models of a block with the weights that its preset starts with.

    Args:
        data: uint8 [n], the block.
        preset: contexts, and the name of the warm start.
        record: length of a record in bytes for tables, or 0.
    """
    model = build_model(data, preset, record)
    if preset.warm_start:
        known = _read(preset.warm_start)
        _recall_contexts(model, preset, known)
        model.final_weights[...] = known.final_weights
        model.apm_match[...] = known.apm_match
        model.apm_order2[known.apm_rows] = known.apms
        model.match_maps[...] = known.match_maps
    return model


def _recall_contexts(model: ByteModel, preset: Preset, known: WarmStart) -> None:
    """Overwrite weights and maps of the contexts that the trained models have, too, and the weights of other inputs."""
    trained, n = trained_contexts(preset), len(preset.contexts)
    maps, trained_maps = model.maps.reshape(n, -1), known.maps.reshape(len(trained), -1)
    for k, context in enumerate(preset.contexts):
        if context in trained:
            model.weights[:, k] = known.weights[:, trained.index(context)]
            maps[k] = trained_maps[trained.index(context)]
        else:
            model.weights[:, k] = _NEW_WEIGHT
    rest = slice(n, n + 2 * len(preset.matches) + 1)
    model.weights[:, rest] = known.weights[:, len(trained) : len(trained) + 2 * len(preset.matches) + 1]


def tensors_of(model: ByteModel, rows: int) -> dict[str, np.ndarray]:
    """Return the tensors that a warm start's file keeps of a trained model.

    Args:
        model: models that have coded samples.
        rows: rows of the order-2 APM to keep, those that moved most.
    """
    moved = np.abs(_above(model.apm_order2)).sum(1)
    apm_rows = np.sort(np.argsort(-moved, kind="stable")[:rows])
    return {
        "weights": np.rint((model.weights - WEIGHT) / _STEP).astype(np.int16),
        "final_weights": model.final_weights,
        "apm1": _above(model.apm_match).astype(np.int16),
        "apm2_rows": apm_rows.astype(np.int32),
        "apm2": _above(model.apm_order2[apm_rows]).astype(np.int16),
        "maps": model.maps.reshape(-1, 256),
        "match_maps": model.match_maps.reshape(len(model.matches), -1),
    }


def _above(apms: np.ndarray) -> np.ndarray:
    """Return the high 12 bits of APM entries as int64, less those of the identity map."""
    above: np.ndarray = ((apms ^ mixer.IDENTITY) >> _MAP_SHIFT).astype(np.int64) - _FRESH
    return above


@cache
def _read(name: str) -> WarmStart:
    found = package_data.tensors(FOLDER / f"{name}{SUFFIX}", CHECKSUMS[name])
    return WarmStart(
        weights=WEIGHT + _STEP * found["weights"].astype(np.int32),
        final_weights=found["final_weights"],
        apm_match=_apms(found["apm1"]),
        apm_rows=found["apm2_rows"].astype(np.int64),
        apms=_apms(found["apm2"]),
        maps=found["maps"].ravel(),
        match_maps=found["match_maps"].ravel(),
    )


def _apms(above: np.ndarray) -> np.ndarray:
    entries = mixer.IDENTITY + (above.astype(np.int64) << _MAP_SHIFT)
    stored: np.ndarray = entries.clip(0, (1 << 32) - 1).astype(np.uint32) ^ mixer.IDENTITY
    return stored
