"""Choose what happens in layers of other kinds than full attention: to recurrent states, and to sliding windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from squeeze.errors import PolicyError
from squeeze.kv.base import HeadGroup, LayerTokens, Policy
from squeeze.kv.recurrent import StateCoder

__all__ = ["CODED", "EXACT", "Hybrid", "Wrapper"]

CODED, EXACT = "coded", "exact"
_STATES = (8, 16)
_FEEDBACK = (0, 4, 8)


@dataclass(frozen=True)
class Wrapper(Policy):
    """A base of policies around another one, whose coders and numbers of tokens they take over."""

    policy: Policy

    @property
    def sinks(self) -> int:
        return self.policy.sinks

    @property
    def window(self) -> int:
        return self.policy.window

    @property
    def block(self) -> int:
        return self.policy.block

    def head_groups(self, layer: int, heads: int) -> list[HeadGroup]:
        return self.policy.head_groups(layer, heads)


@dataclass(frozen=True)
class Hybrid(Wrapper):
    """A policy around another one, which codes full attention.

    Args:
        policy: The policy of full attention.
        states: 8 codes recurrent states in 8 bits; 16 leaves them in the model's dtype.
        feedback: The bits in which the errors of coded states are kept, 0, 4 or 8.
        windows: "coded" lets the policy code sliding and chunked windows, "exact" leaves them.
    """

    states: int = 8
    feedback: int = 4
    windows: str = CODED

    def __post_init__(self) -> None:
        if isinstance(self.policy, Hybrid):
            raise PolicyError("hybrid is given twice: leave one out")
        if self.policy.archives:
            raise PolicyError("an archive holds keys and values only: leave out hybrid")
        if self.states not in _STATES:
            raise PolicyError(f"states take 8 or 16 bits, got {self.states}")
        if self.feedback not in _FEEDBACK:
            raise PolicyError(f"feedback takes 0, 4 or 8 bits, got {self.feedback}")
        if self.windows not in (CODED, EXACT):
            raise PolicyError(f"windows are {CODED} or {EXACT}, got {self.windows!r}")

    @property
    def state_coder(self) -> StateCoder | None:
        return StateCoder(self.feedback) if self.states == _STATES[0] else None

    @property
    def by_heads(self) -> bool:  # type: ignore[override]
        return self.policy.by_heads

    @property
    def adds_sinks(self) -> bool:  # type: ignore[override]
        return self.policy.adds_sinks

    @property
    def evicts(self) -> bool:  # type: ignore[override]
        return self.policy.evicts

    @property
    def observes(self) -> bool:
        return self.policy.observes

    def wants_queries(self, layer: int, tokens: int) -> bool:
        return self.policy.wants_queries(layer, tokens)

    def on_prompt(self, layer: LayerTokens, query: torch.Tensor) -> None:
        self.policy.on_prompt(layer, query)

    def on_step(self, layer: LayerTokens) -> None:
        self.policy.on_step(layer)
