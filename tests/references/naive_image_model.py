"""The model of images, written from docs/format.md, section 22, one number at a time."""

import re
from collections import defaultdict
from functools import cache
from operator import mul

from tests.references.naive_bytewise import NEXT, SQUASH, START, STRETCH, Coder, Matches, learn_map, mix
from tests.references.naive_image_nearby import Nearby
from tests.references.naive_mixing import Mixer

PREDICTIONS = """
W WW WWW N NN NNN NW NE NWW NEE NNW NNE NNWW NNEE NWWW NEEE NNNW NNNE WWWW

W+N-NW N+NE-NNE W N W/2+N/2+NE/4-NW/4 W+NE-N W/2+NE/2 2W-WW 2N-NN W+NW-NWW N+NW-NNW W/2+N/2
W/2+NEE/2 W/4+N/4+NE/4+NW/4 3W-3WW+WWW 3N-3NN+NNN NE NW NEE NE+NW-NN 3W/4+3N/4-NW/2 W+NE/2-N/2
2NW-NNWW 2NE-NNEE 2W+NW-WW-2NWW+NWWW N+W-WW NN WW

W+N-NW N+NE-NNE W N W/2+N/2+NE/4-NW/4 W+NE-N W/2+NE/2 2W-WW 2N-NN W+NW-NWW W/2+N/2 NW NE
W/4+N/4+NE/4+NW/4 3N-3NN+NNN

W N W+N-NW W/2+N/2 N+NE-NNE

W+N-NW N+NE-NNE W N W+NE-N 2W-WW 2N-NN W/2+N/2
"""
NAMES, FIRST, BY_P, BY_Q, ALONE = (text.split() for text in PREDICTIONS.split("\n\n"))
SCALES = (6, 10, 14, 18, 26, 34, 42, 58, 74, 106, 138, 202, 266, 394, 600, 1000)
U64 = 2**64 - 1


@cache
def place_of(name: str) -> tuple[int, int]:
    return name.count("W") - name.count("E"), name.count("N")


