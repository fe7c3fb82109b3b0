"""A decoder of arrays, written from docs/format.md, section 25, one number at a time."""

import struct

from tests.references.naive_bytewise import NEXT, SQUASH, START, STRETCH, Coder, clamp, learn_map, mix, squash
from tests.references.naive_mixing import Mixer
from tests.references.naive_opened import Bytes

U64 = 2**64 - 1
FAR = 2**60
POWERS = [4096, 3922, 3756, 3597, 3444, 3298, 3158, 3025, 2896, 2774, 2656, 2543, 2435, 2332, 2233, 2139]


def wrap(number: int) -> int:
    """Return a number as a signed one of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def distance(a: int, b: int) -> int:
    return min(max(a - b, -FAR), FAR)


def decode(payload: bytes, length: int) -> bytes:
    """Return the raw bytes of a payload."""
    return _decimals(Bytes(payload[1:]), length) if payload[0] == 2 else _numbers(payload, length)


def _decimals(file: Bytes, length: int) -> bytes:
    """Return the raw bytes of floats that are stored as whole numbers."""
    flags, prefix, columns = file.byte(), file.varint(), file.byte()
    digits = file.take(columns)
    width, size, order = (2, 4, 8)[flags & 3], (2, 4, 8)[flags >> 3 & 3], "><"[not flags >> 2 & 1]
    missing, marks = b"", [None] * columns
    if flags >> 5:
        missing = file.take(width)
        marks = [-(n >> 1) if n & 1 else n >> 1 for n in (file.varint() for _ in range(columns))]
    others, place = {}, -1
    for _ in range(file.varint()):
        place += 1 + file.varint()
        others[place] = file.take(width)
    count, rest = divmod(length - prefix, width)
    data = _numbers(file.take(file.rest), prefix + rest + count * size)
    floats = []
    for i in range(count):
        begin = prefix + rest + i * size
        number = int.from_bytes(data[begin : begin + size], "little", signed=True)
        value = struct.pack(order + ("f" if width == 4 else "d"), number / 10.0 ** digits[i % columns])
        floats.append(others.get(i, missing if number == marks[i % columns] else value))
    return data[:prefix] + b"".join(floats) + data[prefix : prefix + rest]


def _numbers(payload: bytes, length: int) -> bytes:
    file = Bytes(payload)
    full, flags, columns, prefix = file.byte(), file.byte(), file.byte(), file.varint()
    across = file.varint() if flags >> 5 else 0
    width, kind, big = (2, 4, 8)[flags & 3], flags >> 2 & 3, flags >> 4 & 1
    count = (length - prefix) // width
    array = Array(full, width, columns, count, across)
    array.coder = Coder(file.take(file.rest))
    first, last = array.bytes(prefix), array.bytes(length - prefix - count * width)
    body, half = b"", 2 ** (8 * width - 1)
    for _ in range(count):
        number = array.number()
        if kind == 0:
            number += half
        elif kind == 2 and number < 0:
            number ^= half - 1
        body += (number % (2 * half)).to_bytes(width, "big" if big else "little")
    return first + body + last


class Array:
    """The model of an array, and its numbers so far."""

    def __init__(self, full: int, width: int, columns: int, count: int, across: int):
        self.full, self.width, self.bits, self.columns = full, width, 8 * width, columns
        self.predictions, self.of_numbers, self.of_bytes = (7, 5, 6) if full else (4, 1, 3)
        self.across = across
        if across:
            self.predictions, self.of_numbers, self.of_bytes = (12, 6, 8) if full else (6, 1, 4)
        contexts, slot_bits = self.of_numbers + self.of_bytes, 20 if full else 18
        self.line_bits = min(max((count * width * contexts // 4).bit_length(), 8), slot_bits)
        self.numbers = [0] * 257
        self.logs = [[[16 << 16, 16 << 16] for _ in range(self.predictions)] for _ in range(columns)]
        self.drifts = [0] * columns
        self.slots: dict[int, list[list[int]]] = {}
        self.maps = [list(START) for _ in range(contexts)]
        self.entries: dict[tuple[object, ...], int] = {}
        self.mixer = Mixer(5)
        self.coder = Coder(b"")

    # 25.1

    def bytes(self, size: int) -> bytes:
        done, before = bytearray(), 0
        for _ in range(size):
            node = 1
            for _ in range(8):
                entry = ("bytes", before, node)
                holder = [self.entries.get(entry, 2**31)]
                bit = self.coder.decode(max(holder[0] >> 10, 1) << 10)
                learn_map(holder, 0, bit, 250)
                self.entries[entry] = holder[0]
                node = 2 * node + bit
            before = node - 256
            done.append(before)
        return bytes(done)

    def number(self) -> int:
        """Decode the next number."""
        self.column = (len(self.numbers) - 257) % self.columns
        self._predict()
        self.at, self.place = -(2 ** (self.bits - 1)), self.bits - 1
        self.below, self.upto = [0] * self.predictions, [2**32] * self.predictions
        whole = self._of_numbers()
        prefix = 1
        for byte in reversed(range(self.width)):
            single = self._of_bytes(byte, prefix)
            partial = 1
            for shift in range(7, -1, -1):
                if shift in (7, 3):
                    found = [self._slot(mix(h, prefix & U64)) for h in whole]
                    found += [self._slot(mix(h, partial)) for h in single]
                    node = 1
                bit = self._code(byte, partial, found, node)
                partial, prefix, node = 2 * partial + bit, 2 * prefix + bit, 2 * node + bit
        self.numbers.append(self.at)
        self._learn()
        return self.at

    def _slot(self, h: int) -> list[int]:
        line = self.slots.setdefault((h >> 20) % (1 << self.line_bits), [[0] * 16 for _ in range(4)])
        check = h >> 8 & 255
        for slot in line:
            if slot[0] == check:
                return slot
        slot = min(line, key=lambda one: one[1])
        slot[:] = [check] + [0] * 15
        return slot

    # 25.2

    def _predict(self) -> None:
        n, step = self.numbers, self.columns
        a, b, c = n[-step], n[-2 * step], n[-3 * step]
        v = [a, 2 * a - b, a + (self.drifts[self.column] >> 5)]
        v.append(a + n[-1] - n[-1 - step] if step > 1 else (a >> 1) + (b >> 2) + (c >> 2))
        if self.full:
            v += [3 * a - 3 * b + c, (a >> 1) + (b >> 1), b]
        self.up = a
        if self.across:
            i, p, q, t = len(n) - 257, a, a, a
            if i >= self.across:
                self.up = t = n[-self.across]
                p = n[-self.across - step]
                q = n[-self.across + step]
            if i >= 2 * self.across:
                t = n[-2 * self.across]
            u = self.up
            v += [u, a + u - p]
            if self.full:
                v += [(a >> 1) + (u >> 1), (a >> 1) + (u >> 2) + (q >> 2), 2 * u - t]
        edge = 2 ** (self.bits - 1)
        self.v = [wrap(value) if self.bits == 64 else min(max(value, -edge), edge - 1) for value in v]
        logs = [sum(both) for both in self.logs[self.column]]
        self.scales = [log >> 13 for log in logs]
        self.best = logs.index(min(logs))

    def _learn(self) -> None:
        number = self.numbers[-1]
        for value, log in zip(self.v, self.logs[self.column], strict=True):
            x = 2 * abs(distance(number, value)) + 1
            n = x.bit_length() - 1
            new = (16 * n + ((x << 4 >> n) & 15)) << 12
            log[0] += (new - log[0]) >> 3
            log[1] += (new - log[1]) >> 6
        delta = wrap(number - self.numbers[-1 - self.columns])
        self.drifts[self.column] = wrap(self.drifts[self.column] + delta - (self.drifts[self.column] >> 5))

    # 25.3

    def _of_numbers(self) -> list[int]:
        n, step = self.numbers, self.columns
        a, b = n[-step] & U64, n[-2 * step] & U64
        h = [0, a, mix(a, b), n[-1] & U64, self.v[1] & U64] if self.full else [0]
        if self.full and self.across:
            h.append(self.up & U64)
        return [mix(one, k << 8 | self.column) for k, one in enumerate(h)]

    def _of_bytes(self, byte: int, prefix: int) -> list[int]:
        n, step, shift = self.numbers, self.columns, 8 * byte
        a, before = n[-step], prefix & 255
        near, same = (a & U64) >> shift & 255, 0
        if byte < 7 and ((self.at & U64) ^ (a & U64)) >> (shift + 8) == 0:
            same = 1
        h = [byte, 2 * near + same, before]
        if self.full:
            b = (n[-2 * step] & U64) >> shift & 255
            h += [before << 8 | near, b << 8 | near, 2 * ((self.v[self.best] & U64) >> shift & 255) + same]
        if self.across:
            over = (self.up & U64) >> shift & 255
            h += [over << 8 | before, over << 8 | near] if self.full else [over << 8 | near]
        return [mix(one << 8 | byte, k << 8 | self.column) for k, one in enumerate(h, self.of_numbers)]

    # 25.4

    def _share(self, k: int, middle: int) -> int:
        d, s = 2 * distance(middle, self.v[k]) - 1, self.scales[k] >> 4
        if abs(d) >> (s + 5) > 0:
            return squash(65535 if d > 0 else -65535)
        if s > 40:
            d, s = d >> (s - 40), 40
        return squash(clamp(((d << 12) >> s) * POWERS[self.scales[k] & 15] >> 12))

    def _code(self, byte: int, partial: int, slots: list[list[int]], node: int) -> int:
        histories = [slot[node] for slot in slots]
        inputs = [STRETCH[self.maps[k][h] >> 20] if h else 0 for k, h in enumerate(histories)]
        middle = self.at + 2**self.place
        logits, curves, places, learned, shares = [], [], [], [], []
        for k, value in enumerate(self.v):
            share = min(max(self._share(k, wrap(middle)), self.below[k]), self.upto[k])
            shares.append(share)
            logits.append(STRETCH[((self.upto[k] - share + 1) << 12) // (self.upto[k] - self.below[k] + 2)])
            bucket = min(max((logits[-1] + 16384) >> 9, 0), 63)
            width = min(max(self.place + 7 - (self.scales[k] >> 4), 0), 15)
            start = min(max(SQUASH[1040 + 32 * bucket] >> 10, 2**8), 2**22 - 2**8) << 10 | 30
            learned.append(("curve", k, width, bucket))
            curves.append(STRETCH[self.entries.setdefault(learned[-1], start) >> 20])
            d = distance(wrap(middle), value)
            n = abs(d).bit_length()
            leading = (abs(d) >> (n - 3) if n > 3 else abs(d) << (3 - n)) & 3
            learned.append(("place", k, self.place, d > 0, min(max(n - self.place + 9, 0), 17), leading))
            places.append(STRETCH[self.entries.setdefault(learned[-1], 2**31) >> 20])
            if k == self.best:
                chosen = width, bucket
        inputs += [*logits, *curves, *places, 1024]
        bit = self._mix(inputs, byte, partial, *chosen)
        for slot, history, one in zip(slots, histories, self.maps, strict=True):
            slot[node] = NEXT[bit][slot[node]]
            learn_map(one, history, bit, 1023)
        for entry in learned:
            holder = [self.entries[entry]]
            learn_map(holder, 0, bit, 1023)
            self.entries[entry] = holder[0]
        if bit:
            self.below = shares
        else:
            self.upto = shares
        self.at += bit << self.place
        self.place -= 1
        return bit

    def _mix(self, inputs: list[int], byte: int, partial: int, width: int, bucket: int) -> int:
        rows = [64 * width + bucket, 256 * byte + partial]
        if self.full:
            rows += [4 * self.place + min(self.column, 3), 16 * self.best + width]
        n, p = self.of_numbers + self.of_bytes, self.predictions
        first = [2048] * n + [65536 // (3 * p)] * (3 * p) + [0]
        keys = (0, 256 * byte + partial), (1, 64 * width + bucket)
        return self.mixer.decode(self.coder, inputs, rows, first, self.place, keys)
