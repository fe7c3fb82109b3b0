"""AWQ folders as AutoAWQ writes them (its GEMM version): 4 bits with zero points.

A module has qweight int32 [I, O / 8] and qzeros int32 [G, O / 8], eight outputs a word in the order
0 2 4 6 1 3 5 7, and scales [G, O]; a weight is (code - zero) * scale.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from squeeze.errors import FormatError, printable
from squeeze.quant.sources.source import Source

__all__ = ["awq"]

_LEAVES = ("qweight", "qzeros", "scales")
_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of outputs in a word, from its lowest bits


def awq(source: Source, described: Mapping[str, Any]) -> None:
    """As Reader."""
    bits, version = described.get("bits", 4), str(described.get("version") or described.get("format") or "gemm")
    if bits != 4 or version.lower() != "gemm":
        raise FormatError(
            f"{source.checkpoint.folder}: AWQ of {printable(bits)} bits in the version {printable(repr(version))} is "
            "not read: 4 bits in the version 'gemm' are"
        )
    for name in source.checkpoint.files:
        module, _, leaf = name.rpartition(".")
        if leaf == _LEAVES[0]:
            names = [f"{module}.{one}" for one in _LEAVES]
            if any(len(source.shape(one)) != 2 for one in names):
                raise FormatError(f"{printable(module)}: its codes, zero points and scales are no matrices")
            (inputs, words), (groups, outputs) = source.shape(names[0]), source.shape(names[2])
            if outputs != 8 * words or not groups or inputs % groups or source.shape(names[1]) != (groups, words):
                raise FormatError(f"{printable(module)}: {groups} groups do not make {inputs} inputs x {8 * words}")
            source.put(f"{module}.weight", (outputs, inputs), names, partial(_weight, names))


def _weight(names: list[str], tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    words, zeros, scales = (tensors[name] for name in names)
    size = len(words) // len(zeros)
    codes = (_unpacked(words).unflatten(0, (-1, size)) - _unpacked(zeros)[:, None]) * scales.float()[:, None]
    weight: torch.Tensor = codes.flatten(0, 1).T.contiguous()
    return weight


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """int32 [R, O / 8] -> float32 [R, O]."""
    fields = torch.stack([words >> 4 * place & 15 for place in range(8)], -1)
    return fields[..., torch.tensor(_ORDER).argsort()].flatten(-2).float()