@cache
def factors_of(text: str) -> list[tuple[int, str]]:
    """Return twelfths of places that a prediction adds."""
    found = re.findall(r"([+-]?)(\d?)([NEW]+)(?:/(\d))?", text)
    return [
        ((-1 if sign == "-" else 1) * int(factor or 1) * 12 // int(part or 1), name)
        for sign, factor, name, part in found
    ]


def bin_of(d: int) -> int:
    s = abs(d)
    n = s >> 2 if s < 128 else 32 + ((s - 128) >> 4) if s < 512 else 56 + ((s - 512) >> 6)
    return 127 - n if d < 0 else min(128 + n, 255)


MIDDLES: dict[int, list[int]] = defaultdict(list)
for distance in range(-4096, 4096):
    MIDDLES[bin_of(distance)].append(distance)


@cache
def start_of(context: int, shift: int, number: int) -> int:
    found = MIDDLES.get(number, [0])
    c = (found[0] + found[-1]) // 2
    low, middle, high = (
        SQUASH[min(max(2048 + 128 * d // SCALES[context // 4], 0), 4096)]
        for d in (c - (16 << shift), c, c + (16 << shift))
    )
    p = ((high - middle + 1) << 22) // (high - low + 2)
    return min(max(p, 2**8), 2**22 - 2**8) << 10 | 20


def activity_of(n: int) -> int:
    return sum(bound < n for bound in (0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 42, 63, 94, 141, 211))


def coarse(n: int) -> int:
    return sum(bound < n for bound in (0, 1, 2, 3, 6, 12, 24))


def join(*numbers: int) -> int:
    joined = 0
    for number in numbers:
        joined = (joined << 8 | number) & U64
    return joined


class Image:
    """The model of an image, and its bytes so far."""

    def __init__(self, mark: int, pixel: int, sample: int, stride: int, size: int, is_exact: bool, apart: bool = False):
        self.full, self.pixel, self.sample = mark == 1, pixel, sample
        up = max(stride, 4 * pixel)
        self.data = [0] * (3 * up + 8 * pixel)
        total = len(self.data) + size
        self.contexts, self.count, slot_bits = {0: (6, 11, 18), 1: (24, 34, 20), 4: (3, 6, 16)}[mark]
        self.line_bits = min(max((size * self.contexts // 4).bit_length(), 8), slot_bits)
        self.slots: dict[int, list[list[int]]] = {}
        self.maps = [list(START) for _ in range(self.contexts)]
        self.matches = [Matches(least, total) for least in ((8, 24) if self.full else (8,))]
        self.is_exact, self.top = is_exact, 4080 if sample == 1 else 65535
        self.ring = 1 << (up + 2 * pixel).bit_length()
        self.misses: dict[int, list[int]] = {}
        self.entries: dict[tuple[object, ...], int] = {}
        self.regressions: dict[tuple[int, int], tuple[list[list[int]], list[int], list[int]]] = {}
        self.mixer = Mixer(6)
        self.coder, self.run, self.apart, self.line = Coder(b""), 0, apart, 0

    # 22.1

    def start_pass(self) -> None:
        """Begin the rows of the image, or those of a pass."""
        self.sums = Nearby(self.pixel // self.sample, self.sample)

    def _bit(self, *entry: object) -> int:
        value = self.entries.get(entry, 2**31)
        bit = self.coder.decode(max(value >> 10, 1) << 10)
        holder = [value]
        learn_map(holder, 0, bit, 250)
        self.entries[entry] = holder[0]
        return bit

    def _tree(self, bits: int, *array: object) -> int:
        node = 1
        for _ in range(bits):
            node = 2 * node + self._bit(*array, node)
        return node - 2**bits

    def prefix(self, size: int) -> bytes:
        done, before = bytearray(), 0
        for _ in range(size):
            before = self._tree(8, "prefix", before)
            done.append(before)
        return bytes(done)

    def filter(self, row: bytes, above: list[int], before: int) -> tuple[int, bytes]:
        coded = []
        for kind in range(5):
            one = []
            for x, value in enumerate(row):
                a = row[x - self.pixel] if x >= self.pixel else 0
                b, c = above[x], above[x - self.pixel] if x >= self.pixel else 0
                near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
                one.append((value - (0, a, b, (a + b) // 2, near)[kind]) % 256)
            coded.append(one)
        sums = [sum(min(v, 256 - v) for v in one) for one in coded]
        kind = self._tree(3, "filters", before, sums.index(min(sums)))
        return kind, bytes([kind, *coded[kind]])

    def row(self, size: int) -> bytes:
        column = 0
        while column < size:
            whole = column % self.pixel == 0 and column + self.pixel <= min(size, self.stride - self.padding)
            if whole and self._is_same(column):
                column += self.pixel
            else:
                self.pixel_number = column // self.pixel
                self._byte(column)
                column += 1
        self.line += 1
        if self.full:
            self.sums.end_row(min(size, self.stride - self.padding) // self.sample)
        return bytes(self.data[len(self.data) - size :])

    # 22.2

    def _is_same(self, column: int) -> bool:
        def pixel(x: int, y: int) -> list[int]:
            at = i - x * self.pixel - y * self.up
            return self.data[at : at + self.pixel]

        i, w = len(self.data), self.data[-self.pixel :]
        if any(pixel(*place) != w for place in ((2, 0), (0, 1), (1, 1), (-1, 1))):
            return False
        more = pixel(0, 2) == w and pixel(-2, 1) == w
        if not self._bit("flat", 2 * min(self.run.bit_length(), 15) + more):
            self.run = 0
            return False
        self.run += 1
        for k, byte in enumerate(w):
            for match in self.matches:
                if match.pointer > 0 and self.data[match.pointer] != byte:
                    match.length, match.misses = 0, match.misses << 1 | 1
            self.data.append(byte)
            for match in self.matches:
                match.update_byte(self.data)
            if k % self.sample == 0:
                self.sums.skip(k // self.sample, (column + k) // self.sample)
                self.misses[(i + k) % self.ring] = [0] * self.count
        return True

    def _value(self, i: int) -> int:
        return self.data[i] << 4 if self.sample == 1 else self.data[i] << 8 | self.data[i + 1]

    def _byte(self, column: int) -> None:
        i, step, width = len(self.data), column % self.pixel, self.stride - self.padding
        self.column = column
        self.place = step if column < width else 8
        samples = self.pixel // self.sample
        if step % self.sample == 0:
            self.plane = step // self.sample if column < width else samples
            self._predict(i, samples)
        if self.sample == 1:
            centres = self.v
        elif step % 2 == 0:
            centres = [v >> 4 for v in self.v]
        else:
            centres = [(v - 256 * self.data[i - 1]) << 4 for v in self.v]
        self.centres = [min(max(c, 0), 4080) for c in centres]
        hashes = self._of_bytes(i, column) if self.is_exact or self.pixel == 1 else self._of_colours(i, step)
        self.hashes = [mix(h, 256 * k + self.place) for k, h in enumerate(hashes[: self.contexts])]
        for match in self.matches:
            match.expected = self.data[match.pointer] + 256 if match.pointer > 0 else 0
        partial = 1
        for shift in range(7, -1, -1):
            if shift in (7, 3):
                found = [self._slot(mix(h, partial if shift == 3 else 0)) for h in self.hashes]
                node = 1
            bit = self._code(partial, shift, found, node)
            partial, node = 2 * partial + bit, 2 * node + bit
        self.data.append(partial & 255)
        if step % self.sample == self.sample - 1:
            self._learn(i - self.sample + 1)
        for match in self.matches:
            match.update_byte(self.data)

    def _slot(self, h: int) -> list[int]:
        line = self.slots.setdefault((h >> 20) % (1 << self.line_bits), [[0] * 16 for _ in range(4)])
        check = h >> 8 & 255
        for slot in line:
            if slot[0] == check:
                return slot
        slot = min(line, key=lambda one: one[1])
        slot[:] = [check] + [0] * 15
        return slot

    # 22.3

    def _around(self, i: int) -> dict[str, int]:
        places = ((name, *place_of(name)) for name in NAMES)
        return {name: self._value(i - x * self.pixel - y * self.up) for name, x, y in places}

    def _linear(self, text: str, around: dict[str, int], add: int) -> int:
        total = 6 + sum(factor * around[name] for factor, name in factors_of(text))
        return self._limit(total // 12 + add)

    def _limit(self, v: int) -> int:
        return min(max(v, 0), self.top)

    def _predict(self, i: int, samples: int) -> None:
        own, s = self._around(i), self.sample
        plane = self.plane if self.plane < samples else 0
        base = (own["W"] + own["N"]) >> 1
        self.base, self.x = base, [(v - base) >> 4 for v in own.values()]
        median, add = own, 0
        if plane:
            p, q = self._value(i - s), self._value(i - min(plane, 2) * s)
            last, first = self._around(i - s), self._around(i - min(plane, 2) * s)
            self.x = self.x[:12]
            for back, near, names in ((p, last, "W N NW NE WW NN"), (q, first, "W N NW NE"))[: min(plane, 2)]:
                base = (near["W"] + near["N"]) >> 1
                self.x += [(v - base) >> 4 for v in (back, *(near[name] for name in names.split()))]
        if plane and not self.apart:
            by_p = {name: own[name] - last[name] for name in NAMES}
            by_q = {name: own[name] - first[name] for name in NAMES}
            v = [self._linear(text, by_p, p) for text in BY_P] + [self._linear(text, by_q, q) for text in BY_Q]
            v += [self._linear(text, own, 0) for text in ALONE]
            median, add = by_p, p
        else:
            v = [self._linear(text, own, 0) for text in FIRST]
        v.append(self._limit(sorted([median["W"], median["N"], median["W"] + median["N"] - median["NW"]])[1] + add))
        self.x += [0] * (24 - len(self.x))
        for r in range(3):
            factors = self._regression(r)[2]
            total = sum(self.x[j] * factors[j] for j in range((24, 19, 6)[r]))
            v.append(self._limit(self.base + ((total + 2048) >> 12)))
        v.append(own["W"])
        if self._is_summed(samples):
            v[-1] = self._limit(self.base + self.sums.estimate(self.plane, self.column // s, self.x))
        self._contexts(i, own, plane, v[: self.count - 1])

    def _miss(self, i: int) -> list[int]:
        return self.misses.get(i % self.ring, [0] * self.count)

    def _contexts(self, i: int, own: dict[str, int], plane: int, v: list[int]) -> None:
        places = [(1, 0, 2), (0, 1, 2), (1, 1, 1), (-1, 1, 1), (2, 0, 1)]
        around = [
            sum(times * self._miss(i - x * self.pixel - y * self.up)[k] for x, y, times in places)
            for k in range(self.count)
        ]
        weights = [2**40 // (n + 3) ** 4 + 1 for n in around[:-1]]
        total = sum(weights)
        self.v = [*v, (sum(a * b for a, b in zip(weights, v, strict=True)) + (total >> 1)) // total]
        self.before = 1 + min(coarse(self._miss(i - self.sample)[-1]) >> 1, 2) if plane else 0
        self.activity = activity_of(around[-1] >> 1)
        self.levels = [4 * activity_of(n >> 1) + self.before for n in around]
        shift = 4 if self.sample == 1 else 8
        w, n, nw, ne = (own[name] for name in ("W", "N", "NW", "NE"))
        self.spread = 4 * activity_of((abs(w - nw) + abs(n - nw) + abs(n - ne)) >> shift) + 2 * (w > n) + (n > ne)
        self.nearby = 128 * coarse(abs(w - n) >> shift) + 16 * coarse(abs(n - ne) >> shift)
        self.nearby += 2 * coarse(abs(w - nw) >> shift) + (n > nw)

    def _is_summed(self, samples: int) -> bool:
        return self.plane < samples and self.column // self.sample < 65536

    def _regression(self, r: int) -> tuple[list[list[int]], list[int], list[int]]:
        return self.regressions.setdefault((r, self.plane), ([[0] * 24 for _ in range(24)], [0] * 24, [0] * 24))

    def _learn(self, i: int) -> None:
        value, fine = self._value(i), 12 if self.sample == 1 else 4
        shift, t = 4 if self.sample == 1 else 8, (value - self.base) >> 4
        if self.full and self._is_summed(self.pixel // self.sample):
            self.sums.learn(self.plane, self.column // self.sample, self.x, t)
        for r in range(3 if self.full else 0):
            size, rate = (24, 19, 6)[r], (9, 7, 5)[r]
            c, b, f = self._regression(r)
            x = self.x[:size]
            for k in range(size):
                scaled = x[k] << fine
                c[k][:size] = [own + ((scaled * other - own) >> rate) for own, other in zip(c[k], x, strict=False)]
                b[k] += (scaled * t - b[k]) >> rate
            for k in range(size):
                if c[k][k] > 0:
                    rest = (b[k] << 16) - sum(map(mul, c[k], f))
                    f[k] = min(max(f[k] + rest // (c[k][k] + 2**fine), -(2**18)), 2**18)
        self.misses[i % self.ring] = [min(abs(value - v) >> shift, 255) for v in self.v]

    # 22.4

    def _of_bytes(self, i: int, column: int) -> list[int]:
        def at(name: str) -> int:
            x, y = place_of(name.upper())
            return self.data[i - x - y * self.up]

        mean, w, n = self.v[-1], at("w"), at("n")
        h = [join(w, n)]
        h += [join(h[0], at("nw")), 0, w, n, join(w, at("ww"), at("www"))]
        h[2] = join(h[1], at("ne"))
        h += [join(n, at("nn")), join(n, at("ne")), join(w, at("nw"))]
        h += [16 * self.v[min(28, len(self.v) - 1)] + self.activity, mean >> 3]
        h += [(mean >> 5) << 32 | (w >> 2) << 16 | n >> 2, 256 * column + n, 0, join(w, at("ww"))]
        h += [join(n, at("ne"), at("nee")), join(h[0], at("ww"), at("nn")), join(h[5], at("wwww"))]
        h.append(join(h[2], at("ww")))
        h.append(join(h[18], at("nn")))
        h.append(join(h[19], at("nee"), at("nww")))
        h.append(mix(h[20], join(at("nne"), at("nnw"))))
        h.append(mix(h[21], join(at("www"), at("nnn"), at("neee"))))
        h.append(mix(h[22], join(at("wwww"), at("nnww"), at("nnee"))))
        return h

    def _of_colours(self, i: int, step: int) -> list[int]:
        def at(name: str) -> int:
            x, y = place_of(name.upper())
            return self.data[i - x * self.pixel - y * self.up]

        def whole(name: str) -> int:
            x, y = place_of(name)
            first = i - step - x * self.pixel - y * self.up
            return join(*self.data[first : first + self.pixel])

        a = self.data[i - 1] if step > 0 else 0
        ab, v = join(a, self.data[i - 2] if step > 1 else 0), self.v
        mean, w, n = v[-1], at("w"), at("n")
        h = [join(ab, w), join(ab, n), 0, (v[0] >> 4) << 16 | ab, mix(whole("W"), ab), mix(whole("N"), ab)]
        h[2] = mix(whole("N"), h[4])
        h += [join(w, n, a), join(n, at("ne"), a), v[2] << 16 | v[3], 16 * v[0] + self.activity]
        h += [join(w, n, at("nw"), at("ne")), mean >> 3, (mean >> 5) << 32 | (w >> 2) << 16 | n >> 2, ab]
        h += [mix(whole("NE"), h[5]), mix(whole("NN"), h[5]), mix(whole("WW"), h[4])]
        h += [mix(whole("WWW"), h[16]), mix(whole("NW"), h[2])]
        h.append(mix(whole("NE"), h[18]))
        for one, other in (("NN", "WW"), ("NWW", "NEE"), ("NNW", "NNE"), ("WWW", "NEEE")):
            h.append(mix(whole(one), mix(whole(other), h[-1])))
        return h

    # 22.5

    def _code(self, partial: int, shift: int, slots: list[list[int]], node: int) -> int:
        histories = [slot[node] for slot in slots]
        inputs = [STRETCH[self.maps[k][h] >> 20] if h else 0 for k, h in enumerate(histories)]
        middle, learned = 16 * (((2 * partial + 1) << shift) - 256), []
        for k, centre in enumerate(self.centres):
            number = bin_of(middle - centre)
            for j, context in enumerate((self.levels[k], self.spread)):
                entry = ("relative", k, j, context, shift, number)
                inputs.append(STRETCH[self.entries.setdefault(entry, start_of(context, shift, number)) >> 20])
                learned.append((entry, 511))
        for k in (0, 2, 28, 29, 32) if self.full else ():
            entry = ("direct", k, (self.centres[k] + 8) >> 4, partial)
            inputs.append(STRETCH[self.entries.setdefault(entry, 2**31) >> 20])
            learned.append((entry, 255))
        found = 0
        for match in self.matches:
            logit, tilt, one = match.inputs(partial, shift)
            inputs += [logit, tilt]
            found = found or one
        inputs.append(1024)
        bit = self._mix(inputs, partial, shift, found, middle - self.centres[-1])
        for entry, limit in learned:
            holder = [self.entries[entry]]
            learn_map(holder, 0, bit, limit)
            self.entries[entry] = holder[0]
        for k, (slot, history) in enumerate(zip(slots, histories, strict=True)):
            slot[node] = NEXT[bit][slot[node]]
            learn_map(self.maps[k], history, bit, 511)
        for match in self.matches:
            match.update_bit(bit, shift)
        return bit

    def _mix(self, inputs: list[int], partial: int, shift: int, found: int, d: int) -> int:
        close = next((n for n in range(15) if abs(d) >> (n + 2) == 0), 15)
        rows = [(8 * self.plane + shift) * 16 + self.activity, partial, (2 * close + (d > 0)) * 16 + self.activity]
        rows += [(16 * self.plane + found) * 8 + shift, self.nearby]
        first = [1800] * len(inputs)
        if self.is_exact:
            both, relative = self.contexts, 2 * self.count
            first[: both + relative] = [4200] * both + [600] * relative
        if self.apart:
            rows.append(64 * self.plane + 8 * (self.line & 7) + (self.pixel_number & 7))
        keys = (0, 256 * self.plane + partial), (1, 8 * (4 * self.activity + self.before) + shift)
        return self.mixer.decode(self.coder, inputs, rows, first, 8 * self.plane + shift, keys)
