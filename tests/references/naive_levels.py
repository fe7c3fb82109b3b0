"""Decode by sections 5 and 6 of docs/format.md, levels 1 to 3, in Python. It is written from the text alone."""

import json
import lzma
import re
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load

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
from tests.references.naive_fields import Fields
from tests.references.naive_records import Records

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
NAMES = (
    *("-", "OLDER", "WORD", "WORD_PAIR", "WORD_SKIP", "FOLLOWED", "RECORD", "POSITION", "CLASSES", "LINE"),
    *("PREVIOUS_WORD", "WORD_BEFORE", "LINE_START", "LINE_ABOVE"),
    *("PHASE", "SPELLED", "LAST_1", "LAST_2", "LAST_3", "TOKEN_1", "TOKEN_2", "TOKEN_3"),  # of tokenwise blocks
    *("ABOVE", "ALIKE", "MARKS", "CELL_KEY", "CELL_PLACE", "NUMBER", "KEY", "UP"),  # of lines
    *("COUNT", "CHANGES", "LINEAR", "COLUMN"),  # of records
)


@cache
def _rows(section, *wanted):
    """Return the rows of a section's tables whose first cells name what is wanted."""
    text = FORMAT.read_text().split(f"### {section} ")[1].split("\n##")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if all(one in cell.split(", ") for one, cell in zip(wanted, row, strict=False))]


@cache
def preset_of(level, kind):
    """Return contexts, least match lengths, selectors and slot_bits (6.1)."""
    rows = [row for row in _rows("6.1", str(level)) if row[1] == "all" or kind in row[1].split(", ")]
    lengths, selectors, lines = next(row for row in rows if len(row) == 5)[2:]
    found = re.findall(r"\((\S+) (\S+) (\S+)\)", next(row for row in rows if len(row) == 3)[2])
    contexts = [(NAMES.index(name), int(mask, 16), int(history, 16)) for name, mask, history in found]
    return contexts, [int(length) for length in lengths.split(", ")], int(selectors), int(lines.split("^")[1])


@cache
def known_of(level, kind):
    """Return the tensors that models start from (6.2), None for nothing."""
    rows = _rows("6.2", str(level), kind)
    return planes(FORMAT.parents[1] / "squeeze/codecs/bytewise" / rows[0][2].strip("`")) if rows else None


