"""Bits per byte of the language model alone, in exact integers and in float32, and of what level 9 makes of it."""

import argparse
import math
import sys
from collections.abc import Iterator

import numpy as np
import torch

from bench.entry import Row
from bench.shared.reference import CHUNK, Reference
from bench.shared.texts import read
from squeeze.codecs.stream import levels
from squeeze.codecs.tokenwise import lanes, prefill
from squeeze.codecs.tokenwise.presets import TokenPreset
from squeeze.lm import models
from squeeze.lm.language_model import LanguageModel
from squeeze.lm.weights import Weights
from squeeze.numerics import frequencies
from squeeze.numerics.team import Team

_ROWS = 32  # of frequencies at a time


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    data = read(options.file, "alice29.txt", options.measured)
    found = models.find(options.model)
    preset = levels.LEVELS[9].text.preset(len(data), found.network.context, 1, options.window)
    floats = in_floats(found.network, found.weights, data, preset)
    bits = {
        "language model, float32 torch": floats,
        "language model, exact integers": in_integers(found.network, data, preset, options.threads),
        "mixed, as coded": 8.0 * mixed(found.network, data, preset, options.threads),
    }
    for name, value in bits.items():
        about = {"file": options.file.name if options.file else "alice29.txt", "of": len(data)}
        sizes = {"bytes": round(value / 8), "bpb": round(value / len(data), 5), "more": round(value / floats - 1, 5)}
        yield {**about, "window": preset.window, "what": name, **sizes}


def in_floats(model: LanguageModel, weights: Weights, data: bytes, preset: TokenPreset) -> float:
    """Bits by the model in float32, with the same 8-bit weights, on one lane."""
    reference, bits = Reference(weights, preset.window), 0.0
    for part, tokens, leaf in _chunks(model, data):
        logarithms = reference.forward(part).numpy()
        bits += _bytes_alone(part, tokens) - float(logarithms[tokens, leaf].astype(np.float64).sum()) / math.log(2)
    return bits


def in_integers(model: LanguageModel, data: bytes, preset: TokenPreset, threads: int) -> float:
    """The same by the model in integers."""
    team, bits, unbiased = Team(threads), 0.0, np.zeros(model.leaves.size, np.float32)
    session = model.session(1, preset.window, CHUNK, team)
    cdf = frequencies.room(_ROWS, model.leaves.size)
    for part, tokens, leaves in _chunks(model, data):
        session.forward(part[None])
        bits += _bytes_alone(part, tokens)
        for first in range(0, tokens.size, _ROWS):
            leaf = leaves[first : first + _ROWS]
            row = np.arange(leaf.size)
            session.cdf(tokens[first : first + _ROWS], unbiased, cdf, row)
            sums = frequencies.expanded(cdf)
            bits -= float(np.log2((sums[row, leaf + 1] - sums[row, leaf]) / sums[row, -1]).sum())
    team.close()
    return bits


def _chunks(model: LanguageModel, data: bytes) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """What is fed, rows of it whose token is coded next, and the leaves of these tokens."""
    entries = model.encode(data)
    fed = prefill.token_ids(model, np.concatenate([[-1], entries[:-1]]))
    for first in range(0, entries.size, CHUNK):
        coded = entries[first : first + CHUNK]
        tokens = np.flatnonzero(coded >= 0)
        yield fed[first : first + CHUNK], tokens, coded[tokens]


def _bytes_alone(part: np.ndarray, tokens: np.ndarray) -> float:
    """Bits of bytes that are in no token."""
    return 8.0 * (part.size - tokens.size)


def mixed(model: LanguageModel, data: bytes, preset: TokenPreset, threads: int) -> int:
    """Bytes of the block as level 9 codes it, once it has been decoded."""
    packed = lanes.encode(data, model, preset, threads)
    assert packed
    if lanes.decode(packed[1][:], packed[0], model, preset, threads).tobytes() != data:
        sys.exit("Error: what was decoded differs")
    return len(packed[1])
