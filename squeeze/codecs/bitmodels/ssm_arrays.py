"""Sizes, weights and arrays of the state-space model (ssm.py), and what a fresh one begins with."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import layout

BYTES = 256
TAPS = 4  # of the convolution
RANK = 16  # of the projection to step sizes
GRAMS = 2  # tables of embeddings: of the latest two bytes, and three
GRAM_ROWS = 1 << 13  # of each table
GUESSES = 2  # tables of logits: of the latest byte, and two
GUESS_ROWS = 1 << 12  # of the second; the first has one for each byte

# The bank that predicts, the byte of its chunk, training steps so far, whether anything was fed, three latest bytes;
# rates of Adam at first and in the end, and steps in which the excess over the last one halves.
STATE = layout.fields("bank byte steps fed past", floats="rate last_rate halving")


@dataclass(frozen=True)
class Sizes:
    """Of one model. `width` and `inner` are multiples of 16, and so is 2 * `states`."""

    width: int = 64  # of the residual stream
    inner: int = 128  # channels of the scan
    states: int = 8  # of each channel
    layers: int = 1
    chunk: int = 16  # bytes from one training step to the next, through which gradients go back
    rate: float = 0.004  # of Adam, at first
    last_rate: float = 0.0005  # in the end
    halving: int = 500  # training steps in which the excess over the last rate halves


class Parameters(NamedTuple):
    """Views of one flat float32 array; matrices have a row for each input."""

    embed: np.ndarray  # [256, D]
    norm: np.ndarray  # [L, D]
    into: np.ndarray  # [L, D, 2E]: scanned channels, then gates
    taps: np.ndarray  # [L, TAPS, E], the latest first
    taps_bias: np.ndarray  # [L, E]
    select: np.ndarray  # [L, E, RANK + 2N]: step, B, C
    step: np.ndarray  # [L, RANK, E]
    step_bias: np.ndarray  # [L, E]
    decay: np.ndarray  # [L, N, E]: A, below 0
    skip: np.ndarray  # [L, E]
    out: np.ndarray  # [L, E, D]
    last_norm: np.ndarray  # [D]
    head: np.ndarray  # [D, 256]
    head_bias: np.ndarray  # [256]
    grams: np.ndarray  # [GRAMS * GRAM_ROWS, D], of hashes
    guesses: np.ndarray  # [256 + GUESS_ROWS, 256], of hashes


class Activations(NamedTuple):
    """What training needs of a chunk: T bytes, and 2 banks, one to predict in, one to train on."""

    tokens: np.ndarray  # int64 [2, T]: the byte fed
    rows: np.ndarray  # int64 [2, T, GRAMS + GUESSES]: of its n-grams in `grams`, and in `guesses`
    targets: np.ndarray  # int64 [2, T]: the byte that came
    residual: np.ndarray  # [2, L + 1, T, D]: before each block, and after the last
    inverse: np.ndarray  # [2, L + 1, T]: 1 / root mean square of it
    normed: np.ndarray  # [2, L + 1, T, D]
    projected: np.ndarray  # [2, L, T + TAPS - 1, 2E]: the first TAPS - 1 are the chunk's before
    mixed: np.ndarray  # [2, L, T, E]: after the convolution
    active: np.ndarray  # [2, L, T, E]: after its SiLU
    chosen: np.ndarray  # [2, L, T, RANK + 2N]
    raw_step: np.ndarray  # [2, L, T, E]: before softplus
    delta: np.ndarray  # [2, L, T, E]
    states: np.ndarray  # [2, L, T + 1, N, E]
    scanned: np.ndarray  # [2, L, T, E]
    gated: np.ndarray  # [2, L, T, E]
    logits: np.ndarray  # [2, T, 256]: and then probabilities


class Trainer(NamedTuple):
    """The other half of a model: what `train` alone reads and writes."""

    weights: np.ndarray  # float32 flat: the newest
    gradient: np.ndarray
    first: np.ndarray  # Adam's running mean of gradients, of all weights but those of n-grams
    second: np.ndarray  # and of their squares; of n-grams the sum of squares
    newest: Parameters
    slopes: Parameters  # views of the gradient
    stream: np.ndarray  # [T, D]: gradient of the residual stream
    block: np.ndarray  # [T + TAPS - 1, 2E]: gradient of what was projected
    wide: np.ndarray  # [6, E]
    carried: np.ndarray  # [N, E]: gradient of the state
    narrow: np.ndarray  # [RANK + 2N]
    thin: np.ndarray  # [D]


class StateSpaceModel(NamedTuple):
    weights: np.ndarray  # float32 flat: what predicts
    parameters: Parameters  # views of it
    acts: Activations
    trainer: Trainer
    state: Any  # a record of STATE
    counts: np.ndarray  # int64 [512]: a tree, whose node n has the sum of 2n and 2n + 1
    probabilities: np.ndarray  # float32 [256]


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    d, e, n, layers = sizes.width, sizes.inner, sizes.states, sizes.layers
    return {
        "embed": (BYTES, d),
        "norm": (layers, d),
        "into": (layers, d, 2 * e),
        "taps": (layers, TAPS, e),
        "taps_bias": (layers, e),
        "select": (layers, e, RANK + 2 * n),
        "step": (layers, RANK, e),
        "step_bias": (layers, e),
        "decay": (layers, n, e),
        "skip": (layers, e),
        "out": (layers, e, d),
        "last_norm": (d,),
        "head": (d, BYTES),
        "head_bias": (BYTES,),
        "grams": (GRAMS * GRAM_ROWS, d),
        "guesses": (BYTES + GUESS_ROWS, BYTES),
    }


def views(flat: np.ndarray, sizes: Sizes) -> Parameters:
    arrays, offset = {}, 0
    for name, shape in shapes(sizes).items():
        size = int(np.prod(shape))
        arrays[name] = flat[offset : offset + size].reshape(shape)
        offset += size
    return Parameters(**arrays)


def parameter_count(sizes: Sizes) -> int:
    return sum(int(np.prod(shape)) for shape in shapes(sizes).values())


def dense_count(sizes: Sizes) -> int:
    """Of the parameters before those of n-grams, which every training step changes."""
    return parameter_count(sizes) - sum(int(np.prod(shapes(sizes)[name])) for name in ("grams", "guesses"))


def _uniform(count: int, seed: int) -> np.ndarray:
    """float32 [count] within ±1 from integers (splitmix64; Steele et al., 2014), the same everywhere."""
    x = (np.arange(count, dtype=np.uint64) + np.uint64(1 + (seed << 40))) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


_SCALES = {"embed": 0.5, "into": 1.0, "taps": 0.5, "select": 1.0, "step": 0.5, "out": 0.5, "head": 0.3}


def initial_weights(sizes: Sizes, seed: int = 1) -> np.ndarray:
    """float32, flat. N-grams begin at 0, steps between 0.01 and 0.5, A at -1 to -N as in S4D-real."""
    flat = np.zeros(parameter_count(sizes), np.float32)
    p = views(flat, sizes)
    for number, (name, scale) in enumerate(_SCALES.items()):
        array = getattr(p, name)
        spread = (
            np.float32(scale)
            if name in ("embed", "taps")
            else np.float32(scale) * np.float32(1.7320508) / np.sqrt(np.float32(array.shape[-2]))
        )
        array[...] = _uniform(array.size, seed * 16 + number).reshape(array.shape) * spread
    p.norm[...] = p.last_norm[...] = p.skip[...] = 1
    p.step_bias[...] = np.linspace(-4.6, -0.5, sizes.inner).astype(np.float32)
    p.decay[...] = -np.arange(1, sizes.states + 1, dtype=np.float32)[None, :, None]
    return flat


def _activations(sizes: Sizes) -> Activations:
    d, e, n, layers, t = sizes.width, sizes.inner, sizes.states, sizes.layers, sizes.chunk

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros((2, *shape), np.float32)

    return Activations(
        tokens=np.zeros((2, t), np.int64),
        rows=np.zeros((2, t, GRAMS + GUESSES), np.int64),
        targets=np.zeros((2, t), np.int64),
        residual=zeros(layers + 1, t, d),
        inverse=zeros(layers + 1, t),
        normed=zeros(layers + 1, t, d),
        projected=zeros(layers, t + TAPS - 1, 2 * e),
        mixed=zeros(layers, t, e),
        active=zeros(layers, t, e),
        chosen=zeros(layers, t, RANK + 2 * n),
        raw_step=zeros(layers, t, e),
        delta=zeros(layers, t, e),
        states=zeros(layers, t + 1, n, e),
        scanned=zeros(layers, t, e),
        gated=zeros(layers, t, e),
        logits=zeros(t, BYTES),
    )


def build(sizes: Sizes, weights: np.ndarray | None = None) -> StateSpaceModel:
    """A fresh model, or one that begins with these weights."""
    d, e, n, t = sizes.width, sizes.inner, sizes.states, sizes.chunk
    flat = initial_weights(sizes) if weights is None else weights.astype(np.float32)
    newest, gradient, dense = flat.copy(), np.zeros_like(flat), dense_count(sizes)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    trainer = Trainer(
        weights=newest,
        gradient=gradient,
        first=zeros(dense),
        second=np.zeros_like(flat),
        newest=views(newest, sizes),
        slopes=views(gradient, sizes),
        stream=zeros(t, d),
        block=zeros(t + TAPS - 1, 2 * e),
        wide=zeros(6, e),
        carried=zeros(n, e),
        narrow=zeros(RANK + 2 * n),
        thin=zeros(d),
    )
    return StateSpaceModel(
        weights=flat,
        parameters=views(flat, sizes),
        acts=_activations(sizes),
        trainer=trainer,
        state=layout.record(STATE, rate=sizes.rate, last_rate=sizes.last_rate, halving=sizes.halving),
        counts=np.array([BYTES >> (max(i, 1).bit_length() - 1) for i in range(2 * BYTES)], np.int64),
        probabilities=zeros(BYTES),
    )
