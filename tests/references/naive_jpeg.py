"""Decode the coefficients of a JPEG image by section 23 of docs/format.md, one number at a time.

It is written from the text alone. What T.81 says of headers is read by the package.
"""

import io
import re
from decimal import Decimal

import numpy as np

from squeeze.codecs.jpeg.frame import parse
from squeeze.system.binary import read_varint
from tests.references.naive_bytewise import GOLDEN, SQUASH, STRETCH, U64, Coder, clamp, learn_map, mix, squash
from tests.references.naive_levels import FORMAT, Decoder

_ZIGZAG = sorted(range(64), key=lambda i: (i // 8 + i % 8, i // 8 if (i // 8 + i % 8) % 2 else -(i // 8)))


def known():
    """Return the bytes that models read before a header."""
    digits = re.search(r"^before\n([0-9a-f\n]+)\nafter\n([0-9a-f\n]+)\n", FORMAT.read_text(), re.M).groups()
    before, after = (bytes.fromhex(text.replace("\n", "")) for text in digits)
    return before + srgb_curve()[12:] + after


def srgb_curve():
    """Return the curve of sRGB with its tag."""
    curve = []
    for i in range(1024):
        v = Decimal(i) / 1023
        power = ((v + Decimal("0.055")) / Decimal("1.055")) ** Decimal("2.4")
        light = v / Decimal("12.92") if v <= Decimal("0.04045") else power
        curve.append(int(light * 65535 + Decimal("0.5")))
    return bytes.fromhex("637572760000000000000400") + b"".join(value.to_bytes(2, "big") for value in curve)


class _Read:
    """Bits that are known, in the place of a coder."""

    def __init__(self, data):
        self.bits = (byte >> 7 - k & 1 for byte in data for k in range(8))

    def decode(self, p):
        return next(self.bits)


def _log(n):
    n = min(n, 8191)
    b = n.bit_length()
    return 2 * b - 1 + (n >> max(b - 2, 0) & 1) if n else 0


def _slog(n):
    return _log(n) if n >= 0 else -_log(-n)


def _c(n, m):
    return min(max(n, -m), m)


def _scale(n):
    return 256 if n else 181


class _Bits:
    """The model of bits (23.4)."""

    def __init__(self, coded, blocks):
        self.coder, self.bits = Coder(coded), min(max((100 * blocks).bit_length(), 12), 20)
        self.tables, self.apm = [{} for _ in range(16)], {}
        self.weights = np.full((4, 2048, 18), 8192, np.int64)
        self.final = np.full((2048, 4), 16384, np.int64)

    def start(self, base, contexts, choices, x, y):
        found = [(*context, 0, 0, 0)[:3] for context in contexts]
        packed = [(a + 2048) << 24 | (b + 2048) << 12 | (c + 2048) for a, b, c in found]
        bases = base if isinstance(base, list) else [base] * 16
        self.hashes = [mix(16 * own + i, value) for i, (own, value) in enumerate(zip(bases, packed, strict=True))]
        self.choices, self.x, self.y = choices, x, y

    def _refine(self, row, x):
        i, f = (x + 65536) >> 12, (x + 65536) & 4095
        return (row[i] * (4096 - f) + row[i + 1] * f) >> 12

    def bit(self, kind, node, first=None):
        choices = self.choices if first is None else [first, *self.choices[1:]]
        salt = node * 0xD6E8FEB86659FD93
        places = [((h + salt) * GOLDEN & U64) >> 40 & (1 << self.bits) - 1 for h in self.hashes]
        entries = [table.setdefault(place, 1 << 31) for table, place in zip(self.tables, places, strict=True)]
        inputs = [STRETCH[e >> 20] * (512 * (e & 1023) // (2 * (e & 1023) + 3)) >> 8 for e in entries] + [1024, 0]
        inputs = np.array(inputs, np.int64)
        rows = [self.weights[t, 256 * kind + choices[t]] for t in range(4)]
        final = self.final[256 * kind + choices[0]]
        logits = [clamp(int(row @ inputs) >> 16) for row in rows]
        logit = clamp(int(final @ np.array(logits)) >> 16)
        mixed = squash(logit)
        numbers = mix(node, self.x) >> 48, 65536 + (mix(node, self.y) >> 48)
        fresh = [min(SQUASH[128 * j], 2**32 - 1) for j in range(33)]
        apms = [self.apm.setdefault(number, list(fresh)) for number in numbers]
        p = (2 * mixed + sum(self._refine(apm, logit) for apm in apms)) >> 2
        bit = self.coder.decode(min(max(p, 1), 2**32 - 1))
        target = 2**32 - 1 if bit else 0
        for apm in apms:
            i = (logit + 65536 + 2048) >> 12
            apm[i] += (target - apm[i]) >> 6
        for row, own in zip(rows, logits, strict=True):
            row[:] += (((target - squash(own)) >> 16) * 20 * inputs + 2**21) >> 22
        final += (((target - mixed) >> 16) * 4 * np.array(logits) + 2**21) >> 22
        for table, place in zip(self.tables, places, strict=True):
            learn_map(table, place, bit, 255)
        return bit

    def number(self):
        if not self.bit(0, 0):
            return 0
        negative, size = self.bit(1, 1), 0
        while size < 20 and self.bit(2 + min(size, 2), 2 + 32 * negative + size):
            size += 1
        v = 1
        for i in range(size):
            p = v if i < 2 else 4 + min(i - 2, 3)
            v = 2 * v + self.bit(5, 64 + 8 * (32 * negative + size) + p)
        return -v if negative else v

    def count(self):
        node = 1
        for _ in range(6):
            node = 2 * node + self.bit(6, 4096 + node, self.choices[0] + node)
        return node - 64


class _Coefficients:
    def __init__(self, frame, coded):
        self.frame, self.bits = frame, _Bits(coded, frame.blocks)
        self.q = [[0] * 64 for _ in range(frame.blocks)]
        self.counts, self.residuals = [0] * frame.blocks, [0] * frame.blocks
        self.signed = {(chroma, k): [4096] * 10 for chroma in (0, 1) for k in range(64)}
        self.unsigned = {(chroma, k): [6000] * 12 for chroma in (0, 1) for k in range(64)}

    def decode(self):
        for index, component in enumerate(self.frame.components):
            self.step = [max(int(step), 1) for step in component.steps]
            self.chroma = int(index in (1, 2))
            before = self.frame.components[index - 1] if index else None
            for y in range(component.high):
                for x in range(component.wide):
                    self._block(component, before, y, x)
        return self.q

    def _block(self, component, before, y, x):
        i = self.i = component.first + y * component.wide + x
        self.left, self.up = i - 1 if x else None, i - component.wide if y else None
        self.corner = i - component.wide - 1 if x and y else None
        self.next = i - component.wide + 1 if y and x + 1 < component.wide else None
        self.other = None
        if before:
            self.other = (
                before.first + y * before.high // component.high * before.wide + x * before.wide // component.wide
            )
        self.upper, self.side = [0] * 8, [0] * 8
        self._first()
        room = self.counts[i] = self._count()
        self._add(0)
        last, sizes = [0, 0], 0
        for k in range(1, 64):
            if not room:
                break
            value = self.q[i][_ZIGZAG[k]] = self._other(k, room, last, _log(sizes))
            self._add(_ZIGZAG[k])
            room, sizes, last = room - (value != 0), sizes + abs(value), [value, last[0]]

    def _add(self, place):
        v, u = divmod(place, 8)
        pixels = self.q[self.i][place] * self.step[place]
        self.upper[u] += _scale(v) * pixels
        self.side[v] += _scale(u) * pixels

    def _at(self, block, place):
        return 0 if block is None else self.q[block][place]

    def _count_of(self, block):
        return 0 if block is None else self.counts[block]

    def _below(self, block, u):
        places = [8 * v + u for v in range(8)]
        return sum((-1) ** v * _scale(v) * self._at(block, p) * self.step[p] for v, p in enumerate(places))

    def _right(self, block, v):
        places = [8 * v + u for u in range(8)]
        return sum((-1) ** u * _scale(u) * self._at(block, p) * self.step[p] for u, p in enumerate(places))

    def _first(self):
        eu = _c(8 * self._below(self.up, 0) // (181 * self.step[0]), 1 << 17)
        el = _c(8 * self._right(self.left, 0) // (181 * self.step[0]), 1 << 17)
        a, b, d, e = (self._at(block, 0) for block in (self.up, self.left, self.corner, self.next))
        if self.up is None:
            eu, a = el, b
        if self.left is None:
            el, b = eu, a
        expected = (eu + el) >> 1
        both = self.up is not None and self.left is not None
        median = sorted((a, b, a + b - d))[1] if both else a
        spread = self.spread = _log(abs(a - b) + abs(b - d) + abs(a - d))
        edges, m = _slog(eu - el), _slog(8 * median - expected)
        around = self._count_of(self.up) + self._count_of(self.left)
        r = 0 if self.other is None else _c(self.residuals[self.other], 40)
        base = 1024 * self.chroma
        contexts = [
            *((edges,), (m,), (m, spread), (spread, expected & 7), (around,), (r,), (r, m), (edges, m)),
            *((_slog(8 * e - expected), m), (_slog(8 * (a + b - d) - expected), edges)),
            *((_slog(8 * a - expected), _slog(8 * b - expected)), (_slog(8 * b - expected), spread)),
            *((around >> 2, spread, self._count_of(self.other) >> 2), (), (), ()),
        ]
        choices = [64 * self.chroma, min(around >> 1, 63), spread, abs(edges)]
        self.bits.start(base, contexts, choices, base, base + 1 + abs(m))
        self.residuals[self.i] = self.bits.number()
        self.q[self.i][0] = ((expected + 4) >> 3) + self.residuals[self.i]

    def _count(self):
        a, b, c, o = (self._count_of(block) for block in (self.up, self.left, self.corner, self.other))
        if self.left is None:
            b = a
        if self.up is None:
            a = b
        d, r, base, spread = self._count_of(self.next), self.residuals[self.i], 1024 * self.chroma + 64, self.spread
        d = a if self.next is None else d
        contexts = [
            *(((a + b) >> 1,), (a, b >> 2), (b, a >> 2), (o, (a + b) >> 3), (d, a >> 1, c >> 3)),
            *(((a + b + c + d) >> 2, o >> 3), (_log(8 * abs(r)), (a + b) >> 2), (), (b, a), (spread, (a + b) >> 3)),
            *(((2 * a + 2 * b + c + d) // 3,), (o,), (_slog(8 * r), spread, o >> 3), (), (), ()),
        ]
        self.bits.start(base, contexts, [64 * self.chroma, (a + b) >> 1, o, spread], base, base + 1 + ((a + b) >> 1))
        return self.bits.count()

    def _other(self, k, room, last, energy):
        place = _ZIGZAG[k]
        v, u = divmod(place, 8)
        step, own = self.step[place], self.q[self.i]
        f = [0] * 10
        if self.up is not None:
            f[0] = 8 * (self._below(self.up, u) - self.upper[u]) // (_scale(v) * step)
        if self.left is not None:
            f[1] = 8 * (self._right(self.left, v) - self.side[v]) // (_scale(u) * step)
        f[2:7] = [8 * self._at(block, place) for block in (self.up, self.left, self.corner, self.next, self.other)]
        f[7:] = [8 * own[place - 8] if v else 0, 8 * own[place - 1] if u else 0, 8 * own[place - 9] if u and v else 0]
        f = [_c(value, 4000) for value in f]
        edge = f[1] if u == 0 else f[0] if v == 0 else (f[0] + f[1]) >> 1
        g = [*(abs(value) for value in f[2:]), abs(edge), 16, *(min(8 * abs(value), 4000) for value in last)]
        signed, unsigned = self.signed[self.chroma, k], self.unsigned[self.chroma, k]
        ours = sum(w * value for w, value in zip(signed, f, strict=True)) >> 16
        size = max(sum(w * value for w, value in zip(unsigned, g, strict=True)) >> 16, 0)
        around, inner = _log((13 * (g[0] + g[1]) + 6 * (g[2] + g[3])) >> 5), _log((2 * (g[5] + g[6]) + g[7]) >> 3)
        e, o, s = _slog(edge), _slog(ours), _log(size)
        chroma = 1024 * self.chroma
        base = chroma + 128 + k
        contexts = [
            *((_c(f[0] >> 1, 200),), (_c(f[1] >> 1, 200),), (_c(f[7] >> 3, 15), _c(f[8] >> 3, 15), _c(f[9] >> 3, 3))),
            *((_c(f[6] >> 3, 20), e), (around, e), (inner, around, room >> 2), (_c(ours, 500),), (o, s), (s, room)),
            *((s, _slog(f[0]), _slog(f[1])), (around, _c((f[2] + f[3]) >> 3, 60)), (_log(g[0]), _log(g[1]), inner)),
            *((o, room, energy), (o, s), (s, room), (around, inner, room >> 2)),
        ]
        bases = [base] * 13 + [chroma + 256] * 2 + [chroma + 320 + u + v]
        near = 64 * min(around >> 1, 3)
        choices = [64 * self.chroma + k, room + near, min(abs(e), 31) + near, min(s, 31) + 32 * min(abs(o) >> 2, 7)]
        self.bits.start(bases, contexts, choices, 64 * base + o + 32, 64 * base + s)
        value = self.bits.number()
        _adjust(signed, f, 8 * value - ours, 15)
        _adjust(unsigned, g, 8 * abs(value) - size, 14)
        return value


def _adjust(weights, inputs, error, rate):
    gain = (_c(error, 32767) << rate) // (64 + sum(value * value for value in inputs))
    for j, value in enumerate(inputs):
        weights[j] = _c(weights[j] + (gain * value >> 4), 1 << 24)


def decode(payload, header=None):
    """Return the header, (padding, tail) of each scan, and the coefficients of each block.

    A header that is given is not decoded.
    """
    file = io.BytesIO(payload)
    inner = []
    for _ in range(read_varint(file)[0]):
        gap, _, size = (read_varint(file)[0] for _ in range(3))
        inner.append((gap, file.read(size)))
    size, coded = read_varint(file)[0], read_varint(file)[0]
    rest = file.read(coded or size)
    if header:
        rest = header
    elif coded:
        first = known()
        read, coder, models = _Read(first), Coder(rest), Decoder(3, "other", 0, len(first) + size)
        for _ in first:
            models.byte(read)
        for _ in range(size):
            models.byte(coder)
        rest = bytes(models.data)[len(first) :]
    assert not inner  # an inner image is decoded in the same way
    frame = parse(rest)
    tails = []
    for _ in frame.scans:
        size, padding = divmod(read_varint(file)[0], 2)
        tails.append((padding, file.read(size)))
    return rest, tails, _Coefficients(frame, file.read()).decode()
