"""The mixing of the models of images, sounds and arrays in plain Python, written from docs/format.md, section 22.5."""

from operator import mul
from typing import Any

from tests.references.naive_bytewise import SQUASH, clamp, squash

CURVE = [min(SQUASH[128 * j], 2**32 - 1) for j in range(33)]  # of an adaptive map before it learns


def dot(weights: list[int], inputs: list[int]) -> int:
    assert len(weights) == len(inputs)
    return clamp(sum(map(mul, weights, inputs)) >> 16)


class Mixer:
    """Sets of weights, those of their logits, and adaptive maps. `wraps` says that weights have 32 bits."""

    def __init__(self, rate: int, wraps: bool = False):
        self.rate, self.wraps = rate, wraps
        self.weights: dict[tuple[int, int], list[int]] = {}
        self.final: dict[int, list[int]] = {}
        self.apms: dict[tuple[int, int], list[int]] = {}

    def decode(
        self,
        coder: Any,
        inputs: list[int],
        rows: list[int],
        first: list[int],
        last: int,
        keys: tuple[tuple[int, int], ...],
    ) -> int:
        """Decode a bit, and learn from it.

        Args:
            coder: arithmetic decoder
            inputs: logits
            rows: row of each set of weights
            first: weights of a row that is new
            last: row of the weights of the sets' logits
            keys: number and entry of each adaptive map
        """
        weights = [self._row(self.weights, key, first) for key in enumerate(rows)]
        final = self._row(self.final, last, [65536 // len(rows)] * len(rows))
        logits = [dot(one, inputs) for one in weights]
        x = dot(final, logits)
        mixed, (k, f) = squash(x), divmod(x + 65536, 4096)
        apms = [self._row(self.apms, key, CURVE) for key in keys]
        refined = sum((apm[k] * (4096 - f) + apm[k + 1] * f) >> 12 for apm in apms)
        bit: int = coder.decode(min(max((2 * mixed + refined) >> 2, 1), 2**32 - 1))
        target = 2**32 - 1 if bit else 0
        for apm in apms:
            j = (x + 65536 + 2048) >> 12
            apm[j] += (target - apm[j]) >> 6
        for one, logit in zip(weights, logits, strict=True):
            self._train(one, inputs, self.rate * ((target - squash(logit)) >> 16))
        self._train(final, logits, (target - mixed) >> 16)
        return bit

    def _row(self, table: dict[Any, list[int]], key: Any, first: list[int]) -> list[int]:
        if key not in table:
            table[key] = list(first)
        return table[key]

    def _train(self, weights: list[int], inputs: list[int], step: int) -> None:
        weights[:] = [w + ((step * value + 2**21) >> 22) for w, value in zip(weights, inputs, strict=True)]
        if self.wraps:
            weights[:] = [(w + 2**31) % 2**32 - 2**31 for w in weights]
