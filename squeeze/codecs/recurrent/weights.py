"""Weights and state of the byte network: from the tensors of a file to the arrays that its kernels read.

In a file, a matrix `name` is int8 [outputs, inputs] with `name.scale`, float32 [outputs]; other tensors are float32.
Blocks of a stack are numbered: before.0.into, before.0.taps. Matrices of the word stack and n-gram tables have 4 bits:
uint8 [outputs, inputs / 2]. The first half of a row is in the low bits of its bytes, the second in the high bits. A
number n is the weight 2n - 15.

In memory, matrices are packed for numerics/int8.py. Gains of norms are folded into the matrices that
follow them.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs import package_data
from squeeze.numerics import int8
from squeeze.numerics.bitmodels import layout
from squeeze.numerics.int8_vectors import STEP
from squeeze.numerics.machine_code import PANEL

BYTES = 256
TAPS = 4  # length of the causal convolution before a recurrence
GRAMS = (2, 3, 4)  # n-grams of bytes that have embeddings


STATE = layout.fields("separated past")  # whether the last byte separated words; the last bytes
ROWS = 16  # most bytes of one call


class Matrices(NamedTuple):
    """One matrix of every block of a stack."""

    panels: np.ndarray  # uint8 [blocks, outputs / 16, inputs / 4 or 8, 16, 4], by int8.pack or int8.pack_halves
    bits: int  # bits of a weight: 8 or 4
    scales: np.ndarray  # float32 [blocks, outputs]


class Stack(NamedTuple):
    """The weights of the blocks of a stack, which all have one width."""

    into: Matrices  # value, forget and gate: 3 * width outputs
    taps: np.ndarray  # float32 [blocks, TAPS, width], the oldest first
    keeping: np.ndarray  # float32 [blocks, width]: bias of the forget gate
    out: Matrices
    gate_up: Matrices  # 2 * feed-forward outputs
    down: Matrices


class Weights(NamedTuple):
    """The weights of a network; they never change."""

    embedding: np.ndarray  # float32 [256, width]
    grams: tuple[np.ndarray, ...]  # uint8 [rows, width / 2] of each of GRAMS: embeddings of n-grams, by hash
    gram_scales: tuple[np.ndarray, ...]  # float32 [rows]
    before: Stack  # blocks over bytes
    up: Matrices  # a single matrix, from bytes to words
    words: Stack  # blocks over words; empty if the network has none
    down: Matrices  # a single matrix, from words to bytes
    after: Stack  # blocks over bytes
    head: Matrices  # a single matrix, to logits of the next byte
    separates: np.ndarray  # bool [256]: whether a byte separates words


class Memory(NamedTuple):
    """The state that the blocks of a stack keep from step to step."""

    past: np.ndarray  # float32 [blocks, TAPS - 1, width]: the latest inputs of the convolution
    states: np.ndarray  # float32 [blocks, width]


class Scratch(NamedTuple):
    """Buffers for up to ROWS steps. Those without a shape hold a matrix of some width with a row for each step."""

    x: np.ndarray  # float32 [ROWS, width], the residual stream
    wide: np.ndarray  # float32, of the word width
    ends: np.ndarray  # float32, of the width
    ended: np.ndarray  # int64 [ROWS], rows at which words end
    projected: np.ndarray  # float32, of the most outputs
    inner: np.ndarray  # float32, of the most inputs
    activations: np.ndarray  # int8.ACTIVATION, of the most inputs
    sums: np.ndarray  # int32 [ROWS], of the activations
    scales: np.ndarray  # float32 [ROWS]
    found: np.ndarray  # int32 [int8.SCRATCH]
    logits: np.ndarray  # float32 [ROWS, 256]


class Network(NamedTuple):
    """Weights, and the state of one stream of bytes."""

    weights: Weights
    state: Any  # a record of STATE
    fed: np.ndarray  # uint8 [1], for who feeds one byte at a time
    before: Memory
    words: Memory
    after: Memory
    word_output: np.ndarray  # float32 [width], last output of the word stack
    frequencies: np.ndarray  # int32 [ROWS, 256], of the byte after each step
    scratch: Scratch


def _memory(stack: Stack) -> Memory:
    blocks, _, width = stack.taps.shape
    return Memory(np.zeros((blocks, TAPS - 1, width), np.float32), np.zeros((blocks, width), np.float32))


def begin(weights: Weights) -> Network:
    """Return a network with fresh state, before the first byte."""
    stacks = (weights.before, weights.words, weights.after)
    width, wide = weights.embedding.shape[1], weights.up.scales.shape[1]
    matrices = [matrix for stack in stacks for matrix in (stack.into, stack.out, stack.gate_up, stack.down)]
    matrices += [weights.up, weights.down, weights.head]
    outputs = max(matrix.scales.shape[1] for matrix in matrices)
    inputs = max(width, wide, *(stack.gate_up.scales.shape[1] // 2 for stack in stacks))
    scratch = Scratch(
        x=np.zeros((ROWS, width), np.float32),
        wide=np.zeros(ROWS * wide, np.float32),
        ends=np.zeros(ROWS * width, np.float32),
        ended=np.zeros(ROWS, np.int64),
        projected=np.zeros(ROWS * outputs, np.float32),
        inner=np.zeros(ROWS * inputs, np.float32),
        activations=np.zeros(ROWS * inputs, int8.ACTIVATION),
        sums=np.zeros(ROWS, np.int32),
        scales=np.zeros(ROWS, np.float32),
        found=np.zeros(int8.SCRATCH, np.int32),
        logits=np.zeros((ROWS, BYTES), np.float32),
    )
    return Network(
        weights=weights,
        state=layout.record(STATE, separated=1),
        fed=np.zeros(1, np.uint8),
        before=_memory(weights.before),
        words=_memory(weights.words),
        after=_memory(weights.after),
        word_output=np.zeros(width, np.float32),
        frequencies=np.ones((ROWS, BYTES), np.int32),
        scratch=scratch,
    )


FILE = Path(__file__).with_name("weights.safetensors")
CHECKSUM = 0xDDFB4AE1E058BF8C  # XXH3-64 of the file; other weights would change coded bytes
_LINE = 64  # bytes of a cache line
Tensors = Mapping[str, np.ndarray]
MATRICES = ("into", "out", "gate_up", "down")  # of a block


def from_tensors(tensors: Tensors) -> Weights:
    """Pack the tensors of a file for the kernels.

    Raises:
        KeyError: if a tensor is missing.
        ValueError: if a tensor has the wrong shape or type.
    """
    embedding = _fixed(tensors["embedding"], np.float32)
    width, word_width = embedding.shape[1], tensors["up"].shape[0]
    weights = Weights(
        embedding=embedding,
        grams=tuple(_table(tensors, f"grams.{k}", width) for k in range(len(GRAMS))),
        gram_scales=tuple(_fixed(tensors[f"grams.{k}.scale"], np.float32) for k in range(len(GRAMS))),
        before=_stack(tensors, "before", width),
        up=_matrices(tensors, ["up"], (word_width, width), 4),
        words=_stack(tensors, "words", word_width, 4),
        down=_matrices(tensors, ["down"], (width, word_width), 4),
        after=_stack(tensors, "after", width),
        head=_matrices(tensors, ["head"], (BYTES, width)),
        separates=separators(),
    )
    if embedding.shape[0] != BYTES:
        raise ValueError(f"expected 256 byte embeddings, got {embedding.shape[0]}")
    return weights


def network(takes_part: bool = True, changed: Weights | None = None) -> Network:
    """Return a network with fresh state.

    Args:
        takes_part: whether it is used; if not, return the smallest network, which is never run.
        changed: fine-tuned weights, or None for the pretrained ones.
    """
    return begin((changed or pretrained()) if takes_part else _none())


@cache
def pretrained() -> Weights:
    """Return the weights that are installed with the package.

    Raises:
        SqueezeError: if the file is missing or damaged.
    """
    return from_tensors(pretrained_tensors())


def pretrained_tensors() -> dict[str, np.ndarray]:
    """Return the installed weights as tensors of their file.

    Raises:
        SqueezeError: if the file is missing or damaged.
    """
    return package_data.tensors(FILE, CHECKSUM)


@cache
def _none() -> Weights:
    sizes = {"up": (PANEL,) * 2, "down": (PANEL,) * 2, "head": (BYTES, PANEL)}
    tensors = {name: np.zeros(size, np.int8) for name, size in sizes.items()}
    tensors |= {f"grams.{k}": np.zeros((1, PANEL // 2), np.uint8) for k in range(len(GRAMS))}
    scales = {f"{name}.scale": np.zeros(len(codes), np.float32) for name, codes in tensors.items()}
    return from_tensors(tensors | scales | {"embedding": np.zeros((BYTES, PANEL), np.float32)})


def separators() -> np.ndarray:
    """Return bool [256]: ASCII bytes that are neither letters nor digits separate words."""
    return np.array([byte < 128 and not chr(byte).isalnum() for byte in range(BYTES)])


def _table(tensors: Tensors, name: str, width: int) -> np.ndarray:
    table = tensors[name]
    rows = table.shape[0]
    if table.dtype != np.uint8 or table.shape[1:] != (width // 2,) or rows & (rows - 1):
        raise ValueError(f"expected {name} to be uint8 [2^n, {width // 2}], got {table.dtype} {table.shape}")
    if tensors[f"{name}.scale"].shape != (rows,):
        raise ValueError(f"expected {rows} scales for {name}")
    return _fixed(table, np.uint8)


def _fixed(tensor: np.ndarray, dtype: type) -> np.ndarray:
    """Return a read-only array: compiled kernels are specialised for it."""
    array: np.ndarray = np.ascontiguousarray(tensor, dtype).view()
    array.flags.writeable = False
    return array


def _stack(tensors: Tensors, name: str, width: int, bits: int = 8) -> Stack:
    blocks = sum(key.startswith(f"{name}.") and key.endswith(".taps") for key in tensors)
    names = [f"{name}.{block}" for block in range(blocks)]
    hidden = tensors[f"{name}.0.gate_up"].shape[0] // 2 if blocks else PANEL
    shapes = {
        "into": (3 * width, width),
        "out": (width, width),
        "gate_up": (2 * hidden, width),
        "down": (width, hidden),
    }
    return Stack(
        **{kind: _matrices(tensors, [f"{one}.{kind}" for one in names], shapes[kind], bits) for kind in MATRICES},
        taps=_vectors(tensors, [f"{one}.taps" for one in names], (TAPS, width)),
        keeping=_vectors(tensors, [f"{one}.keeping" for one in names], (width,)),
    )


def _matrices(tensors: Tensors, names: list[str], shape: tuple[int, int], bits: int = 8) -> Matrices:
    step = STEP * 8 // bits
    if shape[0] % PANEL or shape[1] % step or shape[1] > int8.LONGEST:
        raise ValueError(f"unsupported matrix shape {shape}")
    pack = int8.pack_halves if bits == 4 else int8.pack
    panels = _aligned((len(names), shape[0] // PANEL, shape[1] // step, PANEL, STEP), np.dtype(np.uint8))
    for block, name in zip(panels, names, strict=True):
        block[...] = pack(_integers(tensors, name, shape, bits))
    return Matrices(panels, bits, _vectors(tensors, [f"{name}.scale" for name in names], shape[:1]))


def _integers(tensors: Tensors, name: str, shape: tuple[int, int], bits: int) -> np.ndarray:
    """Return a matrix as int8; 4-bit numbers are unpacked."""
    codes = tensors[name]
    if bits == 4 and codes.dtype == np.uint8:
        codes = np.concatenate([codes & 15, codes >> 4], 1).astype(np.int8) * 2 - 15
    if codes.shape != shape or codes.dtype != np.int8:
        raise ValueError(f"expected {name} to be a matrix {shape} of {bits} bits, got {codes.dtype} {codes.shape}")
    return codes


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate an array of zeros that begins at a cache line."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + _LINE, np.uint8)
    start = -room.ctypes.data % _LINE
    array: np.ndarray = room[start : start + size].view(dtype).reshape(shape)
    return array


def _vectors(tensors: Tensors, names: list[str], shape: tuple[int, ...]) -> np.ndarray:
    result = np.zeros((len(names), *shape), np.float32)
    for row, name in zip(result, names, strict=True):
        if tensors[name].shape != shape:
            raise ValueError(f"expected {name} to have shape {shape}, got {tensors[name].shape}")
        row[...] = tensors[name]
    return result
