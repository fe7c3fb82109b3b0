"""A Llama-family network as integers: int8 weights with one float32 scale per output channel."""

from dataclasses import dataclass

import numpy as np

from squeeze.lm.config import Config

IDENTITY_TAG = b"squeeze exact llama 1\n"  # version of the arithmetic; the identity covers it


@dataclass(frozen=True)
class Matrix:
    """int8 [outputs, inputs], packed for numerics/int8.py, times float32 [outputs]."""

    values: np.ndarray
    scales: np.ndarray
    outputs: int
    inputs: int


@dataclass(frozen=True)
class Layer:
    """One block, without the norms that rotated.py folds into matrices. Other norms and biases are float32 or None."""

    qkv: Matrix  # rows of queries, then keys, then values; rotary pairs are half a head apart
    qkv_bias: np.ndarray | None
    query_norm: np.ndarray | None  # [head_size]
    key_norm: np.ndarray | None
    output: Matrix
    output_bias: np.ndarray | None
    gate_up: Matrix  # rows of the gate, then of up
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """A network, and the vocabulary that it was trained with."""

    config: Config
    layers: tuple[Layer, ...]
    embedding: np.ndarray  # int8 [vocabulary, width]
    embedding_scales: np.ndarray  # float32 [vocabulary]
    head: Matrix  # only the rows of leaves, in their order
    leaves: np.ndarray  # int32: codable tokens, one for each distinct spelling, sorted by it
    tokens: tuple[bytes, ...]  # bytes of each token; b"" if it is not text
    name: str
    identity: str  # SHA-256 of everything that affects coded bits
    tokenizer: str  # tokenizer.json; not part of the identity
