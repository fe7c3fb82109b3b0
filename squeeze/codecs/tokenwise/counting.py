"""What is done with the frequencies of a model's rows, where they lie: here, in the processor's memory."""

from typing import Any

import numpy as np

from squeeze.codecs.tokenwise import bias, model as tokenwise
from squeeze.numerics import frequencies
from squeeze.numerics.trie import Trie

__all__ = ["HOST", "Counting"]


class Counting:
    """Frequencies are a Cdf."""

    rows = 32  # at a time: 49,152 leaves make 200 kB a row

    def room(self, rows: int, leaves: int) -> Any:
        """For the frequencies of so many rows."""
        return frequencies.room(rows, leaves)

    def follow(
        self, t: Trie, counts: Any, entries: np.ndarray, starts: np.ndarray, logits: np.ndarray, surprises: np.ndarray
    ) -> None:
        """As that of model.py."""
        tokenwise.follow(t, counts, entries, starts, logits, surprises)

    def add(self, counts: Any, rows: np.ndarray, entries: np.ndarray, gradient: np.ndarray) -> None:
        """Add the gradients of entries int64 [R], -1 where there is none, whose frequencies are counts[rows], to int32
        [leaves]."""
        bias.add(counts, rows, entries, gradient)


HOST = Counting()
