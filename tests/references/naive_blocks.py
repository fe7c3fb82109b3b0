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
    q4 = [[(16 + 32 * (j // 32) + 16 * k + j % 16, 4 * (j // 16 % 2), 4) for k in (0, 1)] for j in range(128)]
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
        "Q4_K": [half(0), half(2), scales(), minima(), ("U8", q4)],
        "Q5_K": [half(0), half(2), scales(), minima(), ("U8", q5)],
        "Q6_K": [half(208), whole(192, 207, "I8"), sixes()],
        "IQ4_XS": [half(0), ("U8", iq4), whole(8, 135)],
        "MXFP4": [whole(0, 0), whole(1, 16)],
    }
    return known.get(dtype) or [half(0), whole(2, SIZES[dtype] - 1)]


ZERO_POINTS = {"Q4_1": (7.5, 32, 255), "Q5_1": (15.5, 16, 31), "Q4_K": (7.5, 32, 255), "Q5_K": (15.5, 16, 31)}
PEAKS = {"Q4_0": (4, 1), "Q4_1": (4, 2), "Q5_0": (5, 1), "Q5_1": (5, 2), "Q8_0": (8, 1)}


def zero_points(dtype, words):
    """Return the zero point of each block, float32; words: the numbers of all streams before the codes."""
    scale, minimum = (np.asarray(word, "<u2").view("<f2").astype(np.float32) for word in words[:2])
    with np.errstate(all="ignore"):
        if dtype in ("Q4_K", "Q5_K"):
            scale = np.repeat(scale, 8) * np.asarray(words[2], np.float32)
            minimum = np.repeat(-minimum, 8) * np.asarray(words[3], np.float32)
        return -minimum / scale


def in_order(values, dtype, words):
    """Return codes in the order of their blocks."""
    zeros = zero_points(dtype, words) if dtype in ZERO_POINTS else None
    count = len(words[0]) if zeros is None else len(zeros)
    width, found = len(values) // count, [b""] * count
    for begin in range(0, count, 65536):
        keys = []
        for block in range(begin, min(begin + 65536, count)):
            if zeros is None:
                key, mask = (int(words[0][block]) & 0x7FFF) >> 7, 0
            else:
                middle, steps, every = ZERO_POINTS[dtype]
                with np.errstate(all="ignore"):
                    away = abs(zeros[block] - np.float32(middle)) * np.float32(steps)
                key, mask = int(away) if away < 255 else 255, every if zeros[block] > middle else 0
            keys.append((key, block, mask))
        for place, (_, block, mask) in enumerate(sorted(keys), begin):
            found[block] = bytes(value ^ mask for value in values[place * width : (place + 1) * width])
    return b"".join(found)


def with_peaks(places, rest, dtype):
    """Return the bytes of codes, with the peaks at their places."""
    bits, number = PEAKS[dtype]
    codes = [byte >> shift & 15 for byte in rest for shift in (0, 4)] if bits == 4 else list(rest)
    out = bytearray()
    for block in range(len(places) // number):
        one = codes[block * (32 - number) : (block + 1) * (32 - number)]
        for peak in reversed(range(number)):
            entry = places[block * number + peak]
            if bits == 8 and entry >= 64:
                one.append((entry - 160) % 256)
            elif bits < 8 and entry >= 32:
                one.append(entry - 32)
            else:
                one.append(0)
                code = (127 if entry < 32 else 129) if bits == 8 else (1 << bits) - 1 if peak else 0
                one[-1] = one[entry % 32]
                one[entry % 32] = code
        out += bytes(one[j] | one[j + 16] << 4 for j in range(16)) if bits == 4 else bytes(one)
    return bytes(out)


def decode(payload, dtype, size, inner):
    """Return the bytes of a tensor; inner(payload, dtype, size, scales) decodes a section."""
    block, found = SIZES[dtype], streams(dtype)
    one, flags = struct.unpack_from("<II", payload)
    assert one == 1
    blocks, kinds = size // block, [(kind, size // block * len(elements)) for kind, elements in found]
    if flags & 2:
        bits, number = PEAKS[dtype]
        codes = blocks * (32 - number)
        kinds[-1:] = [("U8", blocks * number), (kinds[-1][0], -(-codes // 2) if bits == 4 else codes)]
    lengths = struct.unpack_from(f"<{len(kinds)}Q", payload, 8)
    place, out, sections, words = 8 + 8 * len(kinds), bytearray(size), [], []
    for (kind, raw), length in zip(kinds, lengths, strict=True):
        section = payload[place : place + length]
        place += -(-length // 8) * 8
        scales = sections[0] if dtype == "Q8_0" and kind == "I8" else None
        sections.append(section if length == raw else inner(section, kind, raw, scales))
    assert place == len(payload)
    if flags & 2:
        rest = sections.pop()
        sections[-1] = with_peaks(sections[-1], rest, dtype)
    for (kind, elements), section in zip(found, sections, strict=True):
        values = section
        if kind == "U16":
            values = (np.frombuffer(values, "<u2") + (words[0] & 0xFFF0)).astype("<u2").tobytes()
        if flags & 1 and len(words) == len(found) - 1:
            values = in_order(values, dtype, words)
        words.append(np.frombuffer(values, "<u2" if kind in ("F16", "U16") else "u1"))
        for i, value in enumerate(values):
            below = 0
            for byte, bit, bits in elements[i % len(elements)]:
                out[i // len(elements) * block + byte] |= (value >> below & (1 << bits) - 1) << bit
                below += bits
    return bytes(out)
