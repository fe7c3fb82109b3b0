"""The models of the archive coding: what is likely, given the magnitude that row and column lead to expect.

Weights of a row, and those of a column, have variances of their own. The expected magnitude of a value is the running
mean of its row times that of its column, in units of the row's. An exponent is a path of decisions from the expected
exponent on, up or down, and each is predicted by its distance from the expectation. So all rows and columns share what
is learned. Means are float64, whose operations are the same everywhere.
"""

from typing import NamedTuple

import numpy as np

from squeeze.numerics.bitmodels import coder as arithmetic, histories, mixer
from squeeze.numerics.jit import inline, kernel
from squeeze.numerics.logistic import STRETCH, squash
from squeeze.packing.tensors.float_payload import Array
from squeeze.system.arena import thread_buffer

_RATE, _LIMIT = 2, 1023
_INPUTS, _MANTISSA_INPUTS = 3, 2  # predictions of a decision, besides a bias
_WEIGHT = 1 << 16  # the sum of initial weights, in units of 2^-16
_STEPS = 16  # of an octave, in which expectations are counted
_FIRST, _UP, _DOWN, _PHASES = 0, 1, 2, 3  # decisions: is it above the expected exponent, a higher one, this one
_NEAR = 8  # exponents around the expected one that are told apart
_VALUE_BITS = 3  # mantissa bits that count in a magnitude
_LEAST, _MOST = 2.0**-64, 2.0**64  # means
_OUTLIER = 16.0  # most of a magnitude, in units of what was expected
_ROW, _START, _ROWS, _SEEN = 0, 1, 2, 3  # scalars: mean of the row, mean with which a row starts, rows, values,
_TOTAL = 4  # and the sum of its first values
_FIRST_VALUES = 8.0  # of a row, whose mean replaces that of the row if it is less than an eighth of it


class ArchiveModel(NamedTuple):
    """The state of all models, which encoder and decoder update alike."""

    magnitudes: np.ndarray  # float64 [exponents << _VALUE_BITS]: the magnitude of each exponent and mantissa
    maps: np.ndarray  # uint32 [_INPUTS, contexts]: see histories.learn
    mantissa_maps: np.ndarray  # uint32 [_MANTISSA_INPUTS, contexts]
    weights: np.ndarray  # int32 [_PHASES * 2 * _NEAR, _INPUTS + 1]
    mantissa_weights: np.ndarray  # int32 [2^mixed, _MANTISSA_INPUTS + 1]
    columns: np.ndarray  # float64 [columns]: the mean magnitude of each column, in units of its rows' means
    scalars: np.ndarray  # float64 [5]
    entries: np.ndarray  # int64 [_INPUTS]
    inputs: np.ndarray  # int32 [_INPUTS + 1]
    mantissa_inputs: np.ndarray  # int32 [_MANTISSA_INPUTS + 1]


