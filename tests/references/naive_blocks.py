"""Tensors of the block types of GGUF by section 10.12 of docs/format.md, in Python. It is written from the text alone.

An element is a list of parts (byte, lowest bit, bits), from the lowest bits of its value on.
"""

import struct

import numpy as np

SIZES = {
    **{"Q4_0": 18, "IQ4_NL": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "Q2_K": 84, "Q3_K": 110},
    **{"Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_XS": 136, "MXFP4": 17, "IQ2_XXS": 66, "IQ2_XS": 74, "IQ3_XXS": 98},
    **{"IQ1_S": 50, "IQ3_S": 110, "IQ2_S": 82, "IQ1_M": 56, "TQ1_0": 54, "TQ2_0": 66},
}


def whole(first, last, kind="U8"):
    return kind, [[(byte, 0, 8)] for byte in range(first, last + 1)]


def half(first):
    return "F16", [[(first, 0, 8)], [(first + 1, 0, 8)]]


def difference(first):
    return "U16", half(first)[1]


def fives(low, high):
    return "U8", [[(low + j % 16, 4 * (j // 16), 4), (high + j // 8, j % 8, 1)] for j in range(32)]


def twos(low, high=None):
    found = []
    for j in range(256):
        h, q, p = j // 128, j // 32 % 4, j % 32
        found.append([(low + 32 * h + p, 2 * q, 2)])
        if high is not None:
            found[-1].append((high + p, 4 * h + q, 1))
    return "U8", found


def scales():
    return "U8", [[(4 + j, 0, 6)] for j in range(4)] + [[(12 + j, 0, 4), (4 + j, 6, 2)] for j in range(4)]


def minima():
    return "U8", [[(8 + j, 0, 6)] for j in range(4)] + [[(12 + j, 4, 4), (8 + j, 6, 2)] for j in range(4)]


def sixes():
    found = []
    for j in range(256):
        h, q, p = j // 128, j // 32 % 4, j % 32
        found.append([(64 * h + 32 * (q % 2) + p, 4 * (q // 2), 4), (128 + 32 * h + p, 2 * q, 2)])
    return "U8", found


def streams(dtype):
    q3 = [[(96 + j % 8, 4 * (j // 8), 4), (104 + j % 4, 2 * (j // 4), 2)] for j in range(16)]
    q5 = [[(48 + 32 * (j // 64) + j % 32, 4 * (j // 32 % 2), 4), (16 + j % 32, j // 32, 1)] for j in range(256)]
    iq4 = [[(4 + j // 2, 4 * (j % 2), 4), (2 + j // 4, 2 * (j % 4), 2)] for j in range(8)]
    known = {
        "Q4_0": [half(0), whole(2, 17)],
        "IQ4_NL": [half(0), whole(2, 17)],
        "Q4_1": [half(0), difference(2), whole(4, 19)],
        "Q5_0": [half(0), fives(6, 2)],
        "Q5_1": [half(0), difference(2), fives(8, 4)],
        "Q8_0": [half(0), whole(2, 33, "I8")],
        "Q2_K": [half(80), half(82), *(("U8", [[(j, s, 4)] for j in range(16)]) for s in (0, 4)), twos(16)],
        "Q3_K": [half(108), ("U8", q3), twos(32, 0)],
        "Q4_K": [half(0), half(2), scales(), minima(), whole(16, 143)],
        "Q5_K": [half(0), half(2), scales(), minima(), ("U8", q5)],
        "Q6_K": [half(208), whole(192, 207, "I8"), sixes()],
        "IQ4_XS": [half(0), ("U8", iq4), whole(8, 135)],
        "MXFP4": [whole(0, 0), whole(1, 16)],
    }
    return known.get(dtype) or [half(0), whole(2, SIZES[dtype] - 1)]


def in_order(values, dtype, scales, minima=None):
    """Return codes in the order of their blocks."""
    count, found = len(scales), [b""] * len(scales)
    width = len(values) // count
    for begin in range(0, count, 65536):
        keys = []
        for block in range(begin, min(begin + 65536, count)):
            key, mask = (int(scales[block]) & 0x7FFF) >> 7, 0
            if minima is not None:
                middle, steps, every = {"Q4_1": (7.5, 32, 255), "Q5_1": (15.5, 16, 31)}[dtype]
                with np.errstate(all="ignore"):
                    scale, least = (np.float32(words[block : block + 1].view("<f2")[0]) for words in (scales, minima))
                    zero = -least / scale
                    away = abs(zero - np.float32(middle)) * np.float32(steps)
                key, mask = int(away) if away < 255 else 255, every if zero > middle else 0
            keys.append((key, block, mask))
        for place, (_, block, mask) in enumerate(sorted(keys), begin):
            found[block] = bytes(value ^ mask for value in values[place * width : (place + 1) * width])
    return b"".join(found)


def decode(payload, dtype, size, inner):
    """Return the bytes of a tensor; inner(payload, dtype, size) decodes a section."""
    block, found = SIZES[dtype], streams(dtype)
    one, ordered, *lengths = struct.unpack_from(f"<II{len(found)}Q", payload)
    assert one == 1
    place, out, words = 8 + 8 * len(found), bytearray(size), []
    for (kind, elements), length in zip(found, lengths, strict=True):
        section, raw = payload[place : place + length], size // block * len(elements)
        place += -(-length // 8) * 8
        values = section if length == raw else inner(section, kind, raw)
        if kind == "U16":
            values = (np.frombuffer(values, "<u2") + (words[0] & 0xFFF0)).astype("<u2").tobytes()
        if kind in ("F16", "U16"):
            words.append(np.frombuffer(values, "<u2"))
        elif ordered:
            values = in_order(values, dtype, *words)
        for i, value in enumerate(values):
            below = 0
            for byte, bit, bits in elements[i % len(elements)]:
                out[i // len(elements) * block + byte] |= (value >> below & (1 << bits) - 1) << bit
                below += bits
    assert place == len(payload)
    return bytes(out)
