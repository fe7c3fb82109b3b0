"""A view of a layer's parts for attention, and how the layer learns that attention uses the view.

If heads chose different numbers of tokens of a prompt, those follow the sinks, and heads with fewer are absent from the
last places.

Models that change keys or values after the cache returned them (multi-head latent attention expands them), and models
that bypass transformers' registry of attention functions, need tensors. So a layer first returns tensors, tagged with
its view. Squeeze's attention that gets these very tensors takes the view, and the layer is told. From then on it
returns `Lazy` states, which are decoded only if anything but that attention uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map

from squeeze.kv.base import HeadGroup
from squeeze.kv.store import Fields

__all__ = ["LayerView", "Lazy", "dense", "lazy_states", "offer_view", "take_view"]


@dataclass(frozen=True)
class LayerView:
    """The tokens of a layer from position `offset` on. Earlier ones were dropped or are outside a sliding window.

    Attributes:
        sinks: Keys and values [B, H, tokens, D].
        residual: Keys and values [B, H, tokens, D] of the residual window.
        stores: Fields of `blocks` blocks of `block` tokens for each group of heads.
        dropped: The number of tokens before those held.
        observer: Called with the queries after they have attended, scaled so that 1 / sqrt(D) is the scale of their
            scores.
    """

    sinks: tuple[torch.Tensor, ...]
    stores: list[tuple[HeadGroup, Fields]]
    residual: tuple[torch.Tensor, ...]
    blocks: int
    block: int
    dropped: int
    offset: int
    observer: Callable[[torch.Tensor], None] | None = None
    selected: list[tuple[HeadGroup, Fields]] = field(default_factory=list)

    @property
    def selected_block(self) -> int:
        return self.block or 1

    @property
    def selected_tokens(self) -> int:
        """The number of tokens of the head that chose most."""
        return max((_blocks(fields) for _, fields in self.selected), default=0) * self.selected_block

    @property
    def first(self) -> int:
        """The position of the first token after the sinks."""
        return self.dropped + self.sinks[0].shape[2]

    @property
    def begin(self) -> int:
        """The position of the first token of the blocks that all heads have."""
        return self.first + self.selected_tokens

    @property
    def is_coded(self) -> bool:
        """True if there are coded tokens, not only sinks and the residual window."""
        return bool(self.blocks or self.selected)

    @property
    def length(self) -> int:
        """The number of tokens that attention sees, by the head that has most."""
        return self.begin + self.blocks * self.block + self.residual[0].shape[2] - self.offset

    @property
    def absent(self) -> torch.Tensor | None:
        """A mask of the places where a head has no token, bool [H, length], or None if all heads have as many."""
        if not self.selected:
            return None
        end = self.first - self.offset
        absent = torch.zeros(self.residual[0].shape[1], self.length, dtype=torch.bool, device=self.residual[0].device)
        absent[:, end : end + self.selected_tokens] = True
        for group, fields in self.selected:
            for head in group.heads or ():
                absent[head, end : end + _blocks(fields) * self.selected_block] = False
        return absent

    def decode(self, first: int, last: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode keys and values of blocks `first` to `last`, [B, H, tokens, D]."""
        tokens = (last - first) * self.block
        return self._decoded(self.stores, first, last, self.begin + first * self.block, tokens, dtype)

    def _decoded(
        self,
        stores: list[tuple[HeadGroup, Fields]],
        first: int,
        last: int,
        start: int,
        tokens: int,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode blocks `first` to `last` from position `start` on, with zeros where a head has fewer."""
        keys_and_values: list[torch.Tensor] = []
        for kind, like in (("keys", self.residual[0]), ("values", self.residual[1])):
            decoded = []
            for group, fields in stores:
                coded = _fields_of(fields, kind, first, last)
                coder = group.keys if kind == "keys" else group.values
                if _blocks(coded):
                    decoded.append((group.heads, coder.decode(coded, start, dtype).flatten(2, 3)))
            if len(decoded) == 1 and decoded[0][0] is None:
                keys_and_values.append(decoded[0][1])
                continue
            joined = like.new_zeros((*like.shape[:2], tokens, like.shape[3]), dtype=dtype)
            for heads, states in decoded:
                for place, head in enumerate(
                    heads or range(like.shape[1])
                ):  # indexing by a list would copy it to the device
                    joined[:, head, : states.shape[2]] = states[:, place]
            keys_and_values.append(joined)
        return keys_and_values[0], keys_and_values[1]

    def pieces(
        self, blocks_at_once: int, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield keys and values [B, H, tokens, D] in the order of tokens, `blocks_at_once` blocks at a time."""
        dtype = dtype or self.residual[0].dtype
        skip = max(self.offset - self.dropped, 0)
        if skip < self.sinks[0].shape[2]:
            yield self.sinks[0][:, :, skip:].to(dtype), self.sinks[1][:, :, skip:].to(dtype)
        skip = max(skip - self.sinks[0].shape[2], 0)
        if skip < self.selected_tokens:
            yield from self._selected_pieces(blocks_at_once, dtype)
        skip = max(skip - self.selected_tokens, 0)
        first = min(skip // self.block, self.blocks) if self.block else 0
        skip -= first * self.block
        for block in range(first, self.blocks, blocks_at_once):
            keys, values = self.decode(block, min(block + blocks_at_once, self.blocks), dtype)
            yield keys[:, :, skip:], values[:, :, skip:]
            skip = 0
        yield self.residual[0][:, :, skip:].to(dtype), self.residual[1][:, :, skip:].to(dtype)

    def _selected_pieces(self, blocks_at_once: int, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size, blocks = self.selected_block, self.selected_tokens // self.selected_block
        for first in range(0, blocks, blocks_at_once):
            last = min(first + blocks_at_once, blocks)
            start, tokens = self.first + first * size, (last - first) * size
            yield self._decoded(self.selected, first, last, start, tokens, dtype)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return everything as tensors in the model's dtype, with zeros where a head is absent."""
        if not self.is_coded and not self.sinks[0].shape[2] and self.offset == self.dropped:
            return self.residual[0], self.residual[1]
        pieces = list(self.pieces(max(self.blocks, self.selected_tokens // self.selected_block, 1)))
        return torch.cat([keys for keys, _ in pieces], 2), torch.cat([values for _, values in pieces], 2)


def _blocks(fields: Fields) -> int:
    return next((x.shape[2] for x in fields.values()), 0)


def _fields_of(fields: Fields, kind: str, first: int = 0, last: int | None = None) -> Fields:
    """Return the fields of "keys" or "values", blocks `first` to `last`, under the names of their coder."""
    prefix = kind + "."
    return {name.removeprefix(prefix): x[:, :, first:last] for name, x in fields.items() if name.startswith(prefix)}


_TAG = "_squeeze_offer"
_OPERATORS = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "matmul", "rmatmul", "neg", "getitem", "len")


class Lazy:
    """The keys or values of a view, which act as a tensor for everything except squeeze's attention."""

    def __init__(self, view: LayerView, number: int) -> None:
        self.view, self.number = view, number

    @property
    def decoded(self) -> torch.Tensor:
        return self.view.dense()[self.number]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoded, name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map(dense, args), **tree_map(dense, kwargs or {}))


def _operator(name: str) -> Callable[..., Any]:
    return lambda states, *others: getattr(states.decoded, name)(*map(dense, others))


for _name in _OPERATORS:  # Python looks up operators on the class
    setattr(Lazy, f"__{_name}__", _operator(f"__{_name}__"))


def lazy_states(view: LayerView) -> tuple[Lazy, Lazy]:
    """Return lazy keys and values of a view."""
    return Lazy(view, 0), Lazy(view, 1)


def dense(states: Any) -> Any:
    """Return lazy states as a tensor, and anything else unchanged."""
    return states.decoded if isinstance(states, Lazy) else states


def offer_view(view: LayerView, on_use: Callable[[], None]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values as tensors that are tagged with their view. `on_use` is called when attention takes the
    view.
    """
    keys, values = (x.view_as(x) for x in view.dense())
    offered = view, on_use
    for states in (keys, values):
        setattr(states, _TAG, offered)
    return keys, values


def take_view(keys: Any, values: Any) -> LayerView | None:
    """Return the view that both keys and values belong to and tell its layer, or None if they are not as a layer
    returned them.
    """
    if isinstance(keys, Lazy) and isinstance(values, Lazy):
        return keys.view
    tag = getattr(keys, _TAG, None)
    if tag is None or getattr(values, _TAG, None) is not tag:
        return None
    view, on_taken = cast(tuple[LayerView, Callable[[], None]], tag)
    on_taken()
    return view
