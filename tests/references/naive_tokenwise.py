"""Decode tokenwise blocks by section 11 of docs/format.md and "Mixing" of docs/exactness.md, in Python.

It is written from the text alone. A function returns the counts of leaves before every entry: `counts(lane, fed,
bias)`.
"""

import re
from pathlib import Path

import numpy as np

from tests.references import naive_levels
from tests.references.naive_bytewise import SQUASH, STRETCH, U64, Coder, clamp, learn_map, mix, squash
from tests.references.naive_runs import varint
from tests.references.naive_trie import STOP, Data, ln, logarithms, trie

EXACTNESS = Path(__file__).parents[2] / "docs" / "exactness.md"
F = np.float32
OF_MATCHES = ("pointer", "length", "misses", "expected", "entry")
FRESH = [min(SQUASH[128 * j], 2**32 - 1) for j in range(33)]


def preset():
    text = EXACTNESS.read_text().split("**Bytewise models**")[1].split("```")[1]
    mask = lambda digits: U64 if digits == "*" else int(digits, 16)  # noqa: E731
    found = re.findall(r"\((\S+) (\S+) (\S+)\)", text)
    return [(naive_levels.NAMES.index(name), mask(own), mask(of)) for name, own, of in found], [6, 16], 3, 23


def learn(weights, inputs, error, rate):
    weights += (error * rate * inputs + 2**23) >> 24


