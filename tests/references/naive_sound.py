"""A decoder of sounds, written from docs/format.md, section 24, one number at a time."""

from typing import Any

import numpy as np

from tests.references.naive_bytewise import NEXT, SQUASH, START, STRETCH, Coder, Matches, clamp, learn_map, mix, squash
from tests.references.naive_mixing import Mixer
from tests.references.reading import Bytes

SQUARES = {0: [(16, 6, 9, 16)], 1: [(32, 12, 9, 4), (16, 8, 5, 2), (128, 32, 9, 32)]}
CASCADE = {0: [(16, 6)], 1: [(512, 4), (256, 6), (32, 5), (16, 4)]}
U64 = 2**64 - 1


def wrap(number: int) -> int:
    """Return a number as a signed one of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def limit(number: int, most: int) -> int:
    return min(max(number, -most), most)


def decode(payload: bytes, length: int) -> bytes:
    """Return the raw bytes of a payload."""
    file = Bytes(payload)
    full, flags = file.byte(), file.byte()
    width, channels, prefix = (flags >> 2 & 3) + 1, (flags >> 4) + 1, file.varint()
    count = (length - prefix) // width
    sound = Sound(full, width, channels, count)
    sound.coder = Coder(file.take(file.rest))
    first, last = sound.bytes(prefix), sound.bytes(length - prefix - count * width)
    body, half = b"", 2 ** (8 * width - 1)
    for _ in range(count):
        sample = sound.sample()
        order = "big" if flags & 1 else "little"
        body += (sample + half if flags & 2 else sample % 2 ** (8 * width)).to_bytes(width, order)
    return first + body + last


class Squares:
    """Least squares of one channel. Numbers of 64 bits wrap, as numpy's do."""

    def __init__(self, size: int, rate: int, solve: int, down: int, fine: int, ridge: int):
        self.size, self.rate, self.solve, self.down, self.fine, self.ridge = size, rate, solve, down, fine, ridge
        self.sums = np.zeros((size, size), np.int64)
        self.products, self.factors, self.x = (np.zeros(size, np.int64) for _ in range(3))

    def estimate(self, x: list[int]) -> int:
        self.x = np.array(x)
        return int(self.x @ self.factors)

    def learn(self, sample: int, number: int) -> None:
        x, y = self.x >> self.down, sample >> self.down
        scaled = x << self.fine
        self.sums += scaled[:, None] * x - (self.sums >> self.rate)
        self.products += scaled * y - (self.products >> self.rate)
        if number % self.solve == 0:
            self._solve()

    def _solve(self) -> None:
        n = self.size
        low, scaled, work = np.zeros((n, n), np.int64), np.zeros((n, n), np.int64), np.zeros(n, np.int64)

        def dot(values: Any, factors: Any) -> int:
            return int((values * (factors >> 20) + (values * (factors & 0xFFFFF) >> 20)).sum())

        for i in range(n):
            for j in range(i):
                d = int(scaled[j, j])
                value = int(self.sums[i, j] >> self.rate) - (dot(scaled[i, :j], low[j, :j]) >> 20)
                scaled[i, j], whole = value, wrap(value << 20) // d
                rest = wrap(wrap(wrap(value << 20) - whole * d) << 20) // d
                low[i, j] = (whole << 20) + rest
            total = dot(scaled[i, :i], low[i, :i]) >> 20
            scaled[i, i] = max(int(self.sums[i, i] >> self.rate) + self.ridge - total, self.ridge)
            work[i] = int(self.products[i] >> self.rate) - (dot(work[:i], low[i, :i]) >> 20)
        for i in reversed(range(n)):
            d, last = int(scaled[i, i]), int(work[i])
            whole = wrap(last << 20) // d
            rest = wrap(wrap(wrap(last << 20) - whole * d) << 24) // d
            total = wrap((whole << 24) + rest - dot(self.factors[i + 1 :], low[i + 1 :, i]))
            self.factors[i] = limit(total >> 20, 2**34)


