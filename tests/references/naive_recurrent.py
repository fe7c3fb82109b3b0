"""Compute the network by sections 7.2 and 7.11 to 7.13 of docs/format.md, in numpy.

It is written from the text alone.
"""

from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

F = np.float32
FILE = Path(__file__).parents[2] / "squeeze" / "codecs" / "recurrent" / "weights.safetensors"
WORDS = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


# 7.2. numpy rounds each product before it is added.


def dots(a, b):
    """Return dot(a[i], b) for all rows of a matrix."""
    products = a * b
    total = np.zeros((len(a), 16), F)
    for i in range(0, products.shape[1], 16):
        total = total + products[:, i : i + 16]
    for h in (8, 4, 2, 1):
        total = total[:, :h] + total[:, h:]
    return total[:, 0]


def exp(x):
    t = np.maximum(x, F(-87)) * F(1.4426950408889634)
    k = (t + F(12582912)) - F(12582912)
    r, p = t - k, F(1.5403530e-4)
    for c in (1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1):
        p = p * r + F(c)
    return np.ldexp(p, k.astype(np.int32))


def sigmoid(x):
    e = exp(-np.abs(x))
    return np.where(x >= 0, F(1), e) / (F(1) + e)


def tree(e):
    """Return `count` and TOP_BYTE (7.11)."""
    count = [0] * 256 + [1 + int(share) for share in e * F(2**24)]
    for i in range(255, 0, -1):
        count[i] = count[2 * i] + count[2 * i + 1]
    best = min(range(256), key=lambda b: (-count[256 + b], b))
    p = (count[256 + best] << 8) // count[1]
    confidence = sum(bound < p for bound in (32, 64, 104, 152, 200, 232, 250))
    return count, best | confidence << 8


@cache
def stored():
    """Return the tensors of the network's file (7.12)."""
    return load_file(FILE)


@cache
def tensors():
    """Return the tensors of the network's file with matrices of integers as float64, in which sums of their products
    are exact, and quick."""
    return {name: integers(x) if x.dtype != F else x for name, x in stored().items()}


def integers(x):
    return (x if x.dtype == np.int8 else 2 * halves(x) - 15).astype(np.float64)


def halves(x):
    return np.concatenate([x & 15, x >> 4], 1).astype(np.int64)


def change_shapes():
    """Return the tensors that change (13.3), in order, with the rows and columns of their matrices."""
    of = stored()
    shapes = {name: of[name] for name in sorted(of) if not name.endswith(".scale") and not name.startswith("grams.")}
    return {
        name: (1 if x.ndim == 1 else x.shape[0], x.shape[-1] * (2 if x.dtype == np.uint8 else 1))
        for name, x in shapes.items()
    }


def changed(matrices):
    """Return the tensors of a dictionary's own network (13.3), as `tensors` returns them."""
    after = dict(tensors())
    for (name, _), added in zip(change_shapes().items(), matrices, strict=True):
        x = stored()[name]
        if x.dtype == np.int8:
            after[name] = (x + added).clip(-127, 127).astype(np.float64)
        elif x.dtype == np.uint8:
            after[name] = (2 * (halves(x) + added).clip(0, 15) - 15).astype(np.float64)
        else:
            after[name] = x + added.reshape(x.shape).clip(-(2**15), 2**15).astype(F) * F(2**-8)
    return after


def quantise(x, top):
    largest = max(np.abs(x).max(), F(1e-20))
    return largest, np.rint(x * (F(top) / largest)).astype(np.int64)


def multiply(x, inverse, name, of):
    largest, q = quantise(x, 127)
    scale = largest / F(127) * inverse
    sums = of[name] @ q
    assert np.abs(sums).max() < 2**31
    return sums.astype(F) * scale * of[f"{name}.scale"]


def rms_inverse(x):
    largest, q = quantise(x, 2**21)
    unit = float(largest) / 2**21
    mean = float((q * q).sum()) * (unit * unit) / x.size
    return F(1 / np.sqrt(mean + 2**-23))


class Block:
    def __init__(self, name, of):
        self.name, self.of, self.taps, self.keeping = name, of, of[f"{name}.taps"], of[f"{name}.keeping"]
        self.h, self.latest = np.zeros_like(self.keeping), [np.zeros_like(self.keeping)] * 3

    def run(self, x):
        value, forget, gate = np.split(multiply(x, rms_inverse(x), f"{self.name}.into", self.of), 3)
        self.latest.append(value)
        c = self.latest[0] * self.taps[0]
        for v, tap in zip(self.latest[1:], self.taps[1:], strict=True):
            c = c + v * tap
        del self.latest[0]
        a = sigmoid(forget + self.keeping)
        self.h = a * self.h + (F(1) - a) * c
        x = x + multiply(self.h * (gate * sigmoid(gate)), F(1), f"{self.name}.out", self.of)
        gate, wide = np.split(multiply(x, rms_inverse(x), f"{self.name}.gate_up", self.of), 2)
        return x + multiply(gate * sigmoid(gate) * wide, F(1), f"{self.name}.down", self.of)


class Network:
    def __init__(self, of=None):
        """Prepare the network. `of` are tensors as `changed` returns them, None for the package's."""
        self.of = of = of or tensors()
        self.past, self.separated, self.said = 0, True, np.zeros(of["embedding"].shape[1], F)
        blocks = {"before": 1, "words": 2, "after": 1}
        self.stacks = {name: [Block(f"{name}.{k}", of) for k in range(n)] for name, n in blocks.items()}

    def run(self, stack, x):
        for block in self.stacks[stack]:
            x = block.run(x)
        return x

    def feed(self, byte):
        """Return what `feed` of 7.13 returns."""
        self.past = (self.past << 8 | byte) & 0xFFFFFFFF
        x = self.of["embedding"][byte]
        for k in range(3):
            gram = self.past & (1 << 8 * (k + 2)) - 1
            row = (gram * 0x9E3779B97F4A7C15 & (1 << 64) - 1) >> 40 & (8191 if k == 0 else 32767)
            x = x + self.of[f"grams.{k}"][row].astype(F) * self.of[f"grams.{k}.scale"][row]
        x = self.run("before", x)
        separates = byte < 128 and byte not in WORDS
        if separates and not self.separated:
            self.said = multiply(self.run("words", multiply(x, F(1), "up", self.of)), F(1), "down", self.of)
        self.separated = separates
        x = self.run("after", x + self.said)
        logits = multiply(x, rms_inverse(x), "head", self.of)
        return exp(logits - logits.max())
