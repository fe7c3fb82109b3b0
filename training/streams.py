"""Documents as training takes them: rows of a batch read documents of their own, piece by piece.

A piece is of one document; what is missing at its end counts for nothing, and the row goes on with a fresh state.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.corpus import Split

START = 0  # what a model is given before the first byte of a document


def text(split: Split, number: int) -> np.ndarray:
    """The bytes of one document, uint8, as they lie in the corpus; or its tokens."""
    start = int(split.start[number])
    return split.content[start : start + int(split.size[number])]


class Batch(NamedTuple):
    inputs: np.ndarray | Tensor  # [rows, time], the byte before each, or the token
    targets: np.ndarray | Tensor  # int64 [rows, time], bytes or tokens; -1 where there is none
    fresh: np.ndarray | Tensor  # bool [rows]: a document begins
    known: int  # how many targets there are


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
        start, size = self.split.start[self.numbers, None], self.split.size[self.numbers, None]
        place = self.offsets[:, None] + np.arange(self.time)
        there = place < size
        at, content = np.where(there, start + place, 0), self.split.content
        targets = np.where(there, content[at].astype(np.int64), -1)
        inputs = np.where(there & (place > 0), content[np.maximum(at - 1, 0)], np.array(START, content.dtype))
        fresh = self.offsets == 0
        return Batch(inputs, targets, fresh, self._advance(size[:, 0]))

    def _advance(self, size: np.ndarray) -> int:
        """Go on to the next pieces; how many bytes or tokens the present ones have."""
        count = int(np.minimum(size - self.offsets, self.time).sum())
        self.offsets += self.time
        ended = self.offsets >= size
        self.offsets[ended] = 0
        self.numbers[ended] += len(self.numbers)
        beyond = self.numbers >= len(self.split)
        self.numbers[beyond] = np.flatnonzero(beyond)
        return count


class RowsOnDevice(Rows):
    """The same with all texts on a device, where pieces are gathered: a GPU waits for no copy of them."""

    content: Tensor

    @classmethod
    def on(cls, device: torch.device, rows: Rows) -> "RowsOnDevice":
        made = cls(rows.split, rows.time, rows.numbers, rows.offsets)
        made.content = torch.from_numpy(np.array(rows.split.content)).to(device)
        return made

    def take(self) -> Batch:
        size, device = self.split.size[self.numbers], self.content.device
        start, end, begin = on(device, np.stack([self.split.start[self.numbers], size, self.offsets]))
        fresh = on(device, self.offsets == 0)
        place = begin[:, None] + torch.arange(self.time, device=device)
        there = place < end[:, None]
        at = torch.where(there, start[:, None] + place, 0)
        targets = torch.where(there, self.content[at].long(), -1)
        inputs = torch.where(there & (place > 0), self.content[(at - 1).clamp_min(0)].long(), START)
        return Batch(inputs, targets, fresh, self._advance(size))


def on(device: torch.device, array: np.ndarray | Tensor) -> Tensor:
    """The array there; from pinned memory where that is a GPU, which then waits for no earlier work."""
    tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
