"""Blocks of the cheapest tokens, written from docs/format.md, section 21.13, one number at a time."""

from bisect import bisect_right
from typing import Any, Protocol

LENGTHS = [3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227]
LENGTHS.append(258)
LENGTH_BITS = [0] * 8 + [n for n in (1, 2, 3, 4, 5) for _ in range(4)] + [0]
DISTANCE_BITS = [0, 0, *(n for n in range(14) for _ in range(2))]
DISTANCES = [1 + sum(1 << n for n in DISTANCE_BITS[:k]) for k in range(30)]
FIXED = [8] * 144 + [9] * 112 + [7] * 24 + [8] * 8
NEVER = 2**30
_NICE_AND_CHAIN = {16: (258, 256), 17: (150, 256), 18: (128, 128), 19: (75, 35), 20: (64, 64), 21: (32, 32)}

Token = tuple[int, int]


class _Decoder(Protocol):
    def bit(self, *entry: Any) -> int: ...

    def tree(self, bits: int, *array: Any) -> int: ...

    def digits(self, bits: int) -> int: ...


class Cheapest:
    """Trees of a content, costs of symbols, and the tokens that they make cheap."""

    def __init__(self, content: bytes, level: int, window: int):
        self.content, self.window = content, window
        self.nice, self.chain = _NICE_AND_CHAIN[level]
        self.roots: dict[int, int] = {}
        self.smaller: dict[int, int | None] = {}
        self.larger: dict[int, int | None] = {}
        self.matches: dict[int, list[Token]] = {}
        self.found = self.quiet = self.history = 0
        self.set_costs(FIXED, [5] * 30, NEVER)

    def set_costs(self, literals: list[int], distances: list[int], without: int) -> None:
        self.literals = [bits or without for bits in literals]
        self.distances = [(bits or without) + more for bits, more in zip(distances, DISTANCE_BITS, strict=True)]
        for k, more in enumerate(LENGTH_BITS):
            self.literals[257 + k] += more

    def join(self, p: int) -> list[Token]:
        """Let a position join its tree, and return its matches."""
        most, best, found = min(258, len(self.content) - p), 2, list[Token]()
        if most < 3:
            return found
        key = 2654435761 * int.from_bytes(self.content[p : p + 3], "little") % 2**32 >> 16
        q, steps = self.roots.get(key), 0
        self.roots[key] = p
        low, high = (self.smaller, p), (self.larger, p)
        while q is not None and p - q <= self.window and steps < self.chain:
            steps += 1
            same = next((k for k in range(most) if self.content[p + k] != self.content[q + k]), most)
            if same > best:
                found.append((same, p - q))
                best = same
            if same >= min(self.nice, most):
                low[0][low[1]], high[0][high[1]] = self.smaller[q], self.larger[q]
                return found
            if self.content[q + same] < self.content[p + same]:
                low[0][low[1]], low, q = q, (self.larger, q), self.larger[q]
            else:
                high[0][high[1]], high, q = q, (self.smaller, q), self.smaller[q]
        low[0][low[1]] = high[0][high[1]] = None
        return found

    def look(self, p: int, end: int) -> None:
        while self.found < p:
            self.join(self.found)
            self.found += 1
        while self.found < end and self.found - p < 2**15 and self._known(p) + 258 <= 2**19:
            found = self.join(self.found)
            if self.found < self.quiet:
                found = []
            elif found and self.nice < 258 and found[-1][0] >= self.nice:
                self.quiet = self.found + found[-1][0]
            self.matches[self.found] = found
            self.found += 1
        self.bound = self.found
        self.stop = self.bound - (min(2048, (self.bound - p) // 2) if self.bound < end else 0)

    def _known(self, p: int) -> int:
        return sum(len(self.matches[q]) for q in range(p, self.found))

    def measure(self, p: int) -> None:
        self.rest = {self.bound: 0}
        for q in range(self.bound - 1, p - 1, -1):
            self.rest[q] = min(NEVER, *(bits for bits, _ in self._choices(q)))

    def _choices(self, q: int) -> list[tuple[int, Token]]:
        found, length = [(self.literals[self.content[q]] + self.rest[q + 1], (0, 0))], 3
        for longest, distance in self.matches[q]:
            bits = self.distances[bisect_right(DISTANCES, distance) - 1]
            while length <= min(longest, self.bound - q):
                symbol = 257 + bisect_right(LENGTHS, length) - 1
                found.append((bits + self.literals[symbol] + self.rest[q + length], (length, distance)))
                length += 1
        return found

    def ranked(self, q: int) -> list[tuple[int, Token]]:
        """Return the excess of the cheapest tokens, and the tokens."""
        found = sorted((choice for choice in self._choices(q) if choice[0] < NEVER), key=lambda choice: choice[0])
        return [(bits - found[0][0], token) for bits, token in found[:12]]

    def expected(self, p: int) -> list[Token]:
        tokens = list[Token]()
        while p < self.bound:
            tokens.append(ranked[0][1] if (ranked := self.ranked(p)) else (0, 0))
            p += max(tokens[-1][0], 1)
        return tokens

    def token(self, d: _Decoder, p: int) -> Token:
        """Decode the token at a position."""
        ranked = self.ranked(p)
        for k, (excess, token) in enumerate(ranked):
            gap = ranked[k + 1][0] - excess if k + 1 < len(ranked) else 100
            g = min(gap, 4 if gap < 6 else 5 if gap < 10 else 6)
            length = token[0]
            b = 0 if not length else length - 2 if length < 6 else 4 if length < 10 else 5 if length < 20 else 6
            where = ("first", b, g, self.history) if k == 0 else ("later", min(k, 7), b, g, min(excess, 7))
            if d.bit("pick", *where):
                break
        else:
            token, k = self._other(d), 1
        self.history = (2 * self.history + (k > 0)) % 16
        return token

    def _other(self, d: _Decoder) -> Token:
        if not d.bit("other"):
            return 0, 0
        length = 3 + d.tree(8, "length_of", 0)
        symbol = d.tree(5, "far")
        return length, DISTANCES[symbol] + d.digits(DISTANCE_BITS[symbol])
