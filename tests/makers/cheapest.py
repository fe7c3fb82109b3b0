"""Deflate streams of an encoder that looks for the cheapest tokens of a block, as zopfli, libdeflate and 7-Zip do."""

import random
from bisect import bisect_right
from functools import cache

from tests.references.naive_cheapest import DISTANCE_BITS, DISTANCES, LENGTH_BITS, LENGTHS
from tests.references.naive_huffman import ORDER, canonical, zlib_lengths

_ROUNDS = 3

Token = tuple[int, int]  # length and distance, (0, 0) for a literal


def deflated(content: bytes, blocks: int = 1, odd: float = 0.0) -> bytes:
    """Return a stream in which a share `odd` of the tokens is not the cheapest one."""
    bits, matches, chance = list[str](), nearest(content), random.Random(1)
    size = -(-len(content) // blocks)
    for start in range(0, len(content), size):
        end = min(start + size, len(content))
        literals, distances = [8] * 286, [5] * 30
        for _ in range(_ROUNDS):
            tokens = _cheapest(content, matches, start, end, literals, distances, chance, odd)
            literals, distances = _lengths(content, tokens, start)
        _write(bits, content, tokens, start, literals, distances, end == len(content))
    text = "".join(bits)
    return int(text[::-1], 2).to_bytes(-(-len(text) // 8), "little")


@cache
def nearest(content: bytes) -> list[list[Token]]:
    """Return the nearest match for each length at each position, from short to long."""
    found, places = list[list[Token]](), dict[bytes, list[int]]()
    for p in range(len(content)):
        most, best, here = min(258, len(content) - p), 2, list[Token]()
        for q in reversed(places.get(content[p : p + 3], [])):
            same = next((k for k in range(most) if content[p + k] != content[q + k]), most)
            if same > best:
                here += [(length, p - q) for length in range(best + 1, same + 1)]
                best = same
        places.setdefault(content[p : p + 3], []).append(p)
        found.append(here)
    return found


def symbols(token: Token) -> tuple[int, int]:
    """Return the numbers of a match's length and distance."""
    length, distance = token
    return bisect_right(LENGTHS, length) - 1, bisect_right(DISTANCES, distance) - 1


def _cheapest(content, matches, start, end, literals, distances, chance, odd) -> list[Token]:
    rest, best = [0] * (end - start + 1), [(0, 0)] * (end - start)
    for p in range(end - 1, start - 1, -1):
        choices = [((literals[content[p]] or 13) + rest[p + 1 - start], (0, 0))]
        for token in matches[p]:
            if p + token[0] <= end:
                length, distance = symbols(token)
                cost = (literals[257 + length] or 13) + LENGTH_BITS[length]
                cost += (distances[distance] or 13) + DISTANCE_BITS[distance]
                choices.append((cost + rest[p + token[0] - start], token))
        rest[p - start], best[p - start] = min(choices, key=lambda choice: choice[0])
        if chance.random() < odd:
            best[p - start] = chance.choice(choices)[1]
    tokens, p = list[Token](), start
    while p < end:
        tokens.append(best[p - start])
        p += max(tokens[-1][0], 1)
    return tokens


def _lengths(content: bytes, tokens: list[Token], p: int) -> tuple[list[int], list[int]]:
    literals, distances = [0] * 286, [0] * 30
    literals[256] = 1
    for token in tokens:
        if token[0]:
            length, distance = symbols(token)
            literals[257 + length] += 1
            distances[distance] += 1
        else:
            literals[content[p]] += 1
        p += max(token[0], 1)
    return zlib_lengths(literals, 15), zlib_lengths(distances, 15)


def _write(bits: list[str], content: bytes, tokens, p: int, literals, distances, is_final: bool) -> None:
    def put(value: int, width: int) -> None:
        bits.append(f"{value:0{width}b}"[::-1] if width else "")

    head = zlib_lengths([1] * 16 + [0] * 3, 7)  # each code length is written as it is
    for value, width in ((is_final, 1), (2, 2), (286 - 257, 5), (30 - 1, 5), (19 - 4, 4)):
        put(int(value), width)
    for symbol in ORDER:
        put(head[symbol], 3)
    for length in literals + distances:
        put(*canonical(head)[length])
    of_literals, of_distances = canonical(literals), canonical(distances)
    for token in tokens:
        if token[0]:
            length, distance = symbols(token)
            put(*of_literals[257 + length])
            put(token[0] - LENGTHS[length], LENGTH_BITS[length])
            put(*of_distances[distance])
            put(token[1] - DISTANCES[distance], DISTANCE_BITS[distance])
        else:
            put(*of_literals[content[p]])
        p += max(token[0], 1)
    put(*of_literals[256])
