"""Read documents for training: each row of a batch reads documents of its own, piece by piece.

A piece belongs to one document. Missing symbols at its end do not count, and the row continues with a fresh state.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from training.corpus import Split

START = 0  # what a model is given before the first byte of a document


def text(split: Split, number: int) -> np.ndarray:
    """Return a document's bytes, uint8, as they are in the corpus, or its tokens."""
    start = int(split.start[number])
    return split.content[start : start + int(split.size[number])]


class Batch(NamedTuple):
    inputs: Tensor  # int64 [rows, time], the byte before each, or the token
    targets: Tensor  # int64 [rows, time], bytes or tokens; -1 where there is none
    fresh: Tensor  # bool [rows]: a document begins
    known: int  # how many targets there are


@dataclass
class Rows:
    """The positions of the rows of a batch.

    Row r reads documents r, r + rows, r + 2 * rows, ... and then again from r.
    """

    split: Split
    content: Tensor  # its bytes or tokens, on the device of the training, where pieces are gathered
    time: int
    numbers: np.ndarray  # int64 [rows], the present document of each
    offsets: np.ndarray  # int64 [rows], how much of it was read

    @classmethod
    def begin(cls, split: Split, rows: int, time: int, device: str = "cpu") -> "Rows":
        if len(split) < rows:
            raise ValueError(f"{len(split)} documents are too few for {rows} rows")
        kind = np.uint8 if split.content.dtype == np.uint8 else np.int32
        content = torch.from_numpy(np.array(split.content, kind)).to(device)
        return cls(split, content, time, np.arange(rows, dtype=np.int64), np.zeros(rows, np.int64))

    def take(self) -> Batch:
        """Return the next piece of each row."""
        start, size, offset = self.split.start[self.numbers], self.split.size[self.numbers], self.offsets
        begin, length, first, fresh = self._on_device(np.stack([start, size, offset, offset == 0]))[..., None]
        place = first + torch.arange(self.time, device=first.device)
        there = place < length
        at = torch.where(there, begin + place, 0)
        targets = torch.where(there, self.content[at].long(), -1)
        inputs = torch.where(there & (place > 0), self.content[(at - 1).clamp_min(0)].long(), START)
        return Batch(inputs, targets, fresh[:, 0] > 0, self._advance(size))

    def _on_device(self, array: np.ndarray) -> Tensor:
        """Copy an array to the device, from pinned memory if that is a GPU, so that the copy is asynchronous."""
        tensor, device = torch.from_numpy(array), self.content.device
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)

    def _advance(self, size: np.ndarray) -> int:
        """Advance to the next pieces, and return the number of bytes or tokens in the present ones."""
        known = int(np.minimum(size - self.offsets, self.time).sum())
        self.offsets += self.time
        ended = self.offsets >= size
        self.offsets[ended] = 0
        self.numbers[ended] += len(self.numbers)
        beyond = self.numbers >= len(self.split)
        self.numbers[beyond] = np.flatnonzero(beyond)
        return known
