"""A model with rotated weights: its results are the same, and its activations quantise better to 8 bits.

The residual stream, the values of each head and the input of `down` are rotated by Hadamard blocks
(numerics/rotation.py). The first two rotations are folded into the weights. Half of the last one is, and forward.py
applies the other half. Weights of norms are folded into the matrices that follow, so that norms commute with rotations
(SliceGPT: Ashkboos et al. 2024, arXiv:2401.15024; QuaRot: arXiv:2404.00456). All arithmetic is elementwise float32 in a
fixed order.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from squeeze.lm.config import Config
from squeeze.lm.sources import Source, Tensor
from squeeze.numerics.rotation import block_of, rotate, rotate_rows

__all__ = ["rotated"]

_AFTER_NORM = {
    **dict.fromkeys(("query", "key", "value"), "attention_norm"),
    **dict.fromkeys(("gate", "up"), "feed_forward_norm"),
}
_Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Blocks:
    stream: int
    head: int
    feed_forward: int

    @classmethod
    def of(cls, config: Config) -> "_Blocks":
        return cls(block_of(config.width), block_of(config.head_size), block_of(config.feed_forward))


def rotated(source: Source) -> Source:
    """Return the source without norms, with its head separate from the embedding."""
    blocks, found = _Blocks.of(source.config), dict(source.tensors)
    head = found.get("head") or found.get("embedding")
    tensors = {name: _rotated(name, tensor, found, blocks) for name, tensor in found.items()}
    for name in found:
        if name.rpartition(".")[2] in ("attention_norm", "feed_forward_norm", "final_norm"):
            del tensors[name]
    if head is not None:
        tensors["head"] = _columns(_normed(head, found.get("final_norm")), blocks.stream)
    return replace(source, tensors=tensors)


def _rotated(name: str, tensor: Tensor, found: dict[str, Tensor], blocks: _Blocks) -> Tensor:
    layer, _, part = name.rpartition(".")
    if part in _AFTER_NORM:
        tensor = _normed(tensor, found.get(f"{layer}.{_AFTER_NORM[part]}"))
    if part in ("embedding", *_AFTER_NORM):
        tensor = _columns(tensor, blocks.stream)
    if part == "value":
        return _rows(tensor, blocks.head)
    if part == "value_bias":
        return _columns(tensor, blocks.head)
    if part == "output":
        return _rows(_columns(tensor, blocks.head), blocks.stream)
    if part == "output_bias":
        return _columns(tensor, blocks.stream)
    if part == "down":
        return _rows(_columns(tensor, blocks.feed_forward), blocks.stream)
    return tensor


def _normed(tensor: Tensor, norm: Tensor | None) -> Tensor:
    """Return a matrix with the weight of the norm before it folded in."""
    if norm is None or norm.shape != tensor.shape[1:]:
        return tensor  # convert.py raises an error for it
    weight = norm.rows(0, norm.shape[0])
    return _changed(tensor, lambda rows: rows * weight)


def _columns(tensor: Tensor, block: int) -> Tensor:
    return _changed(tensor, lambda rows: rotate(rows, block)) if tensor.shape[-1] % block == 0 else tensor


def _rows(tensor: Tensor, block: int) -> Tensor:
    """Rotate blocks of a matrix's outputs, which are read whole."""

    def rows(start: int, stop: int) -> np.ndarray:
        first = start - start % block
        found = tensor.rows(first, min(-(-stop // block) * block, tensor.shape[0]))
        if len(found) % block:
            return found[:0]  # cut off
        return rotate_rows(found, block)[start - first : stop - first]

    return Tensor(tensor.shape, rows) if tensor.shape[0] % block == 0 else tensor


def _changed(tensor: Tensor, change: _Change) -> Tensor:
    return Tensor(tensor.shape, lambda start, stop: change(tensor.rows(start, stop)))