def planes(file):
    """Return the tensors of a safetensors file, or of one in an .xz file, that has planes of numbers (6.2)."""
    data = file.read_bytes()
    data = lzma.decompress(data) if file.suffix == ".xz" else data
    types = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    found = {}
    for name, stored in load(data).items():
        whole = sum(plane.astype(np.int64) << 8 * place for place, plane in enumerate(stored))
        bits = 8 * len(stored)
        if bits > 8:
            whole = np.where(whole % 2 == 0, whole // 2, -(whole + 1) // 2)
        values = whole % (1 << bits)
        kind = {"I8": np.int8, "I16": np.int16, "I32": np.int32, "U32": np.uint32}[types[name]]
        found[name] = values.astype(f"u{len(stored)}").view(kind).T
    return found


def moved(known, trained, contexts):
    """Return the tensors of models with the contexts of lines (6.2)."""
    weights, maps = [], []
    for context in contexts:
        there = trained.index(context) if context in trained else None
        weights.append(np.full(len(known["weights"]), -8000 / 256) if there is None else known["weights"][:, there])
        maps.append([*START, *[0] * (256 - len(START))] if there is None else known["maps"][there])
    columns = np.concatenate([np.stack(weights, 1), known["weights"][:, len(trained) :]], 1)
    return {**known, "weights": columns, "maps": np.array(maps)}


def _begun(fresh, above):
    return [[min(max(e + (int(a) << 20), 0), 2**32 - 1) for e, a in zip(fresh, row, strict=True)] for row in above]


class Models:
    """Fresh models of a preset (section 5), with `more` inputs after the bias."""

    fields = None  # the registers of lines

    def __init__(self, preset, record, size, more=0):
        self.contexts, matches, self.s, slot_bits = preset
        self.n, self.size, self.record = len(self.contexts), size, record
        self.records = Records(record) if record else None
        self.line_bits = min(max((size * self.n // 4).bit_length(), 8), slot_bits)
        self.lines, self.data = {}, bytearray()
        self.r, self.followed = dict.fromkeys(("HISTORY", *NAMES[1:]), 0), {}
        self.maps = [list(START) for _ in self.contexts]
        self.matches = [Matches(least, size) for least in matches]
        inputs = self.n + 2 * len(matches) + 1 + more
        self.weights = [np.full((rows, inputs), 12000, np.int64) for rows in (4096, 2048, 256)[: self.s]]
        self.final = np.full((256, self.s), 65536 // self.s, np.int64)
        fresh = [min(SQUASH[128 * j], 2**32 - 1) for j in range(33)]
        self.apm1, self.apm2, self.fresh = [list(fresh) for _ in range(4096)], {}, fresh

    def update_byte(self, c):
        """Update after a byte (5.3)."""
        r, q = self.r, len(self.data)
        for count in (1, 2):
            key = count, r["HISTORY"] & (1 << 8 * count) - 1
            self.followed[key] = (self.followed.get(key, 0) << 8 | c) & 0xFFFF
        r["OLDER"] = (r["OLDER"] << 8 | r["HISTORY"] >> 56) & U64
        r["HISTORY"] = (r["HISTORY"] << 8 | c) & U64
        one, two = (self.followed.get((count, r["HISTORY"] & (1 << 8 * count) - 1), 0) for count in (1, 2))
        r.update({"FOLLOWED": one | two << 16, "POSITION": q, "CLASSES": (r["CLASSES"] << 4 | CLASS_OF[c]) & U64})
        d = c + 32 if 65 <= c <= 90 else c
        if 97 <= d <= 122 or d >= 128:
            r["WORD"] = mix(r["WORD"], d)
        elif r["WORD"]:
            r.update({"WORD_BEFORE": r["PREVIOUS_WORD"], "PREVIOUS_WORD": r["WORD"], "WORD": 0})
        r["WORD_PAIR"], r["WORD_SKIP"] = mix(r["WORD"], r["PREVIOUS_WORD"]), mix(r["WORD"], r["WORD_BEFORE"])
        if self.record:
            above, above2 = (self.data[q - k * self.record] if q >= k * self.record else 0 for k in (1, 2))
            r["RECORD"] = above | above2 << 8 | q % self.record << 16
            return
        if c == 10:
            r.update({"LINE_ABOVE": r["LINE_START"], "LINE_START": q})
        column, over = q - r["LINE_START"], r["LINE_ABOVE"] + q - r["LINE_START"]
        above = self.data[over] if over < r["LINE_START"] else 10
        r["LINE"] = above | min(column, 255) << 8 | (self.data[r["LINE_START"]] if column else 0) << 16

    def find_slots(self, salt):
        """Find the slots of all contexts (5.5)."""
        self.slots, self.node = [], 1
        for hashed in self.hashes:
            h = mix(hashed, salt)
            line = self.lines.setdefault(h >> 20 & (1 << self.line_bits) - 1, [[0] * 16 for _ in range(4)])
            slot = next((slot for slot in line if slot[0] == h >> 8 & 0xFF), None)
            if slot is None:
                slot = min(line, key=lambda slot: slot[1])
                slot[:] = [h >> 8 & 0xFF] + [0] * 15
            self.slots.append(slot)

    def refine(self, row, x):
        i, f = (x + 65536) >> 12, (x + 65536) & 4095
        return (row[i] * (4096 - f) + row[i + 1] * f) >> 12

    def predict(self, partial, shift, more=()):
        """Return P (5.9 and 5.10), and keep what `learn` needs."""
        histories = [slot[self.node] for slot in self.slots]
        x = [STRETCH[self.maps[k][h] >> 20] if h else 0 for k, h in enumerate(histories)]
        known, found = 7 * sum(h > 0 for h in histories) // self.n, 0
        for match in self.matches:
            logit, tilt, tells = match.inputs(partial, shift)
            found = found or tells
            x += [logit, tilt]
        x = np.array([*x, 1024, *more], np.int64)
        rows = [256 * found + partial]
        latest = self.r["COLUMN"] if self.record else self.r["HISTORY"] & 0xFF
        rows += [8 * latest + shift, 16 * known + found]
        sets = [weights[row] for weights, row in zip(self.weights, rows, strict=False)]
        logits = [clamp(int(weights @ x) >> 16) for weights in sets]
        logit = clamp(int(self.final[partial] @ np.array(logits)) >> 16)
        row2 = self.apm2.setdefault(mix(self.r["HISTORY"] & 0xFFFF, partial) >> 48, list(self.fresh))
        mixed, apms = squash(logit), (self.apm1[256 * found + partial], row2)
        p = (mixed + self.refine(apms[0], logit) + 2 * self.refine(apms[1], logit)) >> 2
        self.now = x, histories, known, found, sets, logits, logit, mixed, apms, shift, self.final[partial]
        return min(max(p, 1), 2**32 - 1)

    def learn(self, bit):
        """Learn from a bit (5.11)."""
        x, histories, _, _, sets, logits, logit, mixed, apms, shift, final = self.now
        target = 2**32 - 1 if bit else 0
        for row, rate in zip(apms, (6, 5), strict=True):
            i = (logit + 65536 + 2048) >> 12
            row[i] += (target - row[i]) >> rate
        for row, own in zip(sets, logits, strict=True):
            row[:] += (((target - squash(own)) >> 16) * 10 * x + 2**21) >> 22
        final += (((target - mixed) >> 16) * np.array(logits) + 2**21) >> 22
        for k, slot in enumerate(self.slots):
            slot[self.node] = NEXT[bit][slot[self.node]]
            learn_map(self.maps[k], histories[k], bit, 511)
        for match in self.matches:
            match.update_bit(bit, shift)

    def begin_byte(self):
        history = self.r["HISTORY"]
        of = [history if number == 0 else self.r[NAMES[number]] for number, _, _ in self.contexts]
        self.hashes = [
            mix(value & mask, mix(history & own, k))
            for k, (value, (_, mask, own)) in enumerate(zip(of, self.contexts, strict=True))
        ]
        for match in self.matches:
            match.expected = self.data[match.pointer] + 256 if match.pointer > 0 else 0
        self.partial, self.shift = 1, 7
        self.find_slots(0)

    def advance(self, bit):
        self.partial, self.node, self.shift = 2 * self.partial + bit, 2 * self.node + bit, self.shift - 1
        if self.shift == 3:
            self.find_slots(self.partial)

    def byte(self, coder, more=()):
        """Decode a byte by these models alone."""
        self.begin_byte()
        for _ in range(8):
            bit = coder.decode(self.predict(self.partial, self.shift, more))
            self.learn(bit)
            self.advance(bit)
        self.end_byte(self.partial & 255)

    def end_byte(self, c):
        self.data.append(c)
        self.update_byte(c)
        if self.fields:
            self.r.update(self.fields.registers(c, self.data))
        if self.records:
            self.r.update(self.records.registers(self.data))
        for match in self.matches:
            match.update_byte(self.data)


class Decoder(Models):
    def __init__(self, level, kind, record, size, bare=False):
        super().__init__(preset_of(level, kind), record, size)
        self.fields = Fields() if kind == "lines" else None
        known = None if bare else known_of(level, "text" if kind == "lines" else kind)
        if known:
            self.begin_with(moved(known, preset_of(level, "text")[0], self.contexts) if self.fields else known)

    def begin_with(self, known):
        """Start from trained values (6.2)."""
        weights = np.split(
            (12000 + 256 * known["weights"].astype(np.float64)).astype(np.int64), np.cumsum((4096, 2048))[: self.s - 1]
        )
        self.weights = [rows[:, : own.shape[1]] for rows, own in zip(weights, self.weights, strict=True)]
        self.final = known["final_weights"].astype(np.int64)
        self.apm1 = _begun(self.fresh, known["apm1"])
        self.apm2 = dict(zip(known["apm2_rows"].tolist(), _begun(self.fresh, known["apm2"]), strict=True))
        self.maps = known["maps"].tolist()
        for match, entries in zip(self.matches, known["match_maps"].tolist(), strict=True):
            match.map = entries

    def decode(self, coded):
        coder = Coder(coded)
        while len(self.data) < self.size:
            self.byte(coder)
        return bytes(self.data)
