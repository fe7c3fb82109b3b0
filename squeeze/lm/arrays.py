"""The arrays that the network's kernels read and write: weights, key-value cache, and buffers."""

from typing import NamedTuple

import numpy as np

BLOCK = 16  # positions
SINK = BLOCK  # the first positions of a lane, which every query sees
DOUBLINGS = 24  # positions below 2^24


class LlamaArrays(NamedTuple):
    """Weights as the kernels read them; the first axis is the layer. Absent biases and norms have no rows."""

    sizes: np.ndarray  # int64: see the constants below
    epsilon: np.ndarray  # float32 [1]
    factor: np.ndarray  # float64 [1]: factor of cosines and sines (YaRN)
    cos_sin: np.ndarray  # float64 [2, DOUBLINGS, head_size / 2]: cosine and sine of 2^i times each frequency
    embedding: np.ndarray
    embedding_scales: np.ndarray
    qkv: np.ndarray
    qkv_scales: np.ndarray
    qkv_bias: np.ndarray
    query_norm: np.ndarray
    key_norm: np.ndarray
    output: np.ndarray
    output_scales: np.ndarray
    output_bias: np.ndarray
    gate_up: np.ndarray
    gate_up_scales: np.ndarray
    down: np.ndarray
    down_scales: np.ndarray
    head: np.ndarray
    head_scales: np.ndarray
    rotation: np.ndarray  # float32 [1]: scale of the Hadamard rotation of down's input


LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_SIZE, FEED_FORWARD, ROTATION = range(7)


class Cache(NamedTuple):
    """Keys and values of every lane, quantised when they are written, and never changed."""

    window: np.ndarray  # int64 [2]: blocks of a query's window, blocks of the ring
    # uint8 [layers, lanes, kv heads, blocks, head_size / 4, 16, 4]: packed, a position is an output
    keys: np.ndarray
    key_scales: np.ndarray  # float32 [layers, lanes, kv heads, positions]
    # uint8 [layers, lanes, kv heads, head_size / 16, positions / 4, 16, 4]: packed, a dimension is an output
    values: np.ndarray
    value_scales: np.ndarray


class Work(NamedTuple):
    """Buffers between cache and result; the first axis is the row, in `thread_` arrays the thread."""

    x: np.ndarray
    normed: np.ndarray
    cosine: np.ndarray  # float32 [R, 2, head_size / 2]: rotary angles for the window, and for the first block
    sine: np.ndarray
    narrow: np.ndarray  # activations [R, width], in the layout of numerics/int8.py
    attended: np.ndarray  # float32 [R, heads * head_size]
    attended_quantised: np.ndarray
    wide: np.ndarray  # activations [R, feed_forward]
    scales: np.ndarray  # float32 [R]
    row_sums: np.ndarray  # int32 [R]: of activations
    qkv: np.ndarray  # float32 [R, (heads + 2 kv_heads) * head_size]
    gate_up: np.ndarray  # float32 [R, 2 feed_forward]
    queries: np.ndarray  # int16 [R, 2, heads, head_size]
    query_scales: np.ndarray  # float32 [R, 2, heads]
    thread_sums: np.ndarray
    thread_scratch: np.ndarray  # int16 [threads, head_size]
    thread_queries: np.ndarray  # [threads, 2, rows * head_size]: queries in one part or two bytes
    thread_shifts: np.ndarray  # int32 [threads, 2, rows]: contribution of the offset 128 of packed keys to scores
    thread_scores: np.ndarray  # int32 [threads, rows * columns]
    thread_weights: np.ndarray  # [threads, rows * columns]: attention weights in one part or two bytes
    thread_narrow: np.ndarray  # int16 [threads, columns]: weights of one row
    thread_added: np.ndarray  # int64 [threads, rows]: the sum of weights
    thread_column: np.ndarray  # float32 [threads, 3, columns]: scores, key scales, value scales
    thread_products: np.ndarray  # int32 [threads, rows * head_size]
    thread_exact: np.ndarray  # int64 [threads, rows * head_size]
    thread_factors: np.ndarray  # float32 [threads, rows]
