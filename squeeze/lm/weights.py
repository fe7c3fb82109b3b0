"""A Llama-family network as integers: int8 weights with one float32 scale per output channel."""

from dataclasses import dataclass

import numpy as np

from squeeze.lm.config import Config

# How a network is computed, by a number that its identity covers: 1 is that of files of numerics version 1, with
# activations of 16 bits; in 2, weights are rotated (rotated.py) and activations have 8 bits.
ARITHMETIC = 2
IDENTITY_TAGS = {number: f"squeeze int8 llama {number}\n".encode() for number in (1, 2)}


@dataclass(frozen=True)
class Matrix:
    """int8 [outputs, inputs], packed as numerics/int8.py (or, of arithmetic 1, tiles.py) wants it, times float32
    [outputs]."""

    values: np.ndarray
    scales: np.ndarray
    outputs: int
    inputs: int


@dataclass(frozen=True)
class Layer:
    """One block; norms and biases are float32, None where there is none: the first two norms are of arithmetic 1."""

    attention_norm: np.ndarray | None
    qkv: Matrix  # rows of queries, then keys, then values; rotary pairs lie half a head apart
    qkv_bias: np.ndarray | None
    query_norm: np.ndarray | None  # [head_size]
    key_norm: np.ndarray | None
    output: Matrix
    output_bias: np.ndarray | None
    feed_forward_norm: np.ndarray | None
    gate_up: Matrix  # rows of the gate, then of up
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """A network, and the vocabulary it was trained with."""

    config: Config
    layers: tuple[Layer, ...]
    embedding: np.ndarray  # int8 [vocabulary, width]
    embedding_scales: np.ndarray  # float32 [vocabulary]
    final_norm: np.ndarray | None  # of arithmetic 1
    head: Matrix  # only the rows of leaves, in their order
    leaves: np.ndarray  # int32: codable tokens, one for each distinct spelling, sorted by it
    tokens: tuple[bytes, ...]  # what each token spells; b"" where it is not text
    name: str
    identity: str  # SHA-256 of all that decides a coded bit
    tokenizer: str  # tokenizer.json; not part of the identity
    arithmetic: int
