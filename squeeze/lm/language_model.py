"""The interface of a language model for coders, and the base class of the engines that compute exactly."""

from functools import cached_property
from typing import Protocol

import numpy as np

from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights
from squeeze.numerics import trie
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.team import Team
from squeeze.numerics.trie import Trie, build


class LaneStates(Protocol):
    """The state of some lanes of a model."""

    def forward(self, tokens: np.ndarray) -> None:
        """Feed token ids, int64 [lanes, n]: n more positions of each of the first lanes."""

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: Cdf, places: np.ndarray) -> None:
        """Write frequencies of the leaves after some rows of the last call of `forward`, counted over all lanes.

        Args:
            rows: int64 [R].
            bias: float32 [leaves], added to the logits.
            out: the output.
            places: int64 [R], rows of `out`.
        """


class FreeLaneStates(LaneStates, Protocol):
    """The state of lanes that are not in lockstep: each has its own position, and can go back."""

    def forward(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Feed token ids, int64 [lanes, n]: n more positions of each of the first lanes, or `counts` int64 [lanes] of
        them."""

    def take_back(self, counts: np.ndarray) -> None:
        """Forget the last int64 [lanes] positions of each of the first lanes, all of them fed in one call."""


class LanguageModel(Protocol):
    """A model with the leaves of its vocabulary (numerics/trie.py), which makes states of lanes."""

    name: str
    identity: str
    context: int  # positions that it was trained on
    start_token: int  # fed first, and for escaped bytes
    leaves: np.ndarray  # token id of each leaf
    longest_prefill: int  # most positions of one call
    lockstep: int  # lanes that always run together, ended ones too; 0 if results do not depend on it

    @property
    def trie(self) -> trie.Trie: ...

    @property
    def size(self) -> int:
        """Bytes of its weights."""

    @property
    def size_of_position(self) -> int:
        """Bytes of the key-value cache per position of a lane."""

    def encode(self, data: bytes) -> np.ndarray: ...

    def session(self, lanes: int, window: int, rows: int, team: Team) -> LaneStates:
        """Return new lanes: FreeLaneStates, unless they are in lockstep.

        Args:
            lanes: number of lanes.
            window: positions that a token is predicted from.
            rows: most tokens of one call of `forward`.
            team: threads.
        """


class ExactModel:
    """A network in exact arithmetic; with `size` and `session` it is a LanguageModel."""

    longest_prefill = 1 << 16
    lockstep = 0

    def __init__(self, weights: Weights, tokenizer: Tokenizer):
        self.weights, self._tokenizer = weights, tokenizer
        self.name, self.identity = weights.name, weights.identity
        self.start_token, self.context = weights.config.start_token, weights.config.context
        self.leaves = weights.leaves

    @cached_property
    def trie(self) -> Trie:
        return build([self.weights.tokens[i] for i in self.leaves])

    @property
    def size_of_position(self) -> int:
        config = self.weights.config
        return config.layers * config.kv_heads * (2 * config.head_size + 8)

    def encode(self, data: bytes) -> np.ndarray:
        return self._tokenizer.encode(data)
