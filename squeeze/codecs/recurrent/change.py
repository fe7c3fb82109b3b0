"""Fine-tuned weights of the byte network, stored as integers that are added to the pretrained ones (docs/format.md,
13.3).

Scales and n-gram tables stay as they are, so a fine-tuned network runs in the same exact arithmetic at the same speed.
"""

from collections.abc import Iterator

import numpy as np

from squeeze.codecs.recurrent import weights
from squeeze.codecs.recurrent.weights import Tensors, Weights

STEP = np.float32(1 / 256)  # step of float32 tensors: byte embeddings, taps, gate biases
TOP = 127  # largest int8 weight
_MOST = 1 << 15  # largest change of a float32 in steps, so that the arithmetic stays exact
Change = dict[str, np.ndarray]  # int64 [rows, columns] to add to each tensor of `shapes`


def shapes(tensors: Tensors) -> dict[str, tuple[int, int]]:
    """Return the tensors that may change, in the order of their names, with the rows and columns of their numbers."""
    found = {}
    for name in sorted(tensors):
        if not name.endswith(".scale") and not name.startswith("grams."):
            *rows, columns = tensors[name].shape
            found[name] = (rows[0] if rows else 1, columns * (2 if tensors[name].dtype == np.uint8 else 1))
    return found


def matrices(change: Change) -> Iterator[np.ndarray]:
    """Yield the change of each tensor, in the order of a dictionary's file."""
    yield from (change[name] for name in sorted(change))


def network(change: Change | None) -> Weights | None:
    """Return the pretrained weights with a change added, or None if there is no change."""
    return weights.from_tensors(changed(weights.pretrained_tensors(), change)) if change else None


def changed(tensors: Tensors, change: Change) -> dict[str, np.ndarray]:
    """Add a change to a network's tensors; sums are clipped to what the tensors' types hold."""
    return {**tensors, **{name: _added(tensors[name], added) for name, added in change.items()}}


def numbers(tensor: np.ndarray) -> np.ndarray:
    """Return int64 [rows, columns]: an int8 tensor as it is, or the 4-bit numbers of uint8 [rows, columns / 2]."""
    if tensor.dtype == np.uint8:
        return np.concatenate([tensor & 15, tensor >> 4], 1).astype(np.int64)
    return tensor.astype(np.int64)


def _added(tensor: np.ndarray, added: np.ndarray) -> np.ndarray:
    if tensor.dtype == np.uint8:
        low, high = np.split((numbers(tensor) + added).clip(0, 15).astype(np.uint8), 2, axis=1)
        return np.asarray(low | high << 4)
    if tensor.dtype == np.int8:
        return np.asarray((numbers(tensor) + added).clip(-TOP, TOP).astype(np.int8))
    return np.asarray(tensor + added.reshape(tensor.shape).clip(-_MOST, _MOST).astype(np.float32) * STEP)