class Decoder(naive_levels.Models):
    def __init__(self, payload, size, leaves, counts):
        """Prepare a block.

        Args:
            payload: coded bytes without the content kind
            size: raw bytes of the block
            leaves: bytes of every leaf
            counts: function that returns the counts of leaves before an entry
        """
        self.leaves, self.counts, self.trie = leaves, counts, trie(leaves)
        (self.n, at), total = varint(payload, 0), size
        number, at = varint(payload, at)
        self.lanes, self.repeats = number >> 1, number & 1
        _, at = varint(payload, at)
        lengths = []
        for _ in range(self.lanes - 1):
            length, at = varint(payload, at)
            lengths.append(length)
        self.ends = np.cumsum([*lengths, total - sum(lengths)]).tolist()
        n, total = self.n, total + max(map(len, leaves))
        super().__init__(preset(), 0, total, 5)
        self.entries = n
        self.data, self.coder = Data(total), Coder(payload[at:])
        self.escape, self.stops = [2**12 << 10], [{} for _ in range(6)]
        self.more = [0] * 5
        for match in self.matches:
            match.end = total
        bounds = np.cumsum([0, *(n // self.lanes + (k < n % self.lanes) for k in range(self.lanes))]).tolist()
        starts = [0, *self.ends[:-1]]
        self.state = [{"r": dict(self.r), "data": start, "matches": [(0, 0, 0, 0, None)] * 2} for start in starts]
        for lane, state in enumerate(self.state):
            state |= {"at": bounds[lane], "end": bounds[lane + 1], "pointer": 0, "length": 0, "recent": 0}
            state |= {"ruled_out": None, "fed": [None]}
        self.tokens, self.table, self.token_map = [-1] * n, {}, [(3 << 20) << 10] * 32
        width = len(self.contexts) + 5 + 5
        fresh = np.full(width, 20971, np.int64)
        fresh[-5], fresh[-6], fresh[-1] = 2**20, 0, 0
        self.sets, self.fresh_set = {}, fresh
        self.finals, self.apms, self.decisions = {}, {}, 0
        self.chains, self.run_maps = [0] * n, [{} for _ in range(6)]
        run = np.array([367001] * 6 + [0], np.int64)
        self.run_sets = [run.copy() for _ in range(64)]

    def enter(self, lane):
        self.lane = lane
        self.r, self.data.place = lane["r"], lane["data"]
        for match, values in zip(self.matches, lane["matches"], strict=True):
            for name, value in zip(OF_MATCHES, values, strict=True):
                setattr(match, name, value)

    def leave(self, lane):
        lane["data"] = self.data.place
        lane["matches"] = [tuple(getattr(match, name) for name in OF_MATCHES) for match in self.matches]

    def decode(self):
        round_steps, biases, squares = max(1, 64 // self.lanes), {}, np.ones(len(self.leaves), F)
        biases[0] = biases[1] = np.zeros(len(self.leaves), F)
        gradient, step = np.zeros(len(self.leaves), np.int64), 0
        while any(lane["at"] < lane["end"] for lane in self.state):
            k = step // round_steps
            for number, lane in enumerate(self.state):
                if lane["at"] < lane["end"]:
                    self.sums = self.rule_out(lane, self.counts(number, lane["fed"], biases[k]))
                    lane["fed"] = []
                    self.enter(lane)
                    entry = self.entry(lane)
                    self.add(gradient, entry)
                    self.run(lane)
                    self.leave(lane)
            step += 1
            if step % round_steps == 0:
                slope = gradient.astype(F) * F(2.0**-20)
                squares += slope * slope
                biases[k + 2] = biases[k + 1] - F(0.5) * (slope / np.sqrt(squares))
                gradient[:] = 0
        return bytes(self.data.bytes[: self.ends[-1]])

    def rule_out(self, lane, sums):
        """Return cumulative counts in which the excluded leaf counts 1."""
        counts = np.diff(np.array(sums, np.int64))
        if lane["ruled_out"] is not None:
            counts[lane["ruled_out"]] = 1
        return [0, *np.cumsum(counts).tolist()]

    def add(self, gradient, entry):
        if entry < 0:
            return
        unit = F(2**20) / F(self.sums[-1] >> 16)
        for leaf, (before, after) in enumerate(zip(self.sums, self.sums[1:], strict=False)):
            gradient[leaf] += int(F((after - before) >> 16) * unit) - (2**20 if leaf == entry else 0)

    def entry(self, lane):
        lane["expected"] = self.tokens[lane["pointer"]] if lane["length"] > 0 and lane["ruled_out"] is None else -1
        lane["class"] = min(lane["length"], 31)
        escaped = self.coder.decode(max(self.escape[0] >> 10 << 10, 256))
        learn_map(self.escape, 0, escaped, 1000)
        if escaped:
            self.byte(self.coder, self.more)
            c = self.data.bytes[self.data.place - 1]
            self.of_byte(c)
            entry = -1 - c
        else:
            entry = self.leaf(lane)
        self.of_entry(entry)
        lane["fed"].append(entry)
        self.follow(lane, entry)
        return entry

    def of_byte(self, c):
        r = self.r
        r["PHASE"] = 256 | min((r["PHASE"] & 255) + 1, 255)
        r["SPELLED"] = mix(r["SPELLED"], c)
        self.renew()

    def of_entry(self, entry):
        r, v = self.r, entry + 256
        r["LAST_3"], r["LAST_2"], r["LAST_1"] = mix(r["LAST_2"], v), mix(r["LAST_1"], v), mix(v, 1)
        r["PHASE"] = r["SPELLED"] = 0
        self.renew()

    def renew(self):
        for k in (1, 2, 3):
            self.r[f"TOKEN_{k}"] = mix(self.r[f"LAST_{k}"], self.r["SPELLED"])

    def spell(self, c):
        self.end_byte(c)
        self.of_byte(c)

    def leaf(self, lane):
        number, depth, begun = 0, 0, False
        while number >= 0:
            low, middle, high, of, shift, children = self.trie[number]
            while depth < of:
                self.spell(self.leaves[low][depth])
                depth, begun = depth + 1, False
            if shift != STOP and not begun:
                self.begin_byte()
                begun = True
            while shift != STOP and self.shift > shift:
                self.advance(self.leaves[low][depth] >> self.shift & 1)
            bit = self.decision(lane, number, (low, middle, high), shift)
            number = children[bit]
        for c in self.leaves[~number][depth:]:
            self.spell(c)
        return ~number

    def expectation(self, lane, low, middle, high):
        """Return `matched`, two inputs, and a function that learns from the bit."""
        if not low <= lane["expected"] < high:
            return 0, (0, 0), lambda bit: None
        c, b = lane["class"], int(lane["expected"] >= middle)
        p, sign = self.token_map[c] >> 20, 1 if b else -1

        def after(bit):
            learn_map(self.token_map, c, int(bit == b), 255)
            if bit != b:
                lane["expected"] = -1

        return 1 + min(c >> 2, 3), (sign * STRETCH[p], sign * 2 * (p - 2048)), after

    def apm(self, k, row):
        return self.apms.setdefault((k, row), list(FRESH))

    def decision(self, lane, number, node, shift):
        low, middle, high = node
        sums, r = self.sums, self.r
        logit = clamp((ln(sums[high] - sums[middle]) - ln(sums[middle] - sums[low])) >> 12)
        matched, two, after = self.expectation(lane, low, middle, high)
        last, column = r["HISTORY"] & 0xFF, r["LINE"] >> 8 & 0xFF
        confidence = min(abs(logit) >> 11, 11)
        doubt = min(max(ln(sums[-1]) - 40 * logarithms()[4096], 0) >> 22, 7)
        if shift == STOP:
            x, partial, row, entries = self.to_stop(number)
            depth = min(r["PHASE"] & 255, 7)
            rows = [31, 256 * (depth & 1), 8 * last + 7, 128 + depth, 2040 + (confidence >> 1)]
            final = 32 * matched + 16 + depth
            apms = [512 + depth, number % 65536, 0, mix(r["TOKEN_1"], 7) >> 48, 256 * last]
        else:
            partial, phase = self.partial, r["PHASE"] >> 8
            self.predict(partial, shift, [0] * 5)
            x, _, known, found, _, _, row, *_ = self.now
            rows = [found + 16 * (matched > 0), partial + 256 * phase, 8 * last + shift, 16 * known + found]
            rows.append(8 * column + (confidence >> 1))
            final = 32 * matched + found
            apms = [partial + 256 * phase, mix(r["HISTORY"] & 0xFFFF, partial) >> 48, 256 * column + partial]
            apms += [mix(r["WORD"], partial) >> 48, 256 * last + partial]
        rows = [*rows[:2], 8 * confidence + doubt, *rows[2:], mix(r["TOKEN_1"], partial) >> 52, number]
        apms = [self.apm(k, own) for k, own in enumerate(apms)]
        x = x.copy()
        x[-5:] = logit, *two, row, STRETCH[self.refine(apms[4], logit) >> 20]
        bit = self.mixed(x, [(t, own) for t, own in enumerate(rows)], final, apms, logit)
        after(bit)
        if shift == STOP:
            for own, entry in entries:
                learn_map(own, entry, bit, 250)
            self.more = x[-5:].tolist()
        else:
            self.learn(bit)
            self.advance(bit)
            self.more = [0] * 5
        return bit

    def to_stop(self, number):
        r, x = self.r, np.zeros(self.fresh_set.size, np.int64)
        hashes = [mix(r[f"TOKEN_{k + 1}"], k) for k in range(3)]
        hashes += [mix(r["HISTORY"] & 0xFFFFFFFF, 3), mix(r["WORD"], 4), mix(number, 5)]
        entries = []
        for k, h in enumerate(hashes):
            entry = self.stops[k].setdefault(h >> 44, 2**31)
            x[k] = STRETCH[entry >> 20] if entry & 1023 else 0
            entries.append((self.stops[k], h >> 44))
        x[-6] = 1024
        return x, 256 + (r["HISTORY"] & 0xFF), 0, entries

    def mixed(self, x, rows, final, apms, logit):
        """Mix and decode a bit, and let all mixers learn from it. Return the bit."""
        sets = [self.sets.setdefault(row, self.fresh_set.copy()) for row in rows]
        logits = np.array([clamp(int(own @ x) >> 20) for own in sets], np.int64)
        finals = self.finals.setdefault(final, np.full(8, 131072, np.int64))
        own = clamp(int(finals @ logits) >> 20)
        mixed, r = squash(own), [self.refine(apm, own) for apm in apms[:4]]
        bit = self.coder.decode(min(max((2 * mixed + r[0] + r[1] + 2 * r[2] + 2 * r[3]) >> 3, 1), 2**32 - 1))
        target = 2**32 - 1 if bit else 0
        for apm, at in zip(apms, [own] * 4 + [logit], strict=True):
            i = (at + 65536 + 2048) >> 12
            apm[i] += (target - apm[i]) >> 6
        rate = 12 + 1440000 // (30001 + self.decisions)
        self.decisions += 1
        for weights, one in zip(sets, logits.tolist(), strict=True):
            learn(weights, x, (target - squash(one)) >> 12, rate)
        learn(finals, logits, (target - mixed) >> 12, 1)
        return bit

    def before(self, lane, k):
        """Return T(k)."""
        return self.tokens[lane["at"] - k] if lane["at"] >= k else -1

    def follow(self, lane, entry):
        """Update repeats and the match of tokens after an entry."""
        if self.repeats:
            chain, found = 1, self.foretell(lane)
            if found:
                hit = int(self.tokens[lane["pointer"]] == entry)
                if lane["ruled_out"] is None:
                    self.learn_repeat(found, hit)
                chain = self.chains[lane["pointer"]] << 1 | 1 - hit
                lane["recent"] = (lane["recent"] << 1 | 1 - hit) & 0xFFFF
            self.chains[lane["at"]] = chain & 0xFFFF
            lane["ruled_out"] = None
        tokens, n = self.tokens, self.entries
        tokens[lane["at"]] = entry
        pointer, length = lane["pointer"], lane["length"]
        if length > 0 and pointer + 1 < n and tokens[pointer] == entry:
            pointer, length = pointer + 1, length + 1
        else:
            length = 0
        lane["at"] += 1
        place, h = lane["at"], 0
        for k in (1, 2, 3, 4):
            h = mix(h, self.before(lane, k) + 300)
        candidate = self.table.get(h >> 46, 0)
        if length == 0 and candidate > 0:
            pointer = candidate
            while (
                length < min(candidate, 32)
                and length < place
                and tokens[candidate - 1 - length] == self.before(lane, 1 + length)
            ):
                length += 1
            length = length if length >= 3 else 0
        lane["pointer"], lane["length"] = pointer, length
        self.table[h >> 46] = place if place < n else 0

    def foretell(self, lane):
        """Return p of the expected leaf, and what to learn from, or None if no leaf is expected."""
        n, pointer = lane["length"], lane["pointer"]
        if n == 0 or self.tokens[pointer] < 0:
            return None
        chain, c = self.chains[pointer], n if n < 16 else 16 if n < 32 else 17
        hashes, h = [], self.tokens[pointer]
        for k in range(1, 6):
            h = mix(h, self.before(lane, k) + 300)
            hashes.append(h >> 46)
        entries = [chain % 4096 * 32 + c, *hashes[:3], hashes[4]]
        entries.append((lane["recent"] % 64 * 16 + min(c, 15)) * 64 + chain % 64)
        values = [own.setdefault(entry, 2**31) for own, entry in zip(self.run_maps, entries, strict=True)]
        x = np.array([STRETCH[v >> 20] if v & 1023 else 0 for v in values] + [1638], np.int64)
        weights = self.run_sets[min(c, 15) * 4 + 2 * (chain % 2) + (values[3] & 1023 > 2)]
        return squash(clamp(int(weights @ x) >> 20)), x, weights, entries

    def learn_repeat(self, found, hit):
        p, x, weights, entries = found
        learn(weights, x, ((2**32 - 1 if hit else 0) - p) >> 12, 80)
        for own, entry, limit in zip(self.run_maps, entries, (255, 20, 20, 20, 20, 255), strict=True):
            learn_map(own, entry, hit, limit)

    def run(self, lane):
        """Decode a run (11.8)."""
        tail = []
        while self.repeats and lane["at"] < lane["end"]:
            found, leaf = self.foretell(lane), self.tokens[lane["pointer"]]
            if not found or found[0] < 98 * 2**32 // 100:
                break
            if self.data.place + len(self.leaves[leaf]) > self.ends[self.state.index(lane)]:
                break
            if not self.coder.decode(found[0]):
                self.learn_repeat(found, 0)
                lane["ruled_out"] = leaf
                break
            self.follow(lane, leaf)
            for c in self.leaves[leaf]:
                self.spell(c)
            self.of_entry(leaf)
            tail.append(leaf)
        lane["fed"] += tail[-16:]
