"""Logistic mixing: combining many predictions of one bit into one probability, and learning the weights.

Inputs are Q12 logits. A weight set is one row of Q16 weights. Several selectors each choose a row by a small context,
every row gives a prediction, and a final mixer combines those. All sums are of integers, so any order of addition gives
the same bits. See Mahoney's PAQ7 and PAQ8 mixers; the last stage (`refine`) is PAQ's adaptive probability map (APM).
"""

import numpy as np

from squeeze.numerics import integer_vectors
from squeeze.numerics.jit import inline
from squeeze.numerics.logistic import SQUASH, clamp_logit

WEIGHT_ONE = 1 << 16
APM_STEPS = 33
IDENTITY = np.minimum(SQUASH[2048 - 128 * (APM_STEPS // 2) :: 128], (1 << 32) - 1).astype(
    np.uint32
)  # the probability of each step


@inline
def dot(weights, inputs):
    """Return the clamped Q12 logit of a weight set."""
    return clamp_logit(integer_vectors.dot(weights, inputs) >> 16)


@inline
def train(weights, inputs, error, rate):
    """Update the weights by a gradient step of the coding cost: weight += rate * error * input.

    Args:
        weights: Q16 weights.
        inputs: Q12 logits.
        error: The prediction error, 16 bits.
        rate: The learning rate, below 2^10.
    """
    integer_vectors.add_scaled_22(weights, np.int64(np.int32(error * rate)), inputs)


def fresh_apm(rows: int) -> np.ndarray:
    """Return uint32 [rows, APM_STEPS], in which every row maps a probability to itself.

    Values are stored XOR those of IDENTITY, so that memory that is not used need not be written.
    """
    return np.zeros((rows, APM_STEPS), np.uint32)


@inline
def refine(apm, row, logit):
    """Return the 32-bit probability that followed this logit before, interpolated between two steps."""
    position = logit + (16 << 12)
    i, fraction = position >> 12, position & 4095
    below, above = apm[row, i] ^ IDENTITY[np.uint64(i)], apm[row, i + 1] ^ IDENTITY[np.uint64(i + 1)]
    return (np.int64(below) * (4096 - fraction) + np.int64(above) * fraction) >> 12


@inline
def nearest_step(logit):
    """Return the step nearest to a logit."""
    return (logit + (16 << 12) + 2048) >> 12


@inline
def learn_apm(apm, row, logit, bit, rate):
    """Move the nearest step towards `bit` by 2^-rate."""
    learn_step(apm, row, nearest_step(logit), bit, rate)


@inline
def learn_step(apm, row, i, bit, rate):
    """Move step `i` of a row towards `bit` by 2^-rate."""
    identity = IDENTITY[np.uint64(i)]
    value = np.int64(apm[row, i] ^ identity)
    apm[row, i] = np.uint32(value + ((((bit << 32) - bit) - value) >> rate)) ^ identity


FINE_BITS = 20  # fractional bits of the weights where a strong predictor is among the inputs
FINE_ONE = 1 << FINE_BITS


@inline
def dot_fine(weights, inputs):
    """Return the clamped Q12 logit of Q20 weights."""
    return clamp_logit(integer_vectors.dot(weights, inputs) >> FINE_BITS)


@inline
def train_fine(weights, inputs, error, rate):
    """Update Q20 weights as `train` does, with an error of 20 bits and a rate in 4096ths."""
    integer_vectors.add_scaled_24(weights, np.int64(np.int32(error * rate)), inputs)


# Where inputs are so many that speed asks for float32, a logit is natural, weights are float32, and sums have the one
# order of vectors.py. Probabilities stay integers.


@inline
def to_q12(logit):
    """Return the clamped Q12 logit of a natural logit in float32."""
    return clamp_logit(np.int64(logit * np.float32(4096)))


@inline
def error_of(bit, probability):
    """Return the difference of a bit and a 32-bit probability, float32."""
    return np.float32((bit << 32) - probability) * np.float32(2.0**-32)
