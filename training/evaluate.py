"""Measure a model in bits per byte on texts that it was not trained on, by kind and by place."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from squeeze.recipes.train.byte_network import ByWords, Flat
from training.corpus import Split
from training.streams import START, text

LENGTH = 8_192  # of a document, what is looked at
_EARLY = 2_048  # bytes that a small file has
_TIME = 1_024


@torch.no_grad()
def bits_by_kind(model: Flat | ByWords, split: Split, kinds: Sequence[str], most: int = 8) -> dict[str, Any]:
    """Return bits per byte by kind: over the first bytes of documents, and over the earliest of these.

    Args:
        model: trained model
        split: held-out part of the corpus
        kinds: names of the kinds
        most: largest number of documents per kind; each starts from a fresh state
    """
    totals: dict[str, dict[str, float]] = {"bits": {}, "early_bits": {}}
    for number, kind in enumerate(kinds):
        chosen = np.flatnonzero(split.kind == number)[:most]
        if chosen.size:
            with torch.compiler.set_stance("force_eager"):  # compiling for these shapes takes longer
                costs, known = costs_of(model, [text(split, int(one))[:LENGTH] for one in chosen])
            totals["bits"][kind] = _mean(costs, known)
            totals["early_bits"][kind] = _mean(costs[:, :_EARLY], known[:, :_EARLY])
    return {**totals, "held_bits": round(sum(totals["bits"].values()) / max(len(totals["bits"]), 1), 4)}


def _mean(costs: np.ndarray, known: np.ndarray) -> float:
    return round(float(costs[known].mean()), 4)


def costs_of(model: Flat | ByWords, texts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits of every byte [texts, length], and a mask of the bytes that exist."""
    length = max(one.size for one in texts)
    data = np.full((len(texts), length + 1), START, np.int64)
    known = np.zeros((len(texts), length), bool)
    for row, one in enumerate(texts):
        data[row, 1 : one.size + 1], known[row, : one.size] = one, True
    device = model.head.weight.device
    costs, state = [], model.start(len(texts))
    for begin in range(0, length, _TIME):
        piece = torch.from_numpy(data[:, begin : begin + _TIME + 1]).to(device)
        logits, state = model(piece[:, :-1], state)
        costs.append(functional.cross_entropy(logits.transpose(1, 2), piece[:, 1:], reduction="none").cpu().numpy())
    return np.concatenate(costs, 1) / np.log(2), known
