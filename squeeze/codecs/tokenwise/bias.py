"""A bias of each token's logit that is learned from the text while it is coded.

Dynamic evaluation (Krause et al. 2018) of the output bias alone. After each round of steps every token's bias moves
against the gradient of the coding cost, which is the token's probability minus its occurrences, by Adagrad (Duchi et
al. 2011). It needs no matrix product, and all lanes share it.

A round uses the gradients of rounds before the last one only. Groups of lanes run half a step apart and read ahead, so
none has to wait.
"""

import threading
from typing import Any

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.trie import FREQUENCY_BITS

__all__ = ["Bias", "GroupGradient", "Stopped"]

_TOKENS = 64  # tokens of a round
_RATE = 0.5
_ONE = 20  # fractional bits of a gradient, so that those of 1,024 lanes fit in int32
_DROPPED = np.uint64(FREQUENCY_BITS - 24)  # low bits of a frequency that are dropped, so that it fits in int32
_CUT = np.float32(2.0 ** -int(_DROPPED))


class Stopped(Exception):
    """Another group of lanes failed, so this one has nothing to wait for."""


class Bias:
    """The biases of all leaves, round by round, for groups of lanes that each report a gradient."""

    def __init__(self, leaves: int, lanes: int, groups: int):
        self.round_steps = max(1, _TOKENS // lanes)
        self.leaves, self._groups = leaves, groups
        self._news = threading.Condition()
        self._gradients: dict[int, list[np.ndarray]] = {}  # of rounds that some groups have not reported
        zero = np.zeros(leaves, np.float32)
        self._values = {0: zero, 1: zero}  # rounds that may still be asked for
        self._squares = np.ones(leaves, np.float32)
        self._stopped = False

    def values(self, step: int) -> np.ndarray:
        """Return the biases for the round of a step, float32 [leaves]; wait for groups that are behind.

        Raises:
            Stopped: after `stop`.
        """
        index = step // self.round_steps
        with self._news:
            self._news.wait_for(lambda: self._stopped or index in self._values)
            if self._stopped:
                raise Stopped
            return self._values[index]

    def learn(self, step: int, gradient: np.ndarray) -> None:
        """Take a group's summed gradient of the round that ends at `step`, int32 [leaves]."""
        index = step // self.round_steps
        with self._news:
            gradients = self._gradients.setdefault(index, [])
            gradients.append(gradient)
            if len(gradients) < self._groups:
                return
            del self._gradients[index]
            following = np.empty_like(self._squares)
            _descend(self._values[index + 1], sum(gradients[1:], gradients[0]), self._squares, following)
            self._values[index + 2] = following
            del self._values[index]
            self._news.notify_all()

    def stop(self) -> None:
        """End all waiting, since a group failed."""
        with self._news:
            self._stopped = True
            self._news.notify_all()


class GroupGradient:
    """The gradient of one group of lanes in a round."""

    def __init__(self, bias: Bias):
        self._bias, self._gradient = bias, np.zeros(bias.leaves, np.int32)

    def add(self, cdf: Any, rows: np.ndarray, entries: np.ndarray) -> None:
        """Add the gradients of coded entries.

        Args:
            cdf: frequencies.
            rows: int64 [R], rows of `cdf`.
            entries: int64 [R], -1 for none.
        """
        add(cdf, rows, entries, self._gradient)

    def reach(self, step: int) -> None:
        """Note that all steps before this one were added."""
        if step % self._bias.round_steps == 0:
            self._bias.learn(step - 1, self._gradient)
            self._gradient = np.zeros_like(self._gradient)


@inline
def _unit(sums):
    return np.float32(np.int32(1 << _ONE)) / np.float32(sums[sums.size - 1] >> _DROPPED)


@inline
def _share(reduced, unit):
    """Return a probability with 20 fractional bits from an int32 frequency without its low bits."""
    return np.int32(np.float32(reduced) * unit)


@inline
def _reduced(part):
    """Return floor((floor(x) + 1) / 2^16) of a float32: rounding of x + 1 crosses no multiple of 2^16."""
    return np.int32((part + np.float32(1)) * _CUT)


@inline
def gradient_of(sums, leaf, entry):
    """Return the gradient of a leaf's bias for an entry, from cumulative frequencies uint64 [leaves + 1]."""
    reduced = np.int32((sums[leaf + 1] - sums[leaf]) >> _DROPPED)
    return _share(reduced, _unit(sums)) - np.int32((1 << _ONE) * (leaf == entry))


@kernel
def add(cdf, rows, entries, gradient):
    """Add the gradients of coded entries to a group's.

    Args:
        cdf: frequencies.
        rows: int64 [R], rows of `cdf`.
        entries: int64 [R], -1 for none.
        gradient: int32 [leaves], changed in place.
    """
    for r in range(entries.size):
        if entries[r] >= 0:
            _add(cdf.sums[rows[r]], cdf.parts, rows[r], entries[r], gradient)


@inline
def _add(sums, parts, r, entry, gradient):
    if parts is None:
        for leaf in range(gradient.size):
            gradient[leaf] += gradient_of(sums, leaf, entry)
    else:
        row, unit = parts[r], _unit(sums)
        for leaf in range(gradient.size):
            gradient[leaf] += _share(_reduced(row[leaf]), unit)
        gradient[entry] -= np.int32(1 << _ONE)


@kernel
def _descend(values, gradient, squares, following):
    for i in range(values.size):
        slope = np.float32(gradient[i]) * np.float32(1.0 / (1 << _ONE))
        squares[i] += slope * slope
        following[i] = values[i] - np.float32(_RATE) * (slope / np.sqrt(squares[i]))
