"""Documents as training takes them: rows of a batch read documents of their own, piece by piece.

A piece is of one document; what is missing at its end counts for nothing, and the row goes on with a fresh state.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from training.corpus import Split

START = 0  # what a model is given before the first byte of a document


def text(split: Split, number: int) -> np.ndarray:
    """The bytes of one document, uint8, as they lie in the corpus; or its tokens."""
    start = int(split.start[number])
    return split.content[start : start + int(split.size[number])]


class Batch(NamedTuple):
    inputs: np.ndarray  # [rows, time], the byte before each, or the token
    targets: np.ndarray  # int64 [rows, time], bytes or tokens; -1 where there is none
    fresh: np.ndarray  # bool [rows]: a document begins


@dataclass
class Rows:
    """Where the rows of a batch are. Row r reads documents r, r + rows, r + 2 * rows, ... and then again from r."""

    split: Split
    time: int
    numbers: np.ndarray  # int64 [rows], the present document of each
    offsets: np.ndarray  # int64 [rows], how much of it was read

    @classmethod
    def begin(cls, split: Split, rows: int, time: int) -> "Rows":
        if len(split) < rows:
            raise ValueError(f"{len(split)} documents are too few for {rows} rows")
        return cls(split, time, np.arange(rows, dtype=np.int64), np.zeros(rows, np.int64))

    def take(self) -> Batch:
        """The next piece of each row."""
        rows = len(self.numbers)
        inputs = np.full((rows, self.time), START, self.split.content.dtype)
        targets = np.full((rows, self.time), -1, np.int64)
        fresh = self.offsets == 0
        for row in range(rows):
            document, offset = text(self.split, int(self.numbers[row])), int(self.offsets[row])
            piece = document[offset : offset + self.time]
            targets[row, : piece.size] = piece
            inputs[row, 1 : piece.size] = piece[:-1]
            if offset:
                inputs[row, 0] = document[offset - 1]
            self._advance(row, offset + self.time, document.size)
        return Batch(inputs, targets, fresh)

    def _advance(self, row: int, offset: int, size: int) -> None:
        if offset < size:
            self.offsets[row] = offset
            return
        self.offsets[row] = 0
        self.numbers[row] += len(self.numbers)
        if self.numbers[row] >= len(self.split):
            self.numbers[row] = row
