"""Decode by sections 4 and 5 of docs/format.md in plain Python, as far as levels 4 to 6 use them.

It is written from the text alone.
"""

from decimal import Decimal, localcontext
from functools import cache

U64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


# 5.2 and 5.3: tables and hashes.


@cache
def logistic_tables():
    """Return SQUASH and STRETCH."""
    with localcontext() as context:
        context.prec = 50
        upper = [int(2**32 * power / (1 + power)) for power in ((Decimal(i) / 128).exp() for i in range(2049))]
        squash_table = [2**32 - p for p in upper[:0:-1]] + upper
        logarithm = [Decimal(2 * i + 1).ln() for i in range(4096)]
        half = [round(4096 * (logarithm[4095 - i] - logarithm[i])) for i in range(2048)]
    return squash_table, [-x for x in half] + half[::-1]


SQUASH, STRETCH = logistic_tables()
CLASSES = {12: range(256), 1: range(32), 0: [0], 2: b"\t ", 3: b"\r\n", 4: b"0123456789", 5: b"([{<", 6: b")]}>"}
CLASSES |= {7: b"\"'`", 8: b".,;:!?", 9: b"=+-*/&|^%", 10: range(65, 91), 11: range(97, 123)}
CLASSES |= {13: range(128, 192), 14: range(192, 255), 15: [255]}
CLASS_OF = {c: number for number, members in CLASSES.items() for c in members}


def clamp(x):
    return min(max(x, -65535), 65535)


def squash(x):
    i, f = (x + 65536) >> 5, (x + 65536) & 31
    return (SQUASH[i] * (32 - f) + SQUASH[i + 1] * f) >> 5


def mix(a, b):
    h = (a + b * 0xD6E8FEB86659FD93 + 0x51ED27) * GOLDEN & U64
    return h ^ (h >> 29)


# 5.6 and 5.7: bit histories and adaptive maps.


def forget(c):
    return min(c, 2) if c <= 3 else 3 if c <= 5 else 4 if c <= 9 else 5 if c <= 20 else 6


def successor(history, bit):
    zeros, ones, latest = history
    if zeros == 0 or ones == 0:
        latest = "0" * zeros + "1" * ones
    count = [zeros, ones]
    count[bit] += 1
    count[1 - bit] = forget(count[1 - bit])
    while max(count) > [60, 40, 12, 6, 5, 5][min(count)]:
        count[0 if count[0] >= count[1] else 1] -= 1
    if 0 in count:
        return (*count, "")
    seen = latest + str(bit)
    return (*count, seen if len(seen) == sum(count) <= 3 else seen[-1])


@cache
def history_tables():
    """Return NEXT[bit][history] and START[history]."""
    reached = [(0, 0, "")]
    for history in reached:
        reached += [s for s in (successor(history, 0), successor(history, 1)) if s not in reached]
    reached.sort(key=lambda h: (h[0] + h[1], *h))
    number = {history: i for i, history in enumerate(reached)}
    start = [((10 * h[1] + 4) * (2**22 - 1) // (10 * (h[0] + h[1]) + 8)) << 10 for h in reached]
    return [[number[successor(h, bit)] for h in reached] for bit in (0, 1)], start


NEXT, START = history_tables()


def learn_map(entries, i, bit, limit):
    count, p = entries[i] & 1023, entries[i] >> 10
    target = 2**22 - 1 if bit else 0
    p += ((target - p) * (655360 // (10 * count + 16))) >> 16
    entries[i] = p << 10 | (count + 1 if count < limit else count)


# 4: the arithmetic coder.


class Coder:
    def __init__(self, coded):
        self.coded, self.at = coded, 8
        self.code, self.width = int.from_bytes(coded[:8].ljust(8, b"\0"), "big"), U64

    def decode(self, p):
        ones = (self.width >> 32) * p
        bit = int(self.code < ones)
        if bit:
            self.width = ones
        else:
            self.width -= ones
            self.code -= ones
        while self.width < 2**56:
            self.code = self.code << 8 | (self.coded[self.at] if self.at < len(self.coded) else 0)
            self.width <<= 8
            self.at += 1
        return bit


class Matches:
    """A match model (5.8)."""

    def __init__(self, least, size):
        self.least, self.bits = least, min(max(size.bit_length(), 8), 22)
        self.pointer = self.length = self.misses = self.expected = 0
        self.entry, self.table, self.map = None, {}, [(3 << 20) << 10] * 512
        self.end = None  # of data, in tokenwise blocks

    def inputs(self, partial, shift):
        """Return the logit, the tilt and the new `found`."""
        self.entry = None
        if self.expected >> (shift + 1) != partial:
            return 0, 0, 0
        e, at = self.expected >> shift & 1, self.length
        at = at if at < 16 else 16 + ((at - 16) >> 2) if at < 32 else 20 + min((at - 32) >> 5, 10) if at < 512 else 31
        self.entry = 16 * at + (self.misses & 15)
        p = self.map[self.entry] >> 20
        sign = 1 if e else -1
        return sign * STRETCH[p], sign * 2 * (p - 2048), 2 * (1 + min(at >> 2, 6)) + e

    def update_bit(self, bit, shift):
        if self.entry is not None:
            hit = self.expected >> shift & 1 == bit
            learn_map(self.map, self.entry, hit, 255)
            if not hit:
                self.length, self.misses = 0, self.misses << 1 | 1

    def update_byte(self, data):
        i = len(data) - 1
        if self.pointer > 0:
            if data[self.pointer] == data[i]:
                self.length += 1
                self.misses = 0 if self.length >= 16 else self.misses
            self.pointer += 1
            if self.misses & 255 == 255 or self.pointer == self.end:
                self.pointer = self.length = self.misses = 0
        if i + 1 >= -(-self.least // 8) * 8:
            h = 0
            for j in range(0, self.least, 8):
                latest = bytes(data[i - j - min(8, self.least - j) + 1 : i - j + 1])
                h = h + int.from_bytes(latest, "little") & U64
                h = (h ^ h >> 32) * GOLDEN & U64
            row = h >> 40 & ((1 << self.bits) - 1)
            candidate, length = self.table.get(row, 0), 0
            if self.length < self.least and candidate > 0:
                while length < min(400, candidate) and data[candidate - 1 - length] == data[i - length]:
                    length += 1
                if length >= self.least:
                    self.pointer, self.length, self.misses = candidate, length, 0
            self.table[row] = i + 1
