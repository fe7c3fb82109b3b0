"""A change of the pretrained network: whole numbers that are added to those of its weights (docs/format.md, 13.3).

Factors of rows and the tables of the latest bytes stay as they are: what is changed is again a network in exact
arithmetic, as fast as before.
"""

from collections.abc import Iterator

import numpy as np

from squeeze.codecs.recurrent import weights
from squeeze.codecs.recurrent.weights import Tensors, Weights

STEP = np.float32(1 / 256)  # of what is float32: embeddings of bytes, taps, keeping
TOP = 127  # of int8
_MOST = 1 << 15  # steps that a float32 moves by: weights stay of a size that arithmetic was made for
Change = dict[str, np.ndarray]  # int64 [rows, columns], what is added to each tensor of `shapes`


def shapes(tensors: Tensors) -> dict[str, tuple[int, int]]:
    """The tensors that may change, in the order of their names, with the rows and columns of their numbers."""
    found = {}
    for name in sorted(tensors):
        if not name.endswith(".scale") and not name.startswith("grams."):
            *rows, columns = tensors[name].shape
            found[name] = (rows[0] if rows else 1, columns * (2 if tensors[name].dtype == np.uint8 else 1))
    return found


def matrices(change: Change) -> Iterator[np.ndarray]:
    """The change, in the order of a dictionary's file."""
    yield from (change[name] for name in sorted(change))


def network(change: Change | None) -> Weights | None:
    """Return the pretrained network with a change; None for none."""
    return weights.from_tensors(changed(weights.pretrained_tensors(), change)) if change else None


def changed(tensors: Tensors, change: Change) -> dict[str, np.ndarray]:
    """A network's tensors after the change; numbers stay within what their tensors hold."""
    return {**tensors, **{name: _added(tensors[name], added) for name, added in change.items()}}


def numbers(tensor: np.ndarray) -> np.ndarray:
    """int64 [rows, columns]: what a tensor of int8 holds, or the numbers from 0 to 15 of uint8 [rows, columns / 2]."""
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
