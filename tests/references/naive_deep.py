"""Decode by section 7 of docs/format.md, deep context mixing, in Python. It is written from the text alone."""

import re
from bisect import bisect_right
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from tests.references import naive_dictionary, naive_program, naive_recurrent
from tests.references.naive_bytewise import (
    CLASS_OF,
    NEXT,
    SQUASH,
    START,
    STRETCH,
    U64,
    Coder,
    Matches,
    clamp,
    learn_map,
    mix,
    squash,
)
from tests.references.naive_cells import Cells
from tests.references.naive_copied import Copied
from tests.references.naive_fields import Fields
from tests.references.naive_records import Records
from tests.references.naive_recurrent import F, dots, tree
from tests.references.naive_strides import Strides

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
NATURAL = np.array(STRETCH, F) / F(4096)
FIRST = [0, 1, *range(769, 769 + 12 * 2048, 2048)]  # rows of weight sets, 7.8
CONFIDENCE = np.array([0, *(min((c + 2) / 12, 1) for c in range(1, 16))], F)


def q12(x):
    return clamp(int(x * F(4096)))


def error_of(bit, logit):
    return F(bit * 2**32 - squash(q12(logit))) * F(2.0**-32)


@cache
def _rows(section):
    """Return the rows of all tables of a section."""
    text = FORMAT.read_text().split(f"### {section} ")[1].split("\n##")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


@cache
def preset_of(level, kind):
    """Return contexts in three groups, match lengths, selectors and most buckets (7.15)."""
    rows = [row for row in _rows("7.15") if row[0] == str(level)]
    sizes = next(row for row in rows if len(row) == 5)
    kind = "table" if (level, kind) == (4, "cells") else kind
    table = next(row for row in rows if kind in row[1].split(", ") and len(row) == 4)
    groups = [re.findall(r"\((\S+) (\S+) (\S+) (\S+)\)", part) for part in table[3].split(" / ")]
    mask = lambda digits: U64 if digits == "*" else int(digits, 16)  # noqa: E731
    contexts = [[(a, mask(b), c, mask(d)) for a, b, c, d in group] for group in groups]
    assert sum(map(len, contexts)) == int(table[2])
    of_text = kind in ("text", "lines")
    most = int(sizes[4 if of_text else 3].split(" * ")[0]) << 18
    return contexts, [int(x) for x in sizes[1].split(", ")], 7 if level == 5 and of_text else int(sizes[2]), most


def _size_of(machine, first):
    if machine == "RISC-V":
        return 4 if first & 3 == 3 else 2
    if machine == "z/Architecture":
        return 2 if first < 0x40 else 6 if first >= 0xC0 else 4
    return 4


def _fields_of(machine, code, size):
    """Return opcode and register of the bytes so far of an instruction of code (7.3)."""
    w = int.from_bytes(bytes(code[:4]) + bytes(4 - len(code[:4])), "big")
    a, b, k = code[0], (*code, 0)[1], w >> 26
    match machine:
        case "SPARC":
            k = w >> 30
            of_branch = 8 | w >> 22 & 7 | (w >> 25 & 15) << 4
            opcode = k << 7 | (w >> 19 & 63) << 1 | w >> 13 & 1 if k > 1 else 1 if k else of_branch
            return opcode, w >> 25 & 31
        case "PowerPC":
            return 0x200 | w >> 1 & 0x1FF if k in (19, 31) or k > 58 else k << 1 | w & 1, w >> 21 & 31
        case "MIPS":
            opcode = 0x200 | w & 63 if k == 0 else 0x240 | w >> 16 & 31 if k == 1 else k
            return opcode, w >> 16 & 31 if k else w >> 11 & 31
        case "ARM":
            return (w >> 20 & 255) + 256 * (w >> 28 != 14) + 512 * (w >> 4 & 1), w >> 12 & 31
        case "AArch64":
            return w >> 22, w & 31
        case "RISC-V":
            opcode = 0x200 | a & 3 | (b >> 5) << 2 if size == 2 else a & 127 | (b >> 4 & 7) << 7
            return opcode, (a >> 7 | b << 1) & 31
    if a in (0xA5, 0xA7, 0xC0, 0xC2, 0xC4):
        return 0x200 | a ^ (b & 15) << 5, b >> 4
    return 0x200 | a ^ (code[5] & 31) << 5 if len(code) == 6 else a, b >> 4


def has_network(level, kind):
    """Return True if a level uses the network for a kind of content (7.1)."""
    return level > 4 and (kind in ("text", "lines", "other") or (level, kind) == (6, "executable"))


