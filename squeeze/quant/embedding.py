"""Embeddings whose table stays quantised, and layers that share such a table: output heads, and other embeddings.

A lookup expands the rows of its tokens and no others. A layer that shares the table holds no codes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, cast

import torch
from torch import nn

from squeeze.checkpoint.linear import PreparedCache
from squeeze.errors import FormatError, SqueezeError
from squeeze.kernels import dequant
from squeeze.kernels.dequant import Packed
from squeeze.quant.linear import QuantLinear

__all__ = ["QuantEmbedding", "TiedLinear", "quantised_embedding", "tied_layer"]

_ROWS = "rows_in_use"  # the weight that the embedding's own class sees during a lookup


class QuantEmbedding(nn.Embedding):
    """An embedding with the tensors of the format `squeeze` (formats/squeeze.py) in place of its weight.

    The class of the embedding that it replaces computes the result from the expanded rows, so that scaled embeddings
    (Gemma) stay scaled. Create it with `quantised_embedding`.
    """

    leaves: ClassVar[tuple[str, ...]] = QuantLinear.known_leaves

    @property
    def weight(self) -> torch.Tensor:  # type: ignore[override]
        """The rows in use during a lookup, otherwise the whole dense table [rows, width]."""
        rows = self.__dict__.get(_ROWS)
        return self.linear().dequantize(self.dtype) if rows is None else rows

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows that a lookup returns."""
        return self.get_buffer("like").dtype

    def linear(self) -> QuantLinear:
        """Return the layer that multiplies by the table, which shares the stored tensors."""
        if shared := self._shared():
            return shared.linear()
        stored = {leaf: self._buffers[leaf] for leaf in self.leaves}
        cache = cast("PreparedCache[QuantLinear]", self.__dict__["linear_cache"])
        found = cache.find(tuple(stored.values()))
        if found is None:
            present = {leaf: tensor for leaf, tensor in stored.items() if tensor is not None}
            found = QuantLinear(self.embedding_dim, self.num_embeddings, present, None, self.__dict__["table_name"])
            cache.store(tuple(stored.values()), found)
        return found

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.numel() and not 0 <= int(input.min()) <= int(input.max()) < self.num_embeddings:
            raise SqueezeError(f"expected tokens from 0 to {self.num_embeddings - 1}")
        used, places = torch.unique(input, return_inverse=True)
        self.__dict__[_ROWS] = dequant.dequantize(self._packed().take(used), self.dtype)
        try:
            return super().forward(places)
        finally:
            del self.__dict__[_ROWS]

    def compute_buffers(self, initialise: Callable[[nn.Module], None]) -> None:
        """Compute the buffers of its own class that no file has, such as Gemma's scale, as its model does.

        `initialise` is the model's function for a module; it sees an empty weight.
        """
        if self._non_persistent_buffers_set == {"like"}:
            return
        self.__dict__[_ROWS] = self.get_buffer("like").new_empty(0, self.embedding_dim)
        try:
            initialise(self)
        finally:
            del self.__dict__[_ROWS]

    def _shared(self) -> QuantEmbedding | None:
        """Return the embedding whose table this one looks up, or None if the table is its own."""
        return cast("QuantEmbedding | None", self.__dict__.get("table"))

    def _packed(self) -> Packed:
        """Return the stored codes for kernels, without a second copy of them."""
        if shared := self._shared():
            return shared._packed()
        stored = tuple(self._buffers[leaf] for leaf in self.leaves)
        cache = cast("PreparedCache[Packed]", self.__dict__["packed_cache"])
        return cache.find(stored) or cache.store(stored, self.linear().packed())


class TiedLinear(nn.Module):
    """An output head that multiplies by the table of an embedding, of which it is no submodule, with a bias or None."""

    bias: nn.Parameter | None

    def __init__(self, table: QuantEmbedding, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.register_parameter("bias", bias)
        self.in_features, self.out_features = table.embedding_dim, table.num_embeddings
        self.__dict__["table"] = table

    @property
    def weight(self) -> torch.Tensor:
        """The dense table [rows, width]."""
        return cast(torch.Tensor, self.__dict__["table"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = cast(torch.Tensor, self.__dict__["table"].linear()(x))
        return y if self.bias is None else y + self.bias


def quantised_embedding(name: str, table: nn.Embedding, leaves: Mapping[str, torch.Tensor]) -> QuantEmbedding:
    """Turn an embedding into a quantised one in place, and return it.

    Args:
        name: its name, for errors.
        table: the embedding, whose weight is dropped.
        leaves: stored tensors by leaf, with values or without.

    Raises:
        FormatError: the tensors are not those of such a table.
    """
    if leaves["codes"].shape[0] != table.num_embeddings:
        raise FormatError(f"{name}: expected {table.num_embeddings} rows, got {leaves['codes'].shape[0]}")
    if table.max_norm is not None or leaves.keys() & {"outliers", "outlier_inputs"}:
        raise FormatError(f"{name}: embeddings with outliers or a largest norm cannot be quantised")
    quantised = _without_weight(table)
    for leaf in QuantEmbedding.leaves:
        quantised.register_buffer(leaf, leaves.get(leaf))
    state: dict[str, Any] = {"table_name": name, "linear_cache": PreparedCache(), "packed_cache": PreparedCache()}
    quantised.__dict__ |= state
    return quantised


def tied_layer(table: QuantEmbedding, layer: nn.Module) -> nn.Module:
    """Return the layer that shares a table instead of a weight: a head, or an embedding, which is changed in place.

    Raises FormatError if the layer is neither, or if an embedding has a largest norm.
    """
    if isinstance(layer, nn.Embedding) and layer.max_norm is None:
        quantised = _without_weight(layer)
        quantised.__dict__["table"] = table
        return quantised
    if not isinstance(layer, nn.Linear):
        raise FormatError(f"{table.table_name}: a {type(layer).__name__} cannot share a quantised table")
    return TiedLinear(table, layer.bias)


def _without_weight(table: nn.Embedding) -> QuantEmbedding:
    """Give an embedding the quantised counterpart of its class, and drop its weight."""
    like = torch.empty(0, dtype=table.weight.dtype, device=table.weight.device)
    del table._parameters["weight"]
    table.padding_idx = None  # it is for gradients, and rows are numbered anew in a lookup
    table.__class__ = _class_of(type(table))  # type: ignore[arg-type]
    quantised = cast(QuantEmbedding, table)
    quantised.register_buffer("like", like, persistent=False)
    quantised._is_hf_initialized = True  # type: ignore[assignment]
    return quantised


@cache
def _class_of(kind: type[nn.Embedding]) -> type[QuantEmbedding]:
    """Return the quantised counterpart of a class of embeddings."""
    return QuantEmbedding if kind is nn.Embedding else type(f"Quant{kind.__name__}", (QuantEmbedding, kind), {})
