"""The arrays of a small pretrained network over bytes (model.py): weights that are shared, and the state of one stream.

Matrices are int8, those of words odd numbers of 4 bits, with a float32 scale for each output. They are packed in
panels: for the instructions of numerics/quads.py where the processor has them, elsewhere for those of tiles.py and, of
4 bits, nibbles.py, with the same sums. The gains of norms are part of the matrices that follow them.
"""

from typing import Any, NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import layout

BYTES = 256
TAPS = 4  # bytes, or words, that the convolution before a recurrence sees
GRAMS = (2, 3, 4)  # latest bytes that have an embedding of their own
STATE = layout.fields("separated past")  # whether the latest byte separated words; latest bytes


class Matrices(NamedTuple):
    """One matrix of every block of a stack."""

    panels: np.ndarray  # uint8 [blocks, bytes], as quads.pack, tiles.pack or nibbles.pack lays them
    bits: int  # of a weight: 8, or 4
    scales: np.ndarray  # float32 [blocks, outputs]


class Stack(NamedTuple):
    """The weights of blocks of one width."""

    into: Matrices  # value, forget and gate: 3 * width outputs
    taps: np.ndarray  # float32 [blocks, TAPS, width], the oldest first
    keeping: np.ndarray  # float32 [blocks, width]
    out: Matrices
    gate_up: Matrices  # 2 * feed-forward outputs
    down: Matrices


class Weights(NamedTuple):
    """A network's weights; they never change."""

    embedding: np.ndarray  # float32 [256, width]
    grams: tuple[np.ndarray, ...]  # uint8 [rows, width / 2] of each of GRAMS: embeddings of the latest bytes, by hash
    gram_scales: tuple[np.ndarray, ...]  # float32 [rows]
    before: Stack  # over bytes
    up: Matrices  # one, from bytes to words
    words: Stack  # no blocks where the network has no words
    down: Matrices  # one, from words to bytes
    after: Stack  # over bytes
    head: Matrices  # one
    separates: np.ndarray  # bool [256]: whether a byte separates words


class Memory(NamedTuple):
    """What the blocks of a stack keep from step to step."""

    past: np.ndarray  # float32 [blocks, TAPS - 1, width]: the latest inputs of the convolution
    states: np.ndarray  # float32 [blocks, width]


class Scratch(NamedTuple):
    """Of one step."""

    x: np.ndarray  # float32 [width]
    wide: np.ndarray  # float32 [word width]
    projected: np.ndarray  # float32 [most outputs]
    inner: np.ndarray  # float32 [most inputs]
    quantised: np.ndarray  # int16 [most inputs]
    high: np.ndarray  # int8 [most inputs], of quads.split
    low: np.ndarray  # int8 [most inputs]
    sums: np.ndarray  # int32 [most outputs]


class Network(NamedTuple):
    """Weights, and the state of one stream of bytes."""

    weights: Weights
    state: Any  # a record of STATE
    before: Memory
    words: Memory
    after: Memory
    said: np.ndarray  # float32 [width]: what the words said last
    logits: np.ndarray  # float32 [256]
    counts: np.ndarray  # int64 [512]: frequencies of bytes from 256 on, and their sums as a tree
    scratch: Scratch


def _memory(stack: Stack) -> Memory:
    blocks, _, width = stack.taps.shape
    return Memory(np.zeros((blocks, TAPS - 1, width), np.float32), np.zeros((blocks, width), np.float32))


def begin(weights: Weights) -> Network:
    """A network that has seen nothing."""
    stacks = (weights.before, weights.words, weights.after)
    width = weights.embedding.shape[1]
    matrices = [matrix for stack in stacks for matrix in (stack.into, stack.out, stack.gate_up, stack.down)]
    matrices += [weights.up, weights.down, weights.head]
    outputs = max(matrix.scales.shape[1] for matrix in matrices)
    inputs = max(width, weights.up.scales.shape[1], *(stack.gate_up.scales.shape[1] // 2 for stack in stacks))
    scratch = Scratch(
        x=np.zeros(width, np.float32),
        wide=np.zeros(weights.up.scales.shape[1], np.float32),
        projected=np.zeros(outputs, np.float32),
        inner=np.zeros(inputs, np.float32),
        quantised=np.zeros(inputs, np.int16),
        high=np.zeros(inputs, np.int8),
        low=np.zeros(inputs, np.int8),
        sums=np.zeros(outputs, np.int32),
    )
    return Network(
        weights=weights,
        state=layout.record(STATE, separated=1),
        before=_memory(weights.before),
        words=_memory(weights.words),
        after=_memory(weights.after),
        said=np.zeros(width, np.float32),
        logits=np.zeros(BYTES, np.float32),
        counts=np.ones(2 * BYTES, np.int64),
        scratch=scratch,
    )