@cache
def known_of(level, kind):
    """Return what models start from (7.1), None for nothing."""
    file = next((row[2] for row in _rows("7.1") if row[:2] == [str(level), kind]), None)
    return file and naive_dictionary.read_tensors(FORMAT.parents[1] / "squeeze/codecs/stream" / file.strip("`"))


class Registers(dict):
    """The registers of 7.3."""

    def __init__(self, machine):
        super().__init__()
        self.stack, self.followed, self.code, self.machine = [], {}, [], machine

    def __missing__(self, name):
        return 0

    def update_byte(self, c, data, record):
        def places():
            h = self["HISTORY"]
            return (1, h & 0xFF), (2, h & 0xFFFF), (3, mix(h & 0xFFFFFF, 3) >> 46)

        for place in places():
            self.followed[place] = (self.followed.get(place, 0) << 8 | c) & 0xFFFF
        self["OLDER"] = (self["OLDER"] << 8 | self["HISTORY"] >> 56) & U64
        self["HISTORY"] = (self["HISTORY"] << 8 | c) & U64
        self["CLASSES"] = (self["CLASSES"] << 4 | CLASS_OF[c]) & U64
        self["POSITION"] = q = len(data)
        one, two, three = (self.followed.get(place, 0) for place in places())
        self["FOLLOWED"] = one | two << 16 | three << 32
        self.update_letter(c)
        if c == 10:
            self.update({"LINE_ABOVE": self["LINE_START"], "LINE_START": q, "LINE_HEAD": 0, "OUTLINE": 0})
        start, column = self["LINE_START"], q - self["LINE_START"]
        over = self["LINE_ABOVE"] + column
        above, beyond = (data[at] if at < start else 10 for at in (over, over + 1))
        first, length = data[start] if column else 0, start - self["LINE_ABOVE"]
        self["LINE"] = above | beyond << 8 | min(column, 255) << 16 | first << 24 | min(length, 255) << 32
        self.update_bracket(c)
        if self["SKIP"] > 0:
            self["SKIP"] -= 1
        else:
            if c in (0xE8, 0xE9) or (0x80 <= c <= 0x8F and self["HISTORY"] >> 8 & 255 == 0x0F):
                self["SKIP"] = 4
            self["OPCODES"] = (self["OPCODES"] << 8 | c) & U64
        (self.update_code if self.machine else self.update_instruction)(c)
        if record:
            above1, above2, above3 = (data[q - k * record] if q >= k * record else 0 for k in (1, 2, 3))
            left = data[q - record - 1] if q > record else 0
            right = data[q - record + 1] if 1 < record <= q else 0
            self["RECORD"] = above1 | above2 << 8 | q % record << 16 | above3 << 32 | left << 40 | right << 48

    def update_instruction(self, c):
        self.code.append(c)
        fields = naive_program.partly(bytes(self.code))
        opcode, table, modrm, prefix = fields["opcode"], fields["map"], fields["modrm"], fields["prefix"]
        if fields["phase"] is None:
            ended = opcode | table << 8 | modrm >> 6 << 10 | (modrm >> 3 & 7) << 12 | (prefix > 0) << 15
            self["INSTRUCTIONS"] = (self["INSTRUCTIONS"] << 16 | ended) & U64
            self["INSTRUCTION"], self.code = 0, []
            return
        first = fields["phase"] | fields["displacement"] << 3 | fields["immediate"] << 6 | opcode << 10 | table << 18
        self["INSTRUCTION"] = first | modrm << 20 | fields["sib"] << 28 | prefix << 36

    def update_code(self, c):
        self.code.append(c)
        size = _size_of(self.machine, self.code[0])
        opcode, register = _fields_of(self.machine, self.code, size)
        if len(self.code) == size:
            self["INSTRUCTIONS"] = (self["INSTRUCTIONS"] << 16 | opcode % 1024 | register << 10) & U64
            self["INSTRUCTION"], self.code = 0, []
            return
        so_far = int.from_bytes(bytes(self.code), "big")
        self["INSTRUCTION"] = len(self.code) | size << 3 | opcode % 1024 << 10 | so_far << 20

    def update_letter(self, c):
        d = c + 32 if 65 <= c <= 90 else c
        if 97 <= d <= 122 or d >= 128:
            if self["WORD"] == 0:
                self["OUTLINE"] = mix(self["OUTLINE"], 97)
            self["WORD"] = mix(self["WORD"], d)
            self["WORD_LENGTH"] += 1
            self["LETTERS"] = (self["LETTERS"] << 8 | d) & U64
            return
        self["OUTLINE"] = mix(self["OUTLINE"] & 0xFFFFFFFF, c)
        if self["WORD"]:
            self.update({"WORD_3": self["WORD_2"], "WORD_2": self["WORD_1"], "WORD_1": self["WORD"]})
            self.update({"PAIR": mix(self["WORD_1"], self["WORD_2"]), "WORD": 0, "WORD_LENGTH": 0})
            if self["LINE_HEAD"] == 0:
                self["LINE_HEAD"] = self["WORD_1"]
            if self["IN_TAG"]:
                self.update({"TAG": self["WORD_1"], "IN_TAG": 0})
        if c == 60:
            self["IN_TAG"] = 1

    def update_bracket(self, c):
        since = 0
        if c in b"([{<":
            self.stack = [*self.stack, c][-16:]
        elif c in b")]}>":
            if self.stack and self.stack[-1] == b"([{<"[b")]}>".index(c)]:
                self.stack.pop()
        else:
            since = min((self["BRACKET"] >> 8 & 255) + 1, 255)
        outer, inner = [0, 0, *self.stack][-2:]
        self["BRACKET"] = inner | since << 8 | outer << 16


