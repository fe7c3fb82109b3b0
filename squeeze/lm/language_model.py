"""What every language model offers to a coder: `Llama` of llama.py and `LlamaCpp` of llamacpp.py do."""

from typing import Protocol

import numpy as np

from squeeze.numerics import trie
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.team import Team


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