class Stage:
    """A stage of the cascade of one channel. Numbers of 64 bits wrap, as numpy's do."""

    def __init__(self, taps: int, rate: int, keep: int):
        self.taps, self.rate, self.keep = taps, rate, keep
        self.latest, self.weights, self.output = np.zeros(taps, np.int64), np.zeros(taps, np.int64), 0

    def estimate(self) -> int:
        self.output = (int(self.latest @ self.weights) >> 16) << self.keep
        return self.output

    def learn(self, rest: int) -> int:
        """Return what is left."""

        def reduced(value: int) -> int:
            return limit(value >> (4 + self.keep), 2**22 - 1)

        power = int(self.latest @ self.latest) + 16 * self.taps
        step = limit((reduced(rest - self.output) << 36) // power, 2**38) >> self.rate
        self.weights = (self.weights + (step * self.latest >> 16)).clip(-(2**30), 2**30)
        self.latest = np.append(self.latest[1:], reduced(rest))
        return rest - self.output


class Channel:
    """The state of the predictions of one channel."""

    def __init__(self, full: int, width: int, channels: int, predictions: int):
        bits = 8 * width
        fine, down, keep = 41 - 2 * (min(bits, 20) - 1), max(bits - 20, 0), max(bits - 16, 0)
        ridge = 2**fine >> 4 if bits <= 16 else 2**fine << 4
        self.others = [other if channels > 1 else 0 for _, other, _, _ in SQUARES[full]]
        self.squares = [Squares(size, rate, solve, down, fine, ridge) for size, _, rate, solve in SQUARES[full]]
        self.stacks = [Squares(size, 8, 1, 0, 11, 2**11) for size in (2, 8)] if full else []
        self.stages = [Stage(taps, rate, keep) for taps, rate in CASCADE[full]]
        self.misses = [[2**bits] * 2 for _ in range(predictions)]
        self.patterns, self.recent = [2**bits] * 256, 0


class Sound:
    """The model of a sound, and its samples so far."""

    def __init__(self, full: int, width: int, channels: int, count: int):
        self.full, self.width, self.bits, self.keep = full, width, 8 * width, max(8 * width - 16, 0)
        self.predictions, self.contexts = (10, 12) if full else (3, 2)
        self.channels = [Channel(full, width, channels, self.predictions) for _ in range(channels)]
        self.samples, self.data = [0] * 1024, [0] * 8
        slot_bits = 20 if full else 18
        self.line_bits = min(max((count * width * self.contexts // 4).bit_length(), 8), slot_bits)
        self.slots: dict[int, list[list[int]]] = {}
        self.maps = [list(START) for _ in range(self.contexts)]
        self.matches = [Matches(16, count * width)] if full else []
        self.entries: dict[tuple[object, ...], int] = {}
        self.mixer = Mixer(6)
        self.coder = Coder(b"")
        self.before = 0

    # 24.1

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

    def sample(self) -> int:
        """Decode the next sample."""
        i = len(self.samples) - 1024
        self.second, self.channel = i % len(self.channels) > 0, self.channels[i % len(self.channels)]
        self._predict()
        hashes = self._hashes()
        number = i % len(self.channels)
        hashes = [mix(h & U64, k << 8 | number) for k, h in enumerate(hashes[: self.contexts])]
        self.at, self.shift = -(2 ** (self.bits - 1)), self.bits - 1
        self.below, self.upto = [0] * self.predictions, [2**32] * self.predictions
        prefix = 1
        for _ in range(self.width):
            for match in self.matches:
                match.expected = self.data[match.pointer] + 256 if match.pointer > 0 else 0
            partial = 1
            for shift in range(7, -1, -1):
                if shift in (7, 3):
                    found = [self._slot(mix(h, prefix)) for h in hashes]
                    node = 1
                bit = self._code(partial, shift, found, node)
                partial, prefix, node = 2 * partial + bit, 2 * prefix + bit, 2 * node + bit
            self.data.append(partial & 255)
            for match in self.matches:
                match.update_byte(self.data)
        self.samples.append(self.at)
        self._learn(i // len(self.channels))
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

    # 24.2

    def _limit(self, value: int) -> int:
        most = 2 ** (self.bits + 7)
        return min(max(value, -most), most - 1)

    def _reduced(self, value: int) -> int:
        return limit(value >> (4 + self.keep), 32767)

    def _stack(self, number: int, values: list[int]) -> int:
        stack = self.channel.stacks[number]
        total = stack.estimate([self._reduced(value - values[0]) for value in values[1:]])
        return self._limit(values[0] + (total >> 20 << self.keep))

    def _predict(self) -> None:
        c, step = self.channel, len(self.channels)
        own, other = self.samples[-step::-step], self.samples[-1::-step]
        direct = []
        for squares, n in zip(c.squares, c.others, strict=True):
            direct.append(self._limit(squares.estimate(own[: squares.size - n] + other[:n]) >> 16))
        value = self.base = self._stack(0, direct) if self.full else direct[0]
        cascade = []
        for stage in c.stages:
            value = self._limit(value + stage.estimate())
            cascade.insert(0, value)
        linear = [self._limit((2 * own[0] - own[1]) << 8)] + [own[0] << 8] * self.full
        values = cascade + direct + linear
        self.v = [self._stack(1, values), *values] if self.full else values
        self.linear = len(self.v) - len(linear)
        self.pattern = c.recent & 255
        self.scale = []
        for k, (soon, late) in enumerate(c.misses):
            mean = ((soon >> 4) + (late >> 7)) >> 1 if k != self.linear else c.patterns[self.pattern] >> 3
            mean = max(mean, 24)
            if k == 0:
                self.span = min(mean.bit_length(), 31)
                self.ratio = sum(5 * (soon >> 4) > (2 + n) * (late >> 7) for n in range(7))
            self.scale.append((16 * mean, 1524246769571 // mean))

    def _learn(self, number: int) -> None:
        c, sample = self.channel, self.samples[-1]
        exact = sample << 8
        for k, value in enumerate(self.v):
            miss = abs(exact - value)
            soon, late = c.misses[k]
            c.misses[k] = [soon + miss - (soon >> 4), late + miss - (late >> 7)]
        rest = exact - self.base
        for stage in c.stages:
            rest = stage.learn(rest)
        if self.full:
            c.stacks[0].learn(self._reduced(exact - self.v[5]), number)
            c.stacks[1].learn(self._reduced(exact - self.v[1]), number)
        for squares in c.squares:
            squares.learn(sample, number)
        miss = abs(exact - self.v[self.linear])
        c.patterns[self.pattern] += miss - (c.patterns[self.pattern] >> 3)
        c.recent = 2 * c.recent + (miss <= 256)

    # 24.3

    def _hashes(self) -> list[int]:
        step, s, v = len(self.channels), self.samples, self.v
        a, b, c = (s[-step * n] % 2**64 for n in (1, 2, 3))
        other = s[-1] % 2**64 if step > 1 else 0
        span = max(self.span - 2, 0)
        h = [v[0] >> span, a]
        if self.full:
            h += [0, mix(a, b)]
            h += [mix(h[3], c), mix(other, 1), mix(a, other), (v[0] + 128) >> 8]
            h += [v[5] >> max(span - 1, 0), v[6] >> span, mix((2 * a - b) % 2**64, self.pattern)]
            h.append(mix(h[0] % 2**64, (v[5] >> span) % 2**64))
        return h

    # 24.4

    def _entry(self, start: int, *entry: object) -> int:
        return self.entries.setdefault(entry, start)

    def _code(self, partial: int, shift: int, slots: list[list[int]], node: int) -> int:
        histories = [slot[node] for slot in slots]
        inputs = [STRETCH[self.maps[k][h] >> 20] if h else 0 for k, h in enumerate(histories)]
        middle = ((self.at + 2**self.shift) << 8) - 128
        width = min(max(self.shift + 14 - self.span, 0), 15)
        shares, curves, direct, learned = [], [], [], []
        for k, value in enumerate(self.v):
            reach, inverse = self.scale[k]
            share = squash(clamp(limit(middle - value, reach) * inverse >> 28))
            share = min(max(share, self.below[k]), self.upto[k])
            shares.append(share)
            logit = STRETCH[((self.upto[k] - share + 1) << 12) // (self.upto[k] - self.below[k] + 2)]
            bucket = min(max((logit + 16384) >> 9, 0), 63)
            start = min(max(SQUASH[min(max(1040 + 32 * bucket, 0), 4096)] >> 10, 2**8), 2**22 - 2**8) << 10 | 30
            curves.append(STRETCH[self._entry(start, k, width, bucket) >> 20])
            direct.append(logit)
            learned.append((k, width, bucket))
        inputs += direct + curves
        found = 0
        for match in self.matches:
            logit, tilt, found = match.inputs(partial, shift)
            inputs += [logit, tilt]
        inputs.append(1024)
        bit = self._mix(inputs, width, learned[0][2], found)
        for slot, history, one in zip(slots, histories, self.maps, strict=True):
            slot[node] = NEXT[bit][slot[node]]
            learn_map(one, history, bit, 255)
        for entry in learned:
            holder = [self.entries[entry]]
            learn_map(holder, 0, bit, 1023)
            self.entries[entry] = holder[0]
        for match in self.matches:
            match.update_bit(bit, shift)
        if bit:
            self.below = shares
        else:
            self.upto = shares
        self.at += bit << self.shift
        self.shift -= 1
        return bit

    def _mix(self, inputs: list[int], width: int, bucket: int, found: int) -> int:
        rows = [(2 * width + self.second) * 2 + (found > 0), 8 * self.shift + self.ratio]
        if self.full:
            rows += [64 * width + bucket, 32 * found + self.shift, 16 * self.ratio + width, self.pattern]
        n, p = self.contexts, self.predictions
        first = [4096] * n + [65536 // (2 * p)] * (2 * p) + [0] * (len(inputs) - n - 2 * p)
        low = 64 * self.shift + (self.at >> self.shift + 1 & 63)
        keys = (0, 64 * width + bucket), (1, low)
        return self.mixer.decode(self.coder, inputs, rows, first, self.shift, keys)
