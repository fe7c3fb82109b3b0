"""What a text teaches the language model's output layer while it is coded: one number added to each leaf's logit.

Dynamic evaluation (Krause et al. 2018) of an output bias alone: after each round of steps, every leaf's bias
goes against the gradient of the coded tokens' cost, which is the leaf's probability less the times it came, by
Adagrad's rule (Duchi et al. 2011). It costs no matrix product, and all lanes share it. A round learns of
the rounds before the last one only: groups of lanes run half a step apart and read ahead, and none need wait.
"""

import threading
from typing import Any

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.trie import FREQUENCY_BITS

__all__ = ["Bias", "Seen", "Stopped"]

_TOKENS = 64  # about how many make a round
_RATE = 0.5
_ONE = 20  # bits of a probability of 1 in a gradient: those of 1,024 lanes fit into int32
_DROPPED = np.uint64(FREQUENCY_BITS - 24)  # low bits of a frequency, so that it fits into int32
_CUT = np.float32(2.0 ** -int(_DROPPED))


class Stopped(Exception):
    """Another group of lanes was broken off, and this one has nothing to wait for."""


class Bias:
    """The biases of all leaves, round by round, for some groups of lanes that each report what they saw."""

    def __init__(self, leaves: int, lanes: int, groups: int):
        self.round_steps = max(1, _TOKENS // lanes)
        self.leaves, self._groups = leaves, groups
        self._news = threading.Condition()
        self._gradients: dict[int, list[np.ndarray]] = {}  # of rounds that some groups have yet to report
        zero = np.zeros(leaves, np.float32)
        self._values = {0: zero, 1: zero}  # those that may still be asked for
        self._squares = np.ones(leaves, np.float32)
        self._stopped = False

    def values(self, step: int) -> np.ndarray:
        """float32 [leaves], for the round of this step; waits for the groups that are behind.

        Raises Stopped after `stop`.
        """
        index = step // self.round_steps
        with self._news:
            self._news.wait_for(lambda: self._stopped or index in self._values)
            if self._stopped:
                raise Stopped
            return self._values[index]

    def learn(self, step: int, gradient: np.ndarray) -> None:
        """Take int32 [leaves], the sum of a group's gradients in the whole round of this step."""
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
        """End all waiting: a group was broken off."""
        with self._news:
            self._stopped = True
            self._news.notify_all()


class Seen:
    """What one group of lanes has seen of a round."""

    def __init__(self, bias: Bias):
        self._bias, self._gradient = bias, np.zeros(bias.leaves, np.int32)

    def add(self, cdf: Any, rows: np.ndarray, entries: np.ndarray) -> None:
        """Take entries int64 [R], -1 where there is none, and the frequencies of each, the `rows` of `cdf`."""
        add(cdf, rows, entries, self._gradient)

    def reach(self, step: int) -> None:
        """All steps before this one are seen."""
        if step % self._bias.round_steps == 0:
            self._bias.learn(step - 1, self._gradient)
            self._gradient = np.zeros_like(self._gradient)


@inline
def _unit(sums):
    return np.float32(np.int32(1 << _ONE)) / np.float32(sums[sums.size - 1] >> _DROPPED)


@inline
def _share(reduced, unit):
    """A probability, by an int32 frequency without its low bits."""
    return np.int32(np.float32(reduced) * unit)


@inline
def _reduced(part):
    """floor((floor(x) + 1) / 2^16) of a float32: x + 1 passes no multiple of 2^16 as it is rounded."""
    return np.int32((part + np.float32(1)) * _CUT)


@inline
def gradient_of(sums, leaf, entry):
    """What an entry adds to a leaf's gradient, by cumulative frequencies uint64 [leaves + 1]."""
    reduced = np.int32((sums[leaf + 1] - sums[leaf]) >> _DROPPED)
    return _share(reduced, _unit(sums)) - np.int32((1 << _ONE) * (leaf == entry))


@kernel
def add(cdf, rows, entries, gradient):
    """Add the gradients of entries int64 [R], -1 where there is none, whose frequencies are cdf[rows], to int32
    [leaves]."""
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
