"""A selective state-space model over bytes, trained on what it has just predicted.

The network is Mamba's (Gu and Dao, "Mamba: linear-time sequence modeling with
selective state spaces", 2023) at a small size: an embedding, blocks of RMSNorm,
projection, causal depthwise convolution, selective scan, gate and projection
with a residual connection, a last RMSNorm, and a softmax over bytes.
ssm_reference.py defines it in plain numpy.

It is fed one byte at a time (`predict`), and keeps the activations of the
latest `chunk` bytes. `train` is backpropagation through one such chunk, and a
step of Adam, on a second copy of the weights: while the next chunk is being
predicted, another thread may train on the one before. `refresh` then takes
over the trained weights. Who calls what when is always the same, so the
result does not depend on threads. Sums have the fixed orders of vectors.py.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from squeeze.codecs.bitmodels import vectors
from squeeze.codecs.bitmodels.contexts import mix_hash
from squeeze.codecs.bitmodels.jit import inline, part
from squeeze.lm.exact import exp_negative, maximum

BYTES = 256
TAPS = 4  # of the convolution
RANK = 16  # of the projection to step sizes
EPSILON = np.float32(1e-5)
GRAMS = 2  # tables of embeddings: of the latest two bytes, and three
GRAM_ROWS = 1 << 13  # of each table
GUESSES = 2  # tables of logits: of the latest byte, and two
GUESS_ROWS = 1 << 12  # of the second; the first has one for each byte
BANK, BYTE, STEPS, FED, PAST, CHANGED = range(6)  # columns of `place`
COUNT_BITS = 24  # fractional bits of a byte's frequency

ONE = np.float32(1.0)


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
    replays: int = 1  # pieces of the past that are trained on beside each chunk
    span: int = 32  # bytes of such a piece


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
    """What training needs of a chunk: T bytes, and 2 banks, one to predict in, one to train on; of a replay, 1 bank."""

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
    changed: np.ndarray  # int64 [place[CHANGED] and more, GRAMS + GUESSES]: rows of n-grams with gradients
    again: Activations  # of replays
    newest: Parameters
    slopes: Parameters  # views of the gradient
    stream: np.ndarray  # [T, D]: gradient of the residual stream
    block: np.ndarray  # [T + TAPS - 1, 2E]: gradient of what was projected
    wide: np.ndarray  # [6, E]
    carried: np.ndarray  # [N, E]: gradient of the state
    narrow: np.ndarray  # [RANK + 2N]
    thin: np.ndarray  # [D]


class Model(NamedTuple):
    weights: np.ndarray  # float32 flat: what predicts
    parameters: Parameters  # views of it
    acts: Activations
    trainer: Trainer
    place: np.ndarray  # int64 [6]: bank, byte of the chunk, training steps so far, whether anything was fed, the
    #   latest three bytes, rows of `changed`
    rates: np.ndarray  # float32 [3]
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
    parts, at = {}, 0
    for name, shape in shapes(sizes).items():
        size = int(np.prod(shape))
        parts[name] = flat[at : at + size].reshape(shape)
        at += size
    return Parameters(**parts)


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


def _activations(sizes: Sizes, banks: int, t: int) -> Activations:
    d, e, n, layers = sizes.width, sizes.inner, sizes.states, sizes.layers
    zeros = lambda *shape: np.zeros((banks, *shape), np.float32)  # noqa: E731
    return Activations(
        tokens=np.zeros((banks, t), np.int64),
        rows=np.zeros((banks, t, GRAMS + GUESSES), np.int64),
        targets=np.zeros((banks, t), np.int64),
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


def build(sizes: Sizes, weights: np.ndarray | None = None) -> Model:
    """A fresh model, or one that begins with these weights."""
    d, e, n, t = sizes.width, sizes.inner, sizes.states, max(sizes.chunk, sizes.span)
    flat = initial_weights(sizes) if weights is None else weights.astype(np.float32)
    newest, gradient, dense = flat.copy(), np.zeros_like(flat), dense_count(sizes)
    zeros = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    trainer = Trainer(
        weights=newest,
        gradient=gradient,
        first=zeros(dense),
        second=np.zeros_like(flat),
        changed=np.zeros((sizes.chunk + sizes.replays * sizes.span, GRAMS + GUESSES), np.int64),
        again=_activations(sizes, 1, sizes.span),
        newest=views(newest, sizes),
        slopes=views(gradient, sizes),
        stream=zeros(t, d),
        block=zeros(t + TAPS - 1, 2 * e),
        wide=zeros(6, e),
        carried=zeros(n, e),
        narrow=zeros(RANK + 2 * n),
        thin=zeros(d),
    )
    return Model(
        weights=flat,
        parameters=views(flat, sizes),
        acts=_activations(sizes, 2, sizes.chunk),
        trainer=trainer,
        place=np.zeros(6, np.int64),
        rates=np.array([sizes.rate, sizes.last_rate, sizes.halving, sizes.replays], np.float32),
        counts=np.array([BYTES >> (max(i, 1).bit_length() - 1) for i in range(2 * BYTES)], np.int64),
        probabilities=zeros(BYTES),
    )


@inline
def sigmoid(x):
    e = exp_negative(-abs(x))
    return (ONE if x >= np.float32(0) else e) / (ONE + e)


@inline
def _normalise(x, gain, out):
    """out = gain * x / rms(x); returns 1 / rms(x)."""
    total = vectors.dot(x, 0, x, 0, x.size)
    inverse = ONE / np.sqrt(total / np.float32(x.size) + EPSILON)
    for i in range(x.size):
        out[i] = x[i] * inverse * gain[i]
    return inverse


@inline
def _softplus(x):
    """ln(1 + e^x) within 1e-5, by a polynomial of Hastings (Abramowitz and Stegun, 4.1.43)."""
    e = exp_negative(-abs(x))
    y = e * (
        np.float32(0.99949556)
        + e
        * (
            np.float32(-0.49190896)
            + e * (np.float32(0.28947478) + e * (np.float32(-0.13606275) + e * np.float32(0.03215845)))
        )
    )
    return y + max(x, np.float32(0))


@part
def _block_forward(p, a, bank, layer, t):
    e, n2 = p.taps_bias.shape[1], p.select.shape[2]
    d, states = p.norm.shape[1], (p.select.shape[2] - RANK) // 2
    normed, projected = a.normed[bank, layer, t], a.projected[bank, layer, t + TAPS - 1]
    a.inverse[bank, layer, t] = _normalise(a.residual[bank, layer, t], p.norm[layer], normed)
    for i in range(2 * e):
        projected[i] = np.float32(0)
    vectors.accumulate(projected, 0, p.into[layer], 0, 2 * e, normed, 0, 1, d, 2 * e)
    mixed, active = a.mixed[bank, layer, t], a.active[bank, layer, t]
    for i in range(e):
        mixed[i] = p.taps_bias[layer, i]
    for k in range(TAPS):
        before, tap = a.projected[bank, layer, t + TAPS - 1 - k], p.taps[layer, k]
        for i in range(e):
            mixed[i] += tap[i] * before[i]
    for i in range(e):
        active[i] = mixed[i] * sigmoid(mixed[i])
    chosen = a.chosen[bank, layer, t]
    for i in range(n2):
        chosen[i] = np.float32(0)
    vectors.accumulate(chosen, 0, p.select[layer], 0, n2, active, 0, 1, e, n2)
    raw, delta = a.raw_step[bank, layer, t], a.delta[bank, layer, t]
    for i in range(e):
        raw[i] = p.step_bias[layer, i]
    vectors.accumulate(raw, 0, p.step[layer], 0, e, chosen, 0, 1, RANK, e)
    for i in range(e):
        delta[i] = _softplus(raw[i])
    scanned, gated = a.scanned[bank, layer, t], a.gated[bank, layer, t]
    for i in range(e):
        scanned[i] = p.skip[layer, i] * active[i]
    for k in range(states):
        before, after, decay = a.states[bank, layer, t, k], a.states[bank, layer, t + 1, k], p.decay[layer, k]
        b, c = chosen[RANK + k], chosen[RANK + states + k]
        for i in range(e):
            keep = exp_negative(min(delta[i] * decay[i], np.float32(0)))
            after[i] = keep * before[i] + delta[i] * b * active[i]
            scanned[i] += c * after[i]
    for i in range(e):
        gate = projected[e + i]
        gated[i] = scanned[i] * gate * sigmoid(gate)
    source, target = a.residual[bank, layer, t], a.residual[bank, layer + 1, t]
    for i in range(d):
        target[i] = source[i]
    vectors.accumulate(target, 0, p.out[layer], 0, d, gated, 0, 1, e, d)


@part
def forward(p, a, bank, t, past):
    """Feed the last of three bytes `past` as byte `t` of a bank: fills its activations, logits the last."""
    layers, d = p.norm.shape
    byte = past & 255
    a.tokens[bank, t] = byte
    for i in range(d):
        a.residual[bank, 0, t, i] = p.embed[byte, i]
    rows = a.rows[bank, t]
    for k in range(GRAMS):
        gram = past & ((1 << 8 * (k + 2)) - 1)
        rows[k] = k * GRAM_ROWS + np.int64(mix_hash(gram, np.uint64(k)) >> np.uint64(32)) % GRAM_ROWS
        vectors.add_scaled(a.residual[bank, 0, t], 0, ONE, p.grams[rows[k]], 0, d)
    rows[GRAMS] = byte
    rows[GRAMS + 1] = BYTES + np.int64(mix_hash(past & 0xFFFF, np.uint64(0)) >> np.uint64(32)) % GUESS_ROWS
    for layer in range(layers):
        _block_forward(p, a, bank, layer, t)
    normed, logits = a.normed[bank, layers, t], a.logits[bank, t]
    a.inverse[bank, layers, t] = _normalise(a.residual[bank, layers, t], p.last_norm, normed)
    for i in range(BYTES):
        logits[i] = p.head_bias[i] + p.guesses[rows[GRAMS], i] + p.guesses[rows[GRAMS + 1], i]
    vectors.accumulate(logits, 0, p.head, 0, BYTES, normed, 0, 1, d, BYTES)
    top = maximum(logits)
    for i in range(BYTES):
        logits[i] = exp_negative(logits[i] - top)


@part
def predict(m, byte):
    """Feed one byte; `probabilities` and the tree `counts` then tell what the next one may be."""
    m.place[PAST] = ((m.place[PAST] << 8) | byte) & 0xFFFFFF
    logits = m.acts.logits[m.place[BANK], m.place[BYTE]]
    forward(m.parameters, m.acts, m.place[BANK], m.place[BYTE], m.place[PAST])
    for i in range(BYTES):
        share = logits[i] * np.float32(1 << COUNT_BITS)
        m.counts[BYTES + i] = 1 + (
            np.int64(share) if share <= np.float32(1 << COUNT_BITS) else 0
        )  # NaN is 0 everywhere
    for i in range(BYTES - 1, 0, -1):
        m.counts[i] = m.counts[2 * i] + m.counts[2 * i + 1]
    scale = np.float32(1 << COUNT_BITS) / np.float32(m.counts[1])
    for i in range(BYTES):
        logits[i] *= scale
        m.probabilities[i] = logits[i]


@inline
def probability(m, partial):
    """That the next bit is a one, in 16 bits, given the bits of the byte so far after a leading one."""
    return (m.counts[2 * partial + 1] << 16) // m.counts[partial]


@inline
def outlook(m):
    """The likeliest byte (8 bits), how likely it is (3 bits), and the second likeliest (8 bits)."""
    first, second = BYTES, BYTES + 1
    if m.counts[second] > m.counts[first]:
        first, second = second, first
    for i in range(BYTES + 2, 2 * BYTES):
        if m.counts[i] > m.counts[first]:
            second = first
            first = i
        elif m.counts[i] > m.counts[second]:
            second = i
    p = (m.counts[first] << 8) // m.counts[1]
    sure = (p > 32) + (p > 64) + (p > 104) + (p > 152) + (p > 200) + (p > 232) + (p > 250)
    return np.uint64((first - BYTES) | (sure << 8) | ((second - BYTES) << 11))


@inline
def note(m, byte):
    """Tell what the byte was; returns whether the chunk is complete, so that `turn` is due."""
    if m.place[FED] == 0:  # nothing was fed yet
        m.place[FED] = 1
        return False
    m.acts.targets[m.place[BANK], m.place[BYTE]] = byte
    m.place[BYTE] += 1
    return m.place[BYTE] == m.acts.tokens.shape[1]


@inline
def _copy(source, target):
    for i in range(source.size):
        target[i] = source[i]


@part
def turn(m):
    """Begin another chunk in the other bank."""
    a, bank = m.acts, m.place[BANK]
    other, t = 1 - bank, m.acts.tokens.shape[1]
    for layer in range(a.mixed.shape[1]):
        for k in range(a.states.shape[3]):
            _copy(a.states[bank, layer, t, k], a.states[other, layer, 0, k])
        for k in range(TAPS - 1):
            _copy(a.projected[bank, layer, t + k], a.projected[other, layer, k])
    m.place[BANK] = other
    m.place[BYTE] = 0


@part
def refresh(m):
    """Predict with the newest weights from here."""
    for i in range(m.trainer.first.size):
        m.weights[i] = m.trainer.weights[i]
    for k in range(m.place[CHANGED]):
        rows = m.trainer.changed[k]
        for j in range(GRAMS):
            _copy(m.trainer.newest.grams[rows[j]], m.parameters.grams[rows[j]])
        for j in range(GRAMS, GRAMS + GUESSES):
            _copy(m.trainer.newest.guesses[rows[j]], m.parameters.guesses[rows[j]])
