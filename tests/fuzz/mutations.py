"""Change bytes and JSON, whatever they mean. The same generator changes them in the same way."""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

_MOST_PLACES = 5_000  # a list that grew is not let grow again
_TOKEN = "\ue000raw{}\ue000"


class Raw:
    """JSON that `json` does not write: written as it stands."""

    def __init__(self, text: str) -> None:
        self.text = text


NUMBERS: tuple[Any, ...] = (
    *(
        0,
        -1,
        1,
        2,
        255,
        256,
        65_535,
        65_536,
        2**31 - 1,
        2**31,
        2**32,
        2**53 + 1,
        2**62,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
    ),
    *(0.5, -0.0, 1e-320, 1e308, -1e308, Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("9" * 5_000)),
)
TEXTS: tuple[Any, ...] = (
    *(
        "",
        " ",
        "\0",
        "a\nb",
        "\x1b[31mred",
        "\u202eover",
        "\ud800",
        "\U0001f512",
        "..",
        "../outside",
        "/etc/passwd",
        ".",
    ),
    *("a" * 300, "9" * 5_000, "é" * 70_000, "{}", "[]", "null", "%s%n{0}", "__class__", "C:\\x", "a/../../b", "~"),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, [], {}, [[]], [None], {"": None}, [0] * 3_000, {"a": {"b": {"c": {}}}}),
    *(Raw("[" * 800 + "]" * 800), Raw("[" * 90_000), Raw('{"a":' * 800 + "1" + "}" * 800)),
)
SIZES = (
    0,
    1,
    2,
    3,
    7,
    11,
    127,
    128,
    255,
    256,
    65_535,
    65_536,
    1 << 20,
    1 << 28,
    (1 << 28) + 1,
    1 << 31,
    1 << 40,
    1 << 62,
)


def edge(random: Random) -> Any:
    """A value at the edge of what any field holds, or beyond."""
    return deepcopy(random.choice(random.choice((NUMBERS, NUMBERS, TEXTS, OTHERS))))


def size(random: Random, before: int) -> int:
    """Another length than `before`, which a varint can hold: near it, or far."""
    near = (before + 1, before + 2, max(before - 1, 0), before * 2, before // 2, before * 256, before ^ 1 << 7)
    return random.choice(near) if random.random() < 0.5 else random.choice(SIZES)


def damaged(data: bytes, random: Random) -> bytes:
    """Bytes of which some have changed, gone, or come."""
    out = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if not out:
            break
        at = random.randrange(min(len(out), 64) if random.random() < 0.3 else len(out))
        random.choice(_BYTES)(out, at, random)
    return bytes(out)


def _flip(out: bytearray, at: int, random: Random) -> None:
    out[at] ^= 1 << random.randrange(8)


def _set(out: bytearray, at: int, random: Random) -> None:
    out[at] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))


def _remove(out: bytearray, at: int, random: Random) -> None:
    del out[at : at + random.choice((1, 2, 8, random.randrange(1, 100)))]


def _insert(out: bytearray, at: int, random: Random) -> None:
    out[at:at] = random.randbytes(random.choice((1, 2, 8, random.randrange(1, 100))))


def _double(out: bytearray, at: int, random: Random) -> None:
    out[at:at] = out[at : at + random.choice((1, 8, random.randrange(1, 200)))]


def _truncate(out: bytearray, at: int, random: Random) -> None:
    del out[at:]


def _fill(out: bytearray, at: int, random: Random) -> None:
    count = random.choice((2, 4, 8, 9, 16))
    out[at : at + count] = bytes([random.choice((0, 255))]) * count


def _copy(out: bytearray, at: int, random: Random) -> None:
    other, count = random.randrange(len(out)), random.choice((4, 16, 64))
    out[at : at + count] = out[other : other + count]


def _number(out: bytearray, at: int, random: Random) -> None:
    value, width = random.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)), random.choice((4, 8))
    out[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, "little")


def _swap(out: bytearray, at: int, random: Random) -> None:
    other, count = random.randrange(len(out)), random.choice((8, 64))
    first, second = sorted((at, other))
    if second - first >= count and second + count <= len(out):
        out[first : first + count], out[second : second + count] = (
            out[second : second + count],
            out[first : first + count],
        )


_BYTES: tuple[Callable[[bytearray, int, Random], None], ...] = (
    *(_flip, _flip, _flip, _set, _set, _remove, _insert, _double, _truncate, _fill, _copy, _number, _swap),
)


def spliced(one: bytes, other: bytes, random: Random) -> bytes:
    """The beginning of one and the end of another, sometimes at the same place."""
    cut = random.randrange(len(one) + 1)
    return one[:cut] + other[min(cut, len(other)) if random.random() < 0.5 else random.randrange(len(other) + 1) :]


def to_json(value: Any, **layout: Any) -> str:
    """JSON with its raw parts."""
    raws: list[str] = []

    def token(part: Raw) -> str:
        raws.append(part.text)
        return _TOKEN.format(len(raws) - 1)

    text = json.dumps(value, default=token, **{"ensure_ascii": True, **layout})
    for number, raw in enumerate(raws):
        for spelling in (json.dumps(_TOKEN.format(number)), f'"{_TOKEN.format(number)}"'):
            text = text.replace(spelling, raw)
    return text


def mutated(value: Any, random: Random) -> Any:
    """A copy of a JSON value with something else in one to three places."""
    copy = json.loads(json.dumps(value))
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = list(_places(copy))
        if not places:
            return edge(random)
        if len(places) > _MOST_PLACES:
            break
        _change(*random.choice(places), random)
    return copy


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything below a value."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys]
    return found


def _change(holder: Any, key: Any, random: Random) -> None:
    value = holder[key]
    match random.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(TEXTS)] = holder.pop(key)
        case 1:
            holder.insert(key, value)
        case 2:
            other = random.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            holder[key], holder[other] = holder[other], value
        case 3 | 4 if type(value) in (int, float):
            holder[key] = random.choice((value + 1, value - 1, value * 2, -value, value / 2, str(value), [value]))
        case 3 | 4 if isinstance(value, str):
            holder[key] = _text(value, random)
        case 5 if isinstance(value, list):
            holder[key] = random.choice((value[:-1], value * 2, value[::-1], [*value, edge(random)], value * 500))
        case 5 if isinstance(value, dict):
            value[random.choice(TEXTS)] = edge(random)
        case _:
            holder[key] = edge(random)


def _text(value: str, random: Random) -> str:
    at = random.randrange(len(value) + 1)
    tail = value[at + 1 :]
    return random.choice(
        (value[:at] + tail, value[:at] + random.choice("0a9f-./+=\0é") + tail, value * 2, value.upper())
    )
