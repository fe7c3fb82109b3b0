"""Sections 7.18 and 7.19 of docs/format.md, the network, in numpy: written from the text alone."""

from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.references.naive_ssm import F, exp, sigmoid

FOLDER = Path(__file__).parents[2] / "squeeze" / "codecs" / "recurrent"
WORDS = frozenset(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


@cache
def stored(number):
    """7.18: those of a network's file."""
    return load_file(FOLDER / f"weights.{number}.safetensors")


@cache
def tensors(number=2):
    """The same with matrices as int64, in which sums are exact."""
    return {name: integers(x) if x.dtype != F else x for name, x in stored(number).items()}


def integers(x):
    if x.dtype == np.int8:
        return x.astype(np.int64)
    return 2 * halves(x) - 15


def halves(x):
    return np.concatenate([x & 15, x >> 4], 1).astype(np.int64)


def change_shapes(number=2):
    """13.4: the tensors that change, in order, and the rows and columns of their matrices."""
    of = stored(number)
    shapes = {name: of[name] for name in sorted(of) if not name.endswith(".scale") and not name.startswith("grams.")}
    return {
        name: (1 if x.ndim == 1 else x.shape[0], x.shape[-1] * (2 if x.dtype == np.uint8 else 1))
        for name, x in shapes.items()
    }


def changed(matrices, number=2):
    """13.4: the tensors of a dictionary's own network, as `tensors` has them."""
    after = dict(tensors(number))
    for (name, _), added in zip(change_shapes(number).items(), matrices, strict=True):
        x = stored(number)[name]
        if x.dtype == np.int8:
            after[name] = (x + added).clip(-127, 127)
        elif x.dtype == np.uint8:
            after[name] = 2 * (halves(x) + added).clip(0, 15) - 15
        else:
            after[name] = x + added.reshape(x.shape).clip(-(2**15), 2**15).astype(F) * F(2**-8)
    return after


def quantise(x, top):
    largest = max(np.abs(x).max(), F(1e-20))
    return largest, np.rint(x * (F(top) / largest)).astype(np.int64)


def multiply(x, inverse, name, of):
    largest, q = quantise(x, 32639)
    scale = largest / F(32639) * inverse
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
    def __init__(self, number=2, of=None):
        """number: of the package's network. of: tensors as `changed` gives them, in place of its."""
        self.of = of = of or tensors(number)
        self.past, self.separated, self.said = 0, True, np.zeros(of["embedding"].shape[1], F)
        blocks = {"before": 1, "words": 2, "after": 1}
        self.stacks = {name: [Block(f"{name}.{k}", of) for k in range(n)] for name, n in blocks.items()}

    def run(self, stack, x):
        for block in self.stacks[stack]:
            x = block.run(x)
        return x

    def feed(self, byte):
        """What `feed` of 7.19 returns."""
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
