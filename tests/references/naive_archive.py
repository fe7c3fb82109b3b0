"""Payloads of `archive` by section 10.5 of docs/format.md, in Python. It is written from the text alone.

Payloads of 10.3 are decoded by a function that the caller passes.
"""

import struct

import numpy as np

from tests.references.naive_bytewise import STRETCH, Coder, clamp, learn_map, squash

EXPONENTS = {"BF16": 8, "F32": 8, "F16": 5, "F8_E5M2": 5, "F8_E4M3": 4}
BITS = {"BF16": 16, "F32": 32, "F16": 16, "F8_E5M2": 8, "F8_E4M3": 8}


def clip(value, least, most):
    return min(max(value, least), most)


def bound(value):
    return clip(value, 2.0**-64, 2.0**64)


def decode(payload, dtype, size, inner, scales=None):
    """Return the bytes of a tensor.

    Args:
        payload, dtype, size: the payload, and type and bytes of the tensor.
        inner: inner(payload, dtype, size) decodes a payload of 10.3.
        scales: bytes of a float16 for as many values each, in 10.12.
    """
    form, mode, mixed, middle, columns, count, rest_size = struct.unpack_from("<BBBBIQQ", payload)
    assert form == 1 and mode <= 2
    rest, codes = payload[24 : 24 + rest_size], payload[24 + rest_size :]
    if mode == 0:
        return inner(rest, dtype, size)
    kind = "F16" if mode == 2 else dtype
    bits, exponent = BITS[kind], EXPONENTS[kind]
    low_bits = bits - exponent - mixed
    width = next(width for width in (8, 16, 32) if low_bits <= width)
    if len(rest) != count * width // 8:
        rest = inner(rest, f"U{width}", count * width // 8)
    low = np.frombuffer(rest, f"<u{width // 8}")
    step = (1 << 22) // columns * columns or 1 << 22
    spans = [(begin, min(begin + step, count)) for begin in range(0, count, step)]
    lengths, place, values = struct.unpack_from(f"<{len(spans)}I", codes), 4 * len(spans), []
    for (begin, end), length in zip(spans, lengths, strict=True):
        models = Models(exponent, mixed, middle, min(columns, end - begin), Coder(codes[place : place + length]))
        for top, rest_of in zip(models.run(_factors(scales, count, begin, end)), low[begin:end], strict=True):
            rotated = top << low_bits | int(rest_of)
            values.append((rotated >> 1 | rotated << (bits - 1)) & ((1 << bits) - 1))
        place += length
    assert place == len(codes)
    found = np.array(values, f"<u{bits // 8}")
    return (found.view("<f2").astype(np.int8) if mode == 2 else found).tobytes()


def _factors(scales, count, begin, end):
    """Return the factor of each value from `begin` to `end`."""
    if scales is None:
        return [1.0] * (end - begin)
    halves = np.abs(np.frombuffer(scales, "<f2").astype(np.float64))
    per = count // len(halves)
    halves[(halves == 0) | ~np.isfinite(halves)] = 1
    here = sorted(halves[begin // per : -(-end // per)])
    return [halves[value // per] / here[len(here) // 2] for value in range(begin, end)]


class Models:
    """The models of a segment."""

    def __init__(self, exponent, mixed, middle, columns, coder):
        self.top, self.mixed, self.middle, self.coder = (1 << exponent) - 1, mixed, middle, coder
        self.row = self.start = 1.0
        self.rows = self.seen = 0
        self.total, self.columns = 0.0, [1.0] * columns
        self.maps, self.mantissa_maps = [{}, {}, {}], [{}, {}]
        self.weights = [[21845] * 4 for _ in range(48)]
        self.mantissa_weights = [[32768] * 3 for _ in range(1 << mixed)]

    def run(self, factors):
        """Yield the tops of all values."""
        magnitudes = []
        for i, factor in enumerate(factors):
            c = i % len(self.columns)
            if c == 0 and i > 0:
                self.end_row(magnitudes)
                magnitudes = []
            bits = int(np.float64(self.row * self.columns[c] / factor).view(np.int64))
            x = clip((bits >> 48) - 16 * (1023 - self.middle), 0, 16 * self.top + 15)
            e = self.exponent(x)
            p = 1
            for _ in range(self.mixed):
                places = (clip(16 * e - x + 128, 0, 255) >> 2) << self.mixed | p, e << self.mixed | p
                p = 2 * p + self.bit(self.mantissa_maps, places, self.mantissa_weights[p])
            mantissa = p - (1 << self.mixed)
            n = (mantissa << 3 >> self.mixed) & 7
            magnitude = 2.0 ** (e - self.middle) * (8.5 + n) / 8 * factor
            magnitudes.append(magnitude)
            self.note(magnitude, c)
            yield e << self.mixed | mantissa

    def exponent(self, x):
        h = s = clip(x // 16, 0, self.top - 1)
        phase = 0
        while True:
            places = (
                256 * phase + clip(16 * h - x + 128, 0, 255),
                (8 * phase + clip(h - s + 4, 0, 7)) * 16 * (self.top + 1) + x,
                256 * phase + h,
            )
            yes = self.bit(self.maps, places, self.weights[16 * phase + clip(h - s + 8, 0, 15)])
            if (phase == 2 and yes) or (phase == 1 and not yes):
                return h
            if phase < 2 and yes:
                h, phase = h + 1, 1
            else:
                h, phase = h - (phase == 2), 2
            if h == (self.top if phase == 1 else 0):
                return h

    def bit(self, maps, places, weights):
        inputs = [STRETCH[entries.get(place, 1 << 31) >> 20] for entries, place in zip(maps, places, strict=True)]
        inputs.append(256)
        p = squash(clamp(sum(weight * value for weight, value in zip(weights, inputs, strict=True)) >> 16))
        bit = self.coder.decode(clip(p, 1, 2**32 - 1))
        error = ((2**32 - 1 if bit else 0) - p) >> 16
        for k, value in enumerate(inputs):
            weights[k] += (error * 2 * value + (1 << 21)) >> 22
        for entries, place in zip(maps, places, strict=True):
            entries.setdefault(place, 1 << 31)
            learn_map(entries, place, bit, 1023)
        return bit

    def end_row(self, magnitudes):
        self.rows += 1
        rate = 1 / min(self.rows + 8, 1000)
        self.start += (self.row - self.start) / min(self.rows + 1, 64)
        for k, magnitude in enumerate(magnitudes):
            mean = self.columns[k]
            self.columns[k] = bound(mean + (min(magnitude / self.row, 16 * mean) - mean) * rate)
        self.row, self.seen, self.total = self.start, 0, 0.0

    def note(self, magnitude, column):
        found = min(magnitude / self.columns[column], 16 * self.row)
        self.seen, self.total = min(self.seen + 1, 1023), self.total + found
        self.row += (found - self.row) / (self.seen + 16)
        if self.seen == 8 and self.total < self.row:
            self.row = self.total / 8
        self.row = bound(self.row)
