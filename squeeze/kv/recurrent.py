"""Recurrent states of linear attention in 8 bits, and layers that hold such states and coded keys and values.

A state is read and written at every token, so plain rounding loses each change that is smaller than half a step. The
error of a rounding is kept in a few bits and added when the state is read (error feedback, Seide et al. 2014).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad

from squeeze.kv.contract import LinearAttentionLayer
from squeeze.kv.layer import PackedLayer

__all__ = ["CodedStates", "Desk", "PackedHybridLayer", "StateCoder", "state_tensors"]

_GROUP = 64  # values that share a scale
_TOP = 127
_ROOM = 1 + 2**-7  # of a scale, which bf16 may round down


@dataclass(frozen=True)
class StateCoder:
    """A coder of states of any shape: 8-bit codes with a scale for each 64 values, and `feedback` bits of the error."""

    feedback: int = 4

    @property
    def bits(self) -> float:
        """The bits per value, including scales."""
        return 8 + self.feedback + 16 / _GROUP

    def encode(self, state: torch.Tensor) -> dict[str, torch.Tensor]:
        """Code a state of floats [B, ...] by rows of the batch."""
        flat = state.detach().float().flatten(1)
        groups = pad(flat, (0, -flat.shape[1] % _GROUP)).view(len(flat), -1, _GROUP)
        scales = (groups.abs().amax(-1, keepdim=True) * (_ROOM / _TOP)).to(torch.bfloat16)
        steps = groups / scales.float().clamp(min=torch.finfo(torch.float32).tiny)
        codes = steps.round().clamp_(-_TOP, _TOP)
        fields = {"codes": codes.to(torch.int8), "scales": scales}
        if self.feedback:
            half = 1 << self.feedback - 1
            rest = ((steps - codes) * (2 * half)).round_().clamp_(-half, half - 1)
            fields["rest"] = (rest + half).to(torch.uint8)
            if self.feedback == 4:
                fields["rest"] = fields["rest"][..., ::2] | fields["rest"][..., 1::2] << 4
        return fields

    def decode(self, fields: dict[str, torch.Tensor], shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Return the state that `encode` coded."""
        steps = fields["codes"].float()
        if self.feedback:
            rest = fields["rest"]
            if self.feedback == 4:
                rest = torch.stack([rest & 15, rest >> 4], -1).flatten(-2)
            half = 1 << self.feedback - 1
            steps = steps + (rest.float() - half) / (2 * half)
        flat = (steps * fields["scales"].float()).flatten(1)
        count = shape[1:].numel()
        return flat[:, :count].reshape(-1, *shape[1:]).to(dtype)


class Desk:
    """The one state of a cache that is dense, because a layer works on it: models may change it in place."""

    def __init__(self) -> None:
        self._last: tuple[CodedStates, int] | None = None

    def hand_out(self, states: CodedStates, index: int) -> None:
        """Note the state that is worked on, and code the one before it."""
        if self._last is not None and (self._last[0] is not states or self._last[1] != index):
            self.clear()
        self._last = states, index

    def clear(self) -> None:
        """Code the state that is worked on."""
        if self._last is not None:
            self._last[0].settle(self._last[1])
            self._last = None


class CodedStates(MutableMapping[int, Any]):
    """A layer's recurrent states by number, each coded unless it is on the desk. None stands for no state yet."""

    def __init__(self, count: int, coder: StateCoder, desk: Desk) -> None:
        self.coder, self.desk = coder, desk
        self._dense: dict[int, torch.Tensor | None] = dict.fromkeys(range(count))
        self._coded: dict[int, tuple[dict[str, torch.Tensor], torch.Size, torch.dtype]] = {}

    def __getitem__(self, index: int) -> torch.Tensor | None:
        if index in self._coded:
            self._dense[index] = self.coder.decode(*self._coded.pop(index))
        state = self._dense[index]
        if state is not None:
            self.desk.hand_out(self, index)
        return state

    def __setitem__(self, index: int, state: torch.Tensor | None) -> None:
        self._coded.pop(index, None)
        self._dense[index] = state
        if state is not None:
            self.desk.hand_out(self, index)

    def __delitem__(self, index: int) -> None:
        self[index] = None

    def __iter__(self) -> Iterator[int]:
        return iter(self._dense)

    def __len__(self) -> int:
        return len(self._dense)

    def settle(self, index: int) -> None:
        """Code a state that is dense."""
        state = self._dense[index]
        if state is not None:
            self._coded[index] = self.coder.encode(state), state.shape, state.dtype
            self._dense[index] = None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Return what is in memory: fields of coded states, and the state on the desk."""
        for fields, *_ in self._coded.values():
            yield from fields.values()
        yield from (state for state in self._dense.values() if state is not None)

    @property
    def dense_nbytes(self) -> int:
        """The bytes of all states without coding."""
        coded = sum(shape.numel() * dtype.itemsize for _, shape, dtype in self._coded.values())
        return coded + sum(state.nbytes for state in self._dense.values() if state is not None)


class PackedHybridLayer(LinearAttentionLayer, PackedLayer):  # type: ignore[misc]
    """A layer with states of linear attention, and with keys and values that a policy codes."""

    is_compileable = False

    def __init__(self, states: int, *args: Any, **options: Any) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=states)
        PackedLayer.__init__(self, *args, **options)

    def lazy_initialization(self, *args: Any, **states: Any) -> None:
        if args:
            PackedLayer.lazy_initialization(self, *args)
        else:
            device, dtype = self.device, self.dtype
            LinearAttentionLayer.lazy_initialization(self, **states)
            if self.is_initialized:
                self.device, self.dtype = device, dtype

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        return not any(self.is_recurrent_states_initialized.values())

    def _both(self, name: str, *args: Any) -> None:
        for kind in (LinearAttentionLayer, PackedLayer):
            getattr(kind, name)(self, *args)

    def offload(self) -> None:
        self._both("offload")

    def prefetch(self) -> None:
        self._both("prefetch")

    def reset(self) -> None:
        self._both("reset")

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._both("reorder_cache", beam_idx)

    def activate_past_recording(self) -> None:
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        self._both("crop", tokens_to_remove)


def state_tensors(layer: Any) -> Iterator[torch.Tensor]:
    """Return the tensors of convolutions and recurrent states that a layer holds, coded or not."""
    for states in (getattr(layer, "conv_states", {}), getattr(layer, "recurrent_states", {})):
        if isinstance(states, CodedStates):
            yield from states.tensors()
        else:
            yield from (state for state in states.values() if state is not None)
