"""What every language model offers to a coder: `Llama` of llama.py and `LlamaCpp` of llamacpp.py do."""

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
        """Feed int64 [lanes, n] token ids: n more positions of each of the first lanes."""

    def cdf(self, rows: np.ndarray, bias: np.ndarray, out: Cdf, places: np.ndarray) -> None:
        """Frequencies of the leaves after the given rows of the latest call of `forward`, one lane after the other, to
        the rows `places` of `out`.

        bias: float32 [leaves], added to the logits.
        """


class FreeLaneStates(LaneStates, Protocol):
    """The state of lanes that are not in lockstep: each is at a position of its own, and can go back."""

    def forward(self, tokens: np.ndarray, counts: np.ndarray | None = None) -> None:
        """Feed int64 [lanes, n] token ids: n more positions of each of the first lanes, or the first `counts` int64
        [lanes] of them."""

    def take_back(self, counts: np.ndarray) -> None:
        """Forget the latest int64 [lanes] positions of each of the first lanes, all of them fed in one call."""


class LanguageModel(Protocol):
    """What a tokenwise coder needs of a model: its leaves (see numerics/trie.py) and the states of lanes."""

    name: str
    identity: str
    context: int  # positions that it was trained on
    start_token: int  # fed first, and in the place of bytes that no token spells
    leaves: np.ndarray  # token id of each leaf
    longest_prefill: int  # positions that may go through at once
    lockstep: int  # lanes that always go through together, ended ones too; 0 where that changes no number

    @property
    def trie(self) -> trie.Trie: ...

    @property
    def size(self) -> int:
        """Bytes of its weights."""

    @property
    def size_of_position(self) -> int:
        """Bytes that a lane keeps of one position."""

    def encode(self, data: bytes) -> np.ndarray: ...

    def session(self, lanes: int, window: int, rows: int, team: Team) -> LaneStates:
        """New lanes: FreeLaneStates, unless they are in lockstep."""


class ExactModel:
    """A network in exact arithmetic; with `size` and `session` it is a `LanguageModel` of language_model.py."""

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
