"""Tensors on a grid by section 10.11 of docs/format.md, in Python. It is written from the text alone.

Sections that are payloads of 10.3 or 10.5 are decoded by a function that the caller passes.
"""

import struct
from fractions import Fraction

import numpy as np

TYPES = ("BF16", "F16", "F32")
BYTES = {"BF16": 2, "F16": 2, "F32": 4}
MANTISSAS = {"BF16": (8, -126), "F16": (11, -14), "F32": (24, -126)}  # significant bits, least exponent
POSITIVE = (0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1)
NEGATIVE = (0, 0.091050036, 0.18477343, 0.28444138, 0.3949175, 0.52507305, 0.6961928, 1)


def number(code, mantissa, bias):
    """Return a number of a float format without infinities."""
    high, low = code >> mantissa, code & (1 << mantissa) - 1
    if not high:
        return Fraction(low) * Fraction(2) ** (1 - bias - mantissa)
    return (Fraction(low, 1 << mantissa) + 1) * Fraction(2) ** (high - bias)


def magnitude(kind, code, negative):
    if kind == 1:
        return Fraction(code)
    if kind == 3:
        table = NEGATIVE if negative else POSITIVE
        return Fraction(float(np.float32(table[code]))) if code < len(table) else Fraction(0)
    mantissa, bias, count = {2: (1, 1, 8), 4: (3, 7, 127), 5: (2, 15, 124)}[kind]
    return number(code, mantissa, bias) if code < count else Fraction(0)


def rounded(value, dtype):
    """Round a fraction to nearest, ties to even."""
    bits, least = MANTISSAS[dtype]
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()  # or one more than the true one
    exponent -= abs(value) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - bits + 1)
    return round(value / unit) * unit


def values_of(data, dtype):
    words = np.frombuffer(data, "<u2" if dtype != "F32" else "<u4")
    if dtype == "BF16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    return words.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32)


def word_of(value, is_negative, dtype):
    number = np.float32(-0.0 if value == 0 and is_negative else float(value))
    if dtype == "BF16":
        return int(number.view(np.uint32)) >> 16
    return int(np.float16(number).view(np.uint16)) if dtype == "F16" else int(number.view(np.uint32))


def decode(payload, dtype, count, inner):
    """Return the bytes of a tensor of `count` values; inner(payload, dtype, size) decodes a section."""
    one, kind, own, types, palette, columns, rows, width, *lengths = struct.unpack_from("<BBBBI7Q", payload)
    assert one == 1
    place, sections = 64, []
    for length in lengths:
        sections.append(payload[place : place + length])
        place += -(-length // 8) * 8
    assert place == len(payload)

    def read(section, kind, size):
        return section if len(section) == size else inner(section, kind, size)

    codes = read(sections[3], {4: "F8_E4M3", 5: "F8_E5M2"}.get(kind, "U8"), count)
    size = BYTES[dtype]
    if kind == 7:
        table = sections[0].ljust(256 * size, b"\0")
        assert len(sections[0]) == palette * size
        return b"".join(table[size * code : size * code + size] for code in codes)
    across = -(-columns // width)
    tiles = {(i // columns // rows) * across + i % columns // width for i in range(count)}
    found = []
    numbers = len(tiles), len(tiles) if kind == 6 else 1
    for section, name, number_of in zip(sections[:2], (types & 15, types >> 4), numbers, strict=True):
        found.append(values_of(read(section, TYPES[name], number_of * BYTES[TYPES[name]]), TYPES[name]))
    firsts = np.frombuffer(read(sections[2], "I16", 2 * (len(tiles) if own else 1)), "<i2")
    words = []
    for i, code in enumerate(codes):
        tile = (i // columns // rows) * across + i % columns // width
        scale, negative = Fraction(float(found[0][tile])), False
        if kind in (0, 6):
            level = Fraction(code if kind == 6 else code + int(firsts[tile if own else 0]))
        else:
            negative = code >= 128
            level = magnitude(kind, code & 127, negative) * (-1 if negative else 1)
        product = rounded(level * scale, "F32")
        if kind == 6:
            product = rounded(product + Fraction(float(found[1][tile])), "F32")
        words.append(word_of(rounded(product, dtype), negative, dtype))
    return np.array(words, f"<u{size}").tobytes()
