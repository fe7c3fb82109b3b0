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
from squeeze.numerics.team import Team


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(options.threads)
    data = read(options.file, "alice29.txt", options.measured)
    found = models.find(options.model)
    plain = models.find(options.model, None if options.model else models.BUNDLED_ADAPTER, arithmetic=1)
    preset = levels.LEVELS[9].text.preset(len(data), found.network.context, 1, options.window)
    floats, integers = alone(found, plain.weights, data, preset, options.threads)
    bits = {"language model, float32 torch": floats, "language model, exact integers": integers}
    bits["mixed, as coded"] = 8.0 * mixed(found.network, data, preset, options.threads)
    for name, value in bits.items():
        about = {"file": options.file.name if options.file else "alice29.txt", "of": len(data)}
        sizes = {"bytes": round(value / 8), "bpb": round(value / len(data), 5), "more": round(value / floats - 1, 5)}
        yield {**about, "window": preset.window, "what": name, **sizes}


def alone(
    found: models.LoadedModel, plain: Weights, data: bytes, preset: TokenPreset, threads: int
) -> tuple[float, float]:
    """Bits by the model in float32, with 8-bit weights as they are, and in integers, on one lane."""
    model = found.network
    entries = model.encode(data)
    fed = prefill.token_ids(model, np.concatenate([[-1], entries[:-1]]))
    team, reference = Team(threads), Reference(plain, preset.window)
    session = model.session(1, preset.window, CHUNK, team)
    integers, floats, unbiased = 0.0, 0.0, np.zeros(model.leaves.size, np.float32)
    cdf = np.zeros((32, model.leaves.size + 1), np.uint64)
    for first in range(0, entries.size, CHUNK):
        part, coded = fed[first : first + CHUNK], entries[first : first + CHUNK]
        tokens = np.flatnonzero(coded >= 0)
        bytes_alone = 8.0 * (coded.size - tokens.size)
        session.forward(part[None])
        logarithms = reference.forward(part).numpy()
        integers, floats = integers + bytes_alone, floats + bytes_alone
        for rows in np.split(tokens, range(32, tokens.size, 32)):
            leaf, row = coded[rows], np.arange(rows.size)
            session.cdf(rows, unbiased, cdf, row)
            share = (cdf[row, leaf + 1] - cdf[row, leaf]) / cdf[row, -1]
            integers -= float(np.log2(share).sum())
            floats -= float(logarithms[rows, leaf].astype(np.float64).sum()) / math.log(2)
    team.close()
    return floats, integers


def mixed(model: LanguageModel, data: bytes, preset: TokenPreset, threads: int) -> int:
    """Bytes of the block as level 9 codes it, once it has been decoded."""
    packed = lanes.encode(data, model, preset, threads)
    assert packed
    if lanes.decode(packed[1][:], packed[0], model, preset, threads).tobytes() != data:
        sys.exit("Error: what was decoded differs")
    return len(packed[1])