def build_model(exponents: int, columns: int, mixed: int, middle: int) -> ArchiveModel:
    """Return the initial state.

    Args:
        exponents: the number of possible exponents.
        columns: values in a row.
        mixed: mantissa bits that are mixed.
        middle: the exponent of magnitude 1, from which means start.
    """
    parts = 1 << _VALUE_BITS
    powers = np.ldexp(1.0, np.arange(exponents, dtype=np.int32) - np.int32(middle))  # exact, which a power need not be
    magnitudes = (powers[:, None] * ((np.arange(parts) + parts + 0.5) / parts)).reshape(-1)
    size = max(_PHASES * _NEAR * _STEPS * exponents, _PHASES << 8)
    return ArchiveModel(
        magnitudes=magnitudes,
        maps=_maps("maps of archive", _INPUTS, size),
        mantissa_maps=_maps("mantissa maps of archive", _MANTISSA_INPUTS, 256 << mixed),
        weights=np.full((2 * _NEAR * _PHASES, _INPUTS + 1), _WEIGHT // _INPUTS, np.int32),
        mantissa_weights=np.full((1 << mixed, _MANTISSA_INPUTS + 1), _WEIGHT // _MANTISSA_INPUTS, np.int32),
        columns=np.ones(columns),
        scalars=np.array([1.0, 1.0, 0.0, 0.0, 0.0]),
        entries=np.zeros(_INPUTS, np.int64),
        inputs=np.zeros(_INPUTS + 1, np.int32),
        mantissa_inputs=np.zeros(_MANTISSA_INPUTS + 1, np.int32),
    )


def _maps(name: str, inputs: int, size: int) -> Array:
    """Return probabilities of 1/2, uint32 [inputs, size], in memory of this thread."""
    maps: Array = thread_buffer(name, 4 * inputs * size).view(np.uint32).reshape(inputs, size)
    maps[:] = 1 << 31
    return maps


@inline
def _clamp(value, least, most):
    return min(max(value, least), most)


@inline
def _magnitude(m, exponent, mantissa, mixed):
    """Return the magnitude of an exponent and the mantissa bits that are mixed."""
    shift = mixed - _VALUE_BITS
    part = mantissa >> shift if shift >= 0 else mantissa << -shift
    return m.magnitudes[exponent << _VALUE_BITS | part]


@inline
def start_row(m, values, begin, mixed, factors, per, offset):
    """Learn the means of columns from the row that ends, values from `begin` on, and begin another row."""
    row = m.scalars[_ROW]
    m.scalars[_ROWS] += 1.0
    rate = 1.0 / min(m.scalars[_ROWS] + 8.0, 1000.0)
    m.scalars[_START] += (row - m.scalars[_START]) / min(m.scalars[_ROWS] + 1.0, 64.0)
    for k in range(m.columns.size):
        value, mean = np.int64(values[begin + k]), m.columns[k]
        magnitude = _magnitude(m, value >> mixed, value & ((1 << mixed) - 1), mixed)
        found = min(magnitude * factors[(offset + begin + k) // per] / row, _OUTLIER * mean)
        m.columns[k] = _clamp(mean + (found - mean) * rate, _LEAST, _MOST)
    m.scalars[_ROW], m.scalars[_SEEN], m.scalars[_TOTAL] = m.scalars[_START], 0.0, 0.0


@inline
def expected(m, column, factor, middle, most):
    """Return the expected magnitude as an exponent in units of 1 / _STEPS, 0 to `most`."""
    bits = np.float64(m.scalars[_ROW] * m.columns[column] / factor).view(np.int64)
    return _clamp((bits >> 48) - (1023 - middle) * _STEPS, 0, most)


@inline
def note(m, column, magnitude):
    """Update the mean of the row with a magnitude."""
    row = m.scalars[_ROW]
    found = min(magnitude / m.columns[column], _OUTLIER * row)
    m.scalars[_SEEN] = min(m.scalars[_SEEN] + 1.0, 1023.0)
    m.scalars[_TOTAL] += found
    row += (found - row) / (m.scalars[_SEEN] + 16.0)
    if m.scalars[_SEEN] == _FIRST_VALUES and m.scalars[_TOTAL] < row:
        row = m.scalars[_TOTAL] / _FIRST_VALUES
    m.scalars[_ROW] = _clamp(row, _LEAST, _MOST)


@inline
def code_bit(bit, maps, count, entries, weights, inputs, rate, limit, coder, coded, decoding):
    """Predict one decision, code it in either direction, and update the models; return the bit.

    rate: of the weights. limit: counts after which a map learns no slower.
    """
    for k in range(count):
        inputs[k] = STRETCH[maps[k, entries[k]] >> np.uint32(20)]
    inputs[count] = 256
    mixed = squash(mixer.dot(weights, inputs))
    probability = _clamp(mixed, 1, (1 << 32) - 1)
    if decoding:
        bit = arithmetic.decode(probability, coder, coded)
    else:
        arithmetic.encode(bit, probability, coder, coded)
    error = (((bit << 32) - bit) - mixed) >> 16
    mixer.train(weights, inputs, error, rate)
    for k in range(count):
        histories.learn(maps[k], entries[k], bit, limit)
    return bit


@inline
def code_exponent(m, exponent, expectation, top, coder, coded, decoding):
    """Code an exponent of 0 to `top`; return it."""
    start = _clamp(expectation // _STEPS, 0, top - 1)
    here, phase, steps = start, _FIRST, _STEPS * (top + 1)
    while True:
        m.entries[0] = phase << 8 | _clamp(_STEPS * here - expectation + 128, 0, 255)
        m.entries[1] = (phase * _NEAR + _clamp(here - start + 4, 0, _NEAR - 1)) * steps + expectation
        m.entries[2] = phase << 8 | here
        row = phase * 2 * _NEAR + _clamp(here - start + _NEAR, 0, 2 * _NEAR - 1)
        bit = np.int64(exponent == here) if phase == _DOWN else np.int64(exponent > here)
        bit = code_bit(bit, m.maps, _INPUTS, m.entries, m.weights[row], m.inputs, _RATE, _LIMIT, coder, coded, decoding)
        if phase == _DOWN:
            if bit:
                return here
            here -= 1
        elif bit:
            here, phase = here + 1, _UP
        elif phase == _UP:
            return here
        else:
            phase = _DOWN
        if here == (0 if phase == _DOWN else top):
            return here


@kernel
def code(m, values, mixed, middle, top, factors, per, offset, coder, coded, decoding):
    """Code values in either direction: the exponents and `mixed` mantissa bits.

    Returns where coding stopped, before the end if `coded` is full or used up.

    Args:
        m, coder, coded, decoding: the models, the coder, its bytes, and the direction.
        values: uint16, filled if decoding.
        mixed: mantissa bits that are mixed.
        middle: the exponent of magnitude 1.
        top: the largest possible exponent.
        factors: float64, what the magnitudes of each `per` values are multiplied by: above 0, and finite.
        per: values of a factor.
        offset: values of the first factor that come before.
    """
    leaves, columns, most = np.int64(1 << mixed), m.columns.size, _STEPS * (top + 1) - 1
    for i in range(values.size):
        if arithmetic.is_over(coder, coded, decoding):
            return i
        column = i % columns
        if column == 0 and i > 0:
            start_row(m, values, i - columns, mixed, factors, per, offset)
        factor = factors[(offset + i) // per]
        expectation = expected(m, column, factor, middle, most)
        exponent, mantissa = np.int64(values[i]) >> mixed, np.int64(values[i]) & (leaves - 1)
        exponent = code_exponent(m, exponent, expectation, top, coder, coded, decoding)
        distance, partial = _clamp(_STEPS * exponent - expectation + 128, 0, 255), np.int64(1)
        for shift in range(mixed - 1, -1, -1):
            m.entries[0] = (distance >> 2) << mixed | partial
            m.entries[1] = exponent << mixed | partial
            bit = code_bit(
                (mantissa >> shift) & 1, m.mantissa_maps, _MANTISSA_INPUTS, m.entries, m.mantissa_weights[partial],
                m.mantissa_inputs, _RATE, _LIMIT, coder, coded, decoding,
            )  # fmt: skip
            partial = 2 * partial + bit
        mantissa = partial - leaves
        if decoding:
            values[i] = values.dtype.type((exponent << mixed) | mantissa)
        note(m, column, _magnitude(m, exponent, mantissa, mixed) * factor)
    return values.size