class Slot:
    """A slot (7.5)."""

    def __init__(self):
        self.begin(0, 0)

    def begin(self, check, counter):
        self.check, self.histories, self.counters = check, [0] * 16, [counter] * 16


class Decoder:
    """A decoder of a block (7.4 to 7.10, and 7.14)."""

    def __init__(self, level, kind, record, size, dictionary=None, bare=False):
        """Prepare the models of a block.

        Args:
            level: level from 4 to 6
            kind: kind of content
            record: length of a record
            size: raw bytes of the block
            dictionary: content of a file of 13.1 without text, with the tensors of its network
            bare: whether models start from nothing
        """
        level, self.is_code = min(level, 6), kind == "executable"  # section 6
        self.machine = kind.removesuffix(" code") if kind.endswith(" code") else ""
        if self.machine:
            kind, record = "code", 0
        self.contexts, matches, self.sets, most = preset_of(level, kind)
        self.ends = [0, *np.cumsum([len(group) for group in self.contexts])]
        self.contexts = list(chain(*self.contexts))
        self.n, self.size, self.record = len(self.contexts), size, record
        self.registers, self.data = Registers(self.machine), bytearray()
        self.bucket_count = min(max(size * self.n // 3, 256), most)
        self.buckets = {}
        self.maps = [[entry | 6 for entry in START] for _ in self.contexts]
        self.runs = [{} for _ in self.contexts]
        self.run_mask = (1 << min(max(size.bit_length(), 8), 20)) - 1
        self.run_maps = [[(3 << 20) << 10] * 512 for _ in self.contexts]
        self.matches = [Matches(least, size) for least in matches]
        own = dictionary[1] if dictionary else None
        self.network = naive_recurrent.Network(own) if has_network(level, kind) and not bare else None
        self.count = [0] + [256 >> (i.bit_length() - 1) for i in range(1, 512)]
        self.byte_map = [(2 * (i // 192) + 1) << 26 | 6 for i in range(32 * 192)]
        own = 4 * self.n + 16 + 2 * len(matches) + 1
        first = np.full(-(-(own + 3) // 16) * 16, 0.03, F)
        first[4 * self.n : 4 * self.n + 16] = [0.84] + [0] * 15
        if self.network:
            first[[4 * self.n, own]] = 0.5
        self.weights, self.visits = {(0, 0): first}, {}
        self.finals, self.apms = {}, {}
        trained = {"lines": "text", "code": "executable"}.get(kind, kind)
        known = None if bare else known_of(level, trained)
        self.fields, self.records = Fields() if kind == "lines" else None, Records(record) if record else None
        self.copied = Copied() if kind == "lines" and level == 6 else None
        self.cells = Cells(record) if kind == "cells" and level > 4 else None
        self.strides = Strides() if kind == "other" else None
        if known:
            if trained != kind:
                known = self.moved(known, list(chain(*preset_of(level, trained)[0])))
            self.begin_with(known, maps=dictionary is None)
        if dictionary:
            self.begin_with(dictionary[0])
        self.top_prediction = self.byte_index = 0

    def moved(self, known, trained):
        """Return the trained numbers with the contexts of lines (7.1)."""
        places = [trained.index(context) if context in trained else None for context in self.contexts]

        def row(weights):
            own = [np.zeros(4, F) if at is None else weights[4 * at : 4 * at + 4] for at in places]
            return np.concatenate([*own, weights[4 * len(trained) :]])[: self.weights[0, 0].size]

        def part(entries, width):
            return np.concatenate(
                [np.zeros(width, int) if at is None else entries[at * width :][:width] for at in places]
            )

        weights = {k: self.padded(row(own)) for k, own in known.weights.items()}
        first = [
            [part(np.asarray(one), 256) for one in known.maps[0]],
            [part(np.asarray(one), 512) for one in known.maps[1]],
        ]
        return known._replace(weights=weights, maps=[*first, *known.maps[2:]])

    def padded(self, row):
        return np.concatenate([row, np.zeros(self.weights[0, 0].size - row.size, F)])

    def begin_with(self, known, maps=True):
        """Apply step 3 of 13.2; adaptive maps are those of one file only."""
        for row, above in known.weights.items():
            t = bisect_right(FIRST, row) - 1
            place = t, row - FIRST[t]
            self.weights[place], self.visits[place] = F(0.03) + above, known.visits[row]
        start = np.array([SQUASH[128 * j] for j in range(33)])
        for row, above in known.apms.items():
            self.apms[divmod(row, 65536)] = (start + (above << 20)).clip(0, 2**32 - 1).tolist()
        last = [(k, row) for k, count in enumerate((256, 2048, 256, 192)) for row in range(count)]
        first = np.full(16, F(1) / F(self.sets), F)
        for row, above in zip(last, known.finals, strict=True):
            self.finals[row] = first + above
        if not maps:
            return
        matches = [match.map for match in self.matches]
        for entries, pair in zip((self.maps, self.run_maps, matches, [self.byte_map]), known.maps, strict=True):
            for own, high, count in zip(entries, *(np.split(part, len(entries)) for part in pair), strict=True):
                e = np.array(own)
                p, n = (part[: len(own)].astype(np.int64) for part in (high, count))  # of all histories that there are
                own[:] = (e + (p << 20) & ~1023 | (e & 1023) + n).tolist()

    def begin_byte(self):
        """Compute what the network expects, MATCH, hashes, runs and slots."""
        r, first, second, longest = self.registers, 0, 0, 0
        if self.network:
            self.count, r["TOP_BYTE"] = tree(self.network.feed(r["HISTORY"] & 255))
        for match in self.matches:
            match.expected = self.data[match.pointer] + 256 if match.pointer > 0 else 0
        for match in reversed(self.matches):
            if match.expected and match.length >= longest:
                first, second, longest = match.expected, first, match.length
        cls = min(longest, 15) if longest < 16 else min(12 + (longest >> 4), 15)
        r["MATCH"] = first | cls << 9 | second << 16
        self.hashes = []
        for k, (register, mask, other, history_mask) in enumerate(self.contexts):
            h = mix(r["HISTORY"] & history_mask, k)
            self.hashes.append(mix(r[other], mix(r[register] & mask, h)))
        self.run_at = [h >> 40 & self.run_mask for h in self.hashes]
        self.run = [runs.get(at, 0) for runs, at in zip(self.runs, self.run_at, strict=True)]
        self.find_slots(0)

    def find_slots(self, salt):
        self.slots, self.node = [], 1
        for h in (mix(h, salt) for h in self.hashes):
            half = ((h >> 32) * self.bucket_count >> 32, h >> 24 & 1)
            bucket = self.buckets.setdefault(half, [Slot(), Slot()])
            check = h & 0xFFFFFF
            found = next((slot for slot in bucket if slot.check == check), None)
            if found is None:
                k = min(range(2), key=lambda k: bucket[k].histories[1])
                found = bucket[k]  # contexts that have this slot already go on with it
                found.begin(check, 2048 * 16)
            self.slots.append(found)

    def gather(self):
        """Compute the inputs (7.7)."""
        n, partial, shift = self.n, self.partial, self.shift
        self.index = [slot.histories[self.node] for slot in self.slots]
        p = np.array([entries[i] >> 20 for entries, i in zip(self.maps, self.index, strict=True)])
        live = np.array(self.index) > 0
        counter = np.array([slot.counters[self.node] for slot in self.slots])
        x = np.zeros((n, 4), F)
        x[:, 0] = np.where(live, NATURAL[p], 0)
        x[:, 1] = np.where(live, (p - 2048).astype(F) / F(1024), 0)
        x[:, 2] = NATURAL[counter >> 4] * CONFIDENCE[counter & 15]
        self.run_index = [None] * n
        for k, run in enumerate(self.run):
            if run > 0 and (run & 255 | 256) >> (shift + 1) == partial:
                self.run_index[k] = min(run >> 8, 63) * 8 + shift
                v = NATURAL[self.run_maps[k][self.run_index[k]] >> 20]
                x[k, 3] = v if run >> shift & 1 else -v
        parts, total, some = [], np.zeros(4, F), np.zeros(4, F)
        for begin, end in pairwise(self.ends):
            count = (x[begin:end] != 0).sum(0).astype(F)
            part = np.add.accumulate(x[begin:end])[-1] if end > begin else np.zeros(4, F)  # one after the other
            parts.append(part / np.maximum(count, F(1)))
            total, some = total + part, some + count
        mean = total / np.maximum(some, F(1))
        rest, self.found = [], 0
        for match in self.matches:
            logit, tilt, found = match.inputs(partial, shift)
            self.found = self.found or found
            rest += [F(logit) / F(4096), F(tilt) / F(4096)]
        centred = np.where(x != 0, x - mean, F(0))
        means = [mean * F(2), *((part - mean) * F(2) for part in parts)]
        known = np.concatenate([centred.ravel(), *means, rest, [F(0.3)], self.expected()])
        self.inputs = np.zeros(self.weights[0, 0].size, F)
        self.inputs[: known.size] = known
        self.known = 15 * int(live.sum()) // n

    def expected(self):
        """Compute the inputs of the network."""
        if not self.network:
            return []
        top_byte, partial, shift = self.registers["TOP_BYTE"], self.partial, self.shift
        top = top_byte & 255 | 256
        says = 1 + (top >> shift & 1) if top >> (shift + 1) == partial else 0
        self.top_prediction = 3 * (top_byte >> 8 & 7) + says
        p = (self.count[2 * partial + 1] << 16) // self.count[partial]
        self.byte_index = (p >> 11) * 192 + self.top_prediction * 8 + shift
        self.own = NATURAL[p >> 4]
        return [self.own, F(p - 32768) / F(16384), NATURAL[self.byte_map[self.byte_index] >> 20]]

    def mix(self):
        """Return P (7.8 to 7.10)."""
        r, partial, shift, found = self.registers, self.partial, self.shift, self.found
        history, classes = r["HISTORY"], r["CLASSES"]
        rows = [0, partial + (256 * (1 + (found & 1)) if found else 0)]
        chosen = [history & 255, 16 * self.known + found, history >> 8 & 255, classes & 255, r["MATCH"] & 255]
        chosen += [r["LINE"] >> 16 & 255, history >> 16 & 255, self.top_prediction]
        chosen += [16 * (r["WORD_LENGTH"] & 15) + (classes & 15), r["BRACKET"] & 255, self.index[2], self.index[3]]
        if self.is_code:
            now = r["INSTRUCTION"]
            chosen[3] = now % 64 + 64 * ((now >> 6 & 15) > 0) + 128 * ((now >> 18 & 3) > 0)
            chosen[5], chosen[9] = r["INSTRUCTIONS"] & 255, now >> 10 & 255
        elif self.machine:
            now, before = r["INSTRUCTION"], r["INSTRUCTIONS"]
            chosen[3] = now & 7 | (before >> 10 & 31) << 3
            chosen[5], chosen[9] = (n & 255 ^ n >> 8 & 3 for n in (before, now >> 10))
        elif self.record:
            chosen[3], chosen[5], chosen[9] = r["COLUMN"], r["RECORD"] & 255, r["LINEAR"] >> 8 & 255
        if self.copied:
            chosen[2] = 16 * (self.fields.cells & 15) + min(self.fields.length, 15)
        if self.cells:
            chosen[3], chosen[6] = r["PLACE"], r["COUNTER"] & 255 if r["COUNTER"] else chosen[6]
        rows += [8 * row + shift for row in chosen]
        self.rows = list(enumerate(rows))[: self.sets]
        for row in self.rows:
            if row not in self.weights:
                self.weights[row] = self.weights[0, 0].copy()
        self.logit = dots(np.stack([self.weights[row] for row in self.rows]), self.inputs)
        self.logit = np.minimum(np.maximum(self.logit, F(-15.9)), F(15.9))
        self.logits, total = np.zeros(16, F), F(0)
        self.logits[: self.sets] = self.logit
        latest = r["PLACE"] if self.cells else history & 255
        self.final_rows = [(0, partial), (1, 8 * latest + shift), (2, 16 * self.known + found)]
        if self.network:
            self.logits[self.sets] = self.own
            self.final_rows.append((3, 8 * self.top_prediction + shift))
        weights = [self.finals.setdefault(row, np.full(16, F(1) / F(self.sets), F)) for row in self.final_rows]
        self.final = dots(np.stack(weights), self.logits)
        self.final = np.minimum(np.maximum(self.final, F(-15.9)), F(15.9))
        for logit in self.final:
            total = total + logit
        self.x = q12(total * (F(1) / F(len(self.final))))
        words = r["WORD"] + (history & 0xFFFFFF) & U64
        rows = [
            partial,
            256 * (history & 255) + partial,
            mix(history & 0xFFFF, partial) >> 48,
            mix(words, partial) >> 48,
        ]
        if self.cells:
            rows[2:] = mix((r["CELL"] + r["UNUSUAL"]) & U64, partial) >> 48, mix(r["CELL"], partial) >> 48
        self.apm_rows = list(enumerate(rows))
        fresh = [SQUASH[128 * j] for j in range(33)]
        i, f = (self.x + 65536) >> 12, (self.x + 65536) & 4095
        refined = []
        for row in self.apm_rows:
            apm = self.apms.setdefault(row, list(fresh))
            refined.append((apm[i] * (4096 - f) + apm[i + 1] * f) >> 12)
        r0, r1, r2, r3 = refined
        return min(max((2 * squash(self.x) + r0 + 2 * r1 + 2 * r2 + r3) >> 3, 1), 2**32 - 1)

    def learn(self, bit):
        i, target = (self.x + 65536 + 2048) >> 12, 2**32 - 1 if bit else 0
        for k, row in self.apm_rows:
            apm = self.apms[k, row]
            apm[i] += (target - apm[i]) >> (6 if k == 0 else 5)
        for row, logit in zip(self.rows, self.logit, strict=True):
            error, visits = error_of(bit, logit), self.visits.get(row, 0)
            if abs(error) >= F(0.002):
                rate = F(0.002) + F(0.015) / (F(1) + F(visits) * F(0.01))
                self.weights[row] += self.inputs * (error * rate)
                self.visits[row] = visits + 1
            elif visits == 0:
                self.visits[row] = 1
        for row, logit in zip(self.final_rows, self.final, strict=True):
            self.finals[row] += self.logits * (error_of(bit, logit) * F(0.004 if self.cells else 0.002))
        if self.network:
            learn_map(self.byte_map, self.byte_index, bit, 255)
        for k, slot in enumerate(self.slots):
            slot.histories[self.node] = NEXT[bit][slot.histories[self.node]]
            learn_map(self.maps[k], self.index[k], bit, 511)
            count, p = slot.counters[self.node] & 15, slot.counters[self.node] >> 4
            rate = 131072 // (2 * count + 3) if count < 15 else 4096
            p += (((4095 if bit else 0) - p) * rate + 32768) >> 16
            slot.counters[self.node] = p << 4 | min(count + 1, 15)
            if self.run_index[k] is not None:
                learn_map(self.run_maps[k], self.run_index[k], self.run[k] >> self.shift & 1 == bit, 255)
        for match in self.matches:
            match.update_bit(bit, self.shift)

    def end_byte(self):
        c = self.partial & 255
        self.data.append(c)
        for runs, at, run in zip(self.runs, self.run_at, self.run, strict=True):
            again = run > 0 and run & 255 == c
            runs[at] = 256 | c if not again else run + 256 if run >> 8 < 255 else run
        self.registers.update_byte(c, self.data, self.record)
        if self.fields:
            self.registers.update(self.fields.registers(c, self.data))
        if self.copied:
            self.registers.update(self.copied.registers(c, self.data, self.fields))
        if self.strides:
            self.registers.update(self.strides.registers(c, self.data))
        if self.records:
            self.registers.update(self.records.registers(self.data))
        if self.cells:
            self.registers.update(self.cells.registers(self.data, self.records))
        for match in self.matches:
            match.update_byte(self.data)

    def decode(self, coded):
        coder = Coder(coded)
        for _ in range(self.size):
            self.partial = 1
            self.begin_byte()
            for self.shift in range(7, -1, -1):
                self.gather()
                bit = coder.decode(self.mix())
                self.learn(bit)
                self.partial, self.node = 2 * self.partial + bit, 2 * self.node + bit
                if self.shift == 4:
                    self.find_slots(self.partial)
            self.end_byte()
        return bytes(self.data)
