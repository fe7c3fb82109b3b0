"""What a network's engines have in common: its weights, and its vocabulary as a trie."""

from functools import cached_property

import numpy as np

from squeeze.lm.tokenizer import Tokenizer
from squeeze.lm.weights import Weights
from squeeze.numerics.trie import Trie, build


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
