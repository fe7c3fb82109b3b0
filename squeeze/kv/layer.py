"""One layer of the cache: how tokens are added, coded and evicted, for full attention and sliding windows.

The policy decides how blocks are coded, and store.py holds them.
"""

from collections.abc import Callable
from typing import Any

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, Policy
from squeeze.kv.layer_states import HeldStates, KeptCoder, Selected, joined
from squeeze.kv.store import BlockStore
from squeeze.kv.view import LayerView, lazy_states, offer_view

__all__ = ["PackedLayer"]

_AT_ONCE = 16  # blocks coded at a time: bounds the float32 scratch of a long prompt


class PackedLayer(HeldStates):
    """The keys and values [B, H, tokens, D] of a layer.

    Args:
        policy: The policy.
        index: The layer's number.
        sliding_window: The number of tokens that attention sees, including the current one; older ones are dropped
            block
        by block. None for full attention.
        native: Returns whether squeeze's attention is installed. Once it has read what `update` returns (view.py),
            later
        results are decoded only if something else needs tensors.
        latent: The channels of keys and values if these are the latent and the rotary key of multi-head latent
            attention.
        The rotary key is then kept exactly.
    """

    is_croppable = True

    def __init__(
        self,
        policy: Policy,
        index: int,
        sliding_window: int | None = None,
        native: Callable[[], bool] = lambda: False,
        latent: tuple[int, int] | None = None,
    ) -> None:
        self.policy, self.index, self.native, self.latent = policy, index, native, latent
        self.is_read = False  # whether attention reads the codes
        self.sliding_window = sliding_window
        self.is_sliding = sliding_window is not None
        self.sink_count = 0 if self.is_sliding else policy.sinks
        self.record_past = False
        self.is_initialized = False
        self._clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy}, {self.get_seq_length()} tokens)"

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        # not slices, which would keep all of the states in memory
        empty = [x.new_empty((*x.shape[:2], 0, x.shape[3])) for x in (key_states, value_states)]
        self.sinks, self.residual = (empty[0], empty[1]), (empty[0], empty[1])
        self.head_groups = self._groups(key_states, value_states) if self.policy.block else []
        self.stores = [BlockStore() for _ in self.head_groups]
        heads = key_states.shape[1] if self.policy.by_heads else 0
        self.selected = Selected(self.head_groups, heads, self.policy.block)
        self.is_initialized = True

    def _groups(self, keys: torch.Tensor, values: torch.Tensor) -> list[HeadGroup]:
        groups = self.policy.head_groups(self.index, keys.shape[1])
        if self.latent == (keys.shape[3], values.shape[3]) and keys.shape[1] == 1:
            return [HeadGroup(group.keys, KeptCoder(), group.heads) for group in groups]
        return groups

    def get_seq_length(self) -> int:
        return self.dropped + self.evicted + self.stored

    def get_max_length(self) -> int:
        return self.sliding_window if self.sliding_window is not None else -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return length and offset of the keys that `update` will return. Evicted tokens count as if they preceded all
        others.
        """
        past = self.get_seq_length()
        if self.sliding_window is None:
            return self.stored + query_length, self.evicted
        offset = max(past - self.sliding_window + 1, 0)
        return past - offset + query_length, offset

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Add tokens, and return all keys and values that attention sees, as tensors or lazily decoded.

        New tokens and those that were recent before are returned exactly: they are coded for later queries only.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.residual[0].device != key_states.device:  # from a file, and the model may lie on several devices
            self.device = key_states.device
            self.prefetch()
        if self.is_unseen:
            raise PolicyError("this policy looks at queries, which the attention of this model does not show")
        offset, is_first = self.get_mask_sizes(key_states.shape[2])[1], not self.get_seq_length()
        self._append(key_states, value_states)
        self.is_unseen = is_first and self._selects()
        view = self._view(offset, self._observed if self.is_unseen else None)
        returned = self._returned(view)
        if view.observer is None:
            self._code()
        if not self.record_past:
            self._forget()
        return returned

    def _returned(self, view: LayerView) -> tuple[Any, Any]:
        if not self.native():
            return view.dense()
        return lazy_states(view) if self.is_read else offer_view(view, self._mark_read)

    def _mark_read(self) -> None:
        self.is_read = True

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        missing = self.sink_count - self.sinks[0].shape[2]
        if missing > 0 and not self.blocks and not self.selected.tokens:
            self.sinks = joined(self.sinks, (keys[:, :, :missing], values[:, :, :missing]))
            keys, values = keys[:, :, missing:], values[:, :, missing:]
        self.residual = joined(self.residual, (keys, values))

    def _view(self, offset: int = 0, observer: Callable[[torch.Tensor], None] | None = None) -> LayerView:
        """Return a view of all tokens from position `offset` on."""
        stores = [
            (group, store.read()) for group, store in zip(self.head_groups, self.stores, strict=True) if self.blocks
        ]
        before = self.dropped + self.evicted
        return LayerView(
            self.sinks, stores, self.residual, self.blocks, self.policy.block, before, offset, observer,
            self.selected.read(),
        )  # fmt: skip

    def _selects(self) -> bool:
        """Return whether the policy needs the queries of this first prompt before it is coded."""
        if not self.policy.wants_queries(self.index, self.choosable) or self.is_sliding:
            return False
        if not self.native():
            raise PolicyError("this policy looks at queries: squeeze.kv.attention.install(model) shows them")
        return True

    def _observed(self, query: torch.Tensor) -> None:
        """Let the policy choose tokens of a prompt by its queries [B, Hq, Q, D], and code what has left the window."""
        self.is_unseen = False
        self.policy.on_prompt(self, query)
        self._code()

    def _code(self) -> None:
        """Code full blocks that have left the window, and notify the policy."""
        block = self.policy.block
        full = max(self.residual[0].shape[2] - self.policy.window, 0) // block if block else 0
        for first in range(0, full, _AT_ONCE):
            count = min(_AT_ONCE, full - first)
            self._code_blocks([x[:, :, first * block : (first + count) * block] for x in self.residual], count)
        if full:
            self.coded_tokens += full * block
            self.residual = tuple(x[:, :, full * block :].clone() for x in self.residual)
        self.policy.on_step(self)

    def _code_blocks(self, states: list[torch.Tensor], count: int) -> None:
        """Code keys and values [B, H, count * block, D] and append them to the store."""
        start = self._begin + self.blocks * self.policy.block
        blocks = [x.detach().unflatten(2, (count, self.policy.block)) for x in states]
        for group, store in zip(self.head_groups, self.stores, strict=True):
            keys, values = (x if group.heads is None else x[:, list(group.heads)] for x in blocks)
            coded = {f"keys.{name}": field for name, field in group.keys.encode(keys, start).items()}
            coded |= {f"values.{name}": field for name, field in group.values.encode(values, start).items()}
            store.append(coded)

    def _forget(self) -> None:
        """Drop what no sliding window will see again: whole blocks, or single tokens if nothing is coded."""
        if self.sliding_window is None:
            return
        beyond = self.stored - (self.sliding_window - 1)
        if beyond <= 0:
            return
        blocks = min(beyond // self.policy.block, self.blocks) if self.policy.block else 0
        for store in self.stores:
            store.drop(blocks)
        tokens = 0 if self.blocks else beyond - blocks * self.policy.block
        if tokens:
            self.residual = tuple(x[:, :, tokens:].clone() for x in self.residual)
        self.dropped += blocks * self.policy.block + tokens

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of all tokens held, [B, H, tokens, D], in the model's dtype."""
        return self._view().dense()

    @property
    def keys(self) -> torch.Tensor | None:  # type: ignore[override]
        return self.dense()[0] if self.is_initialized else None

    @property
    def values(self) -> torch.Tensor | None:  # type: ignore[override]
        return self.dense()[1] if self.is_initialized else None

    def activate_past_recording(self) -> None:
        """Keep what leaves a sliding window until the next `crop`, which may restore it."""
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last -n tokens, or for positive n all except the first n, as older versions of transformers did.

        A block that is cut is decoded, and the rest of it returns to the residual window. Raises RuntimeError, as
        transformers does, if a sliding window has dropped tokens that would be needed.
        """
        length = self.get_seq_length()
        if self.sliding_window is not None and length >= self.sliding_window and not self.record_past:
            raise RuntimeError("a full sliding window can be cropped only after `activate_past_recording`")
        remove = -tokens_to_remove if tokens_to_remove <= 0 else max(length - tokens_to_remove, 0)
        remove = min(remove, length)
        if self.sliding_window is not None and self.dropped > max(length - remove - self.sliding_window + 1, 0):
            raise RuntimeError("a sliding window has dropped tokens that it would see after this crop: crop less")
        if self.is_initialized and remove:
            self._remove(min(remove, self.stored))
        if self.is_initialized:
            self._forget()

    def _remove(self, count: int) -> None:
        late, block = self.residual[0].shape[2], self.policy.block
        if self.selected.tokens and count > late + self.blocks * block:
            raise RuntimeError("a prompt from which heads chose tokens cannot be cropped: crop less")
        if count > late and self.blocks:
            needed = min(-(-(count - late) // block), self.blocks)
            keep = self.blocks - needed
            decoded = self._view(self._begin + keep * block).dense()
            self.residual = tuple(x.clone() for x in decoded)
            for store in self.stores:
                store.truncate(keep)
            late = self.residual[0].shape[2]
        remaining = max(late - count, 0)
        self.residual = tuple(x[:, :, :remaining].clone() for x in self.residual)
        if count > late:
            self.sinks = tuple(x[:, :, : x.shape[2] - (count - late)].clone() for x in self.sinks)

    def reset(self) -> None:
        self.is_initialized = False
        self._clear()
