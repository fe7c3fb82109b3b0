"""Cutting input into blocks of one kind of content, and the filter for executables.

The kinds are guesses that decide which contexts a block gets; a wrong guess
costs size, never correctness. "packed" marks content that is compressed or
encrypted already.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.stream.container import Content
from squeeze.numerics.jit import kernel

WINDOW = 1 << 16
_LEAST_RUN = 4  # windows: a shorter region joins the one before it
_PACKED = Content("packed")
_MAX_DISTANCE = 512
_TEXT_BYTES = np.zeros(256, bool)
_TEXT_BYTES[[9, 10, 12, 13, *range(32, 127), *range(128, 245)]] = True


def regions(data: np.ndarray) -> Iterator[tuple[int, int, Content]]:
    """Yield (start, end, content) that cover uint8 `data`, each of the kind of most of it; of equals the first."""
    starts = list(range(0, data.size, WINDOW))
    if len(starts) > 1 and data.size - starts[-1] < WINDOW // 2:
        starts.pop()
    kinds = [_classify(data[start : start + WINDOW]) for start in starts]
    run = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts) and not _changes(kinds, run, i):
            continue
        end = starts[i] if i < len(starts) else data.size
        region = data[starts[run] : end]
        yield starts[run], end, _settle(region, Counter(kinds[run:i]).most_common(1)[0][0])
        run = i


def content(data: np.ndarray) -> Content:
    """Of uint8 `data` that is not cut."""
    return _settle(data, _classify(data)) if data.size else Content("other")


def _changes(kinds: list[str], run: int, i: int) -> bool:
    """Whether a new region begins at window i: the kinds on both sides are steady and differ."""
    after = kinds[i : i + _LEAST_RUN]
    before = kinds[max(run, i - _LEAST_RUN) : i]
    steady = len(after) == len(before) == _LEAST_RUN and len(set(after)) == len(set(before)) == 1
    return steady and after[0] != before[0]


def _classify(window: np.ndarray) -> str:
    counts = np.bincount(window, minlength=256)
    texty = counts[_TEXT_BYTES].sum() / window.size
    if texty > 0.97 and (counts[128:].sum() < 0.9 * window.size or _is_utf8(window)):
        return "text"
    if _is_x86(window):
        return "executable"
    shares = counts[counts > 0] / window.size
    entropy = -(shares * np.log2(shares)).sum()
    return "packed" if window.size >= 4096 and entropy > 7.95 else "other"


def _is_utf8(window: np.ndarray) -> bool:
    """Whether it is UTF-8, but for characters cut at its ends."""
    starts = np.flatnonzero((window & 0xC0) != 0x80)
    if starts.size < 2:
        return False
    try:
        window[starts[0] : starts[-1]].tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_x86(window: np.ndarray) -> bool:
    """Whether enough near calls stand in it: E8, and the top byte of a distance within 16 MiB."""
    if window.size < 1024:
        return False
    calls = window[:-4] == 0xE8
    near = (window[4:] == 0) | (window[4:] == 255)
    near_calls = int(np.count_nonzero(calls & near))
    return near_calls > max(window.size / 400, 0.4 * int(np.count_nonzero(calls)))


def _settle(data: np.ndarray, kind: str) -> Content:
    """The content of a whole region, with the questions that need all of it."""
    if kind == "packed":
        return Content("other") if _repeats(data) else _PACKED
    if kind == "other":
        record = _record_length(data)
        return Content("table", record) if record else Content("other")
    return Content(kind)


def _repeats(data: np.ndarray) -> bool:
    """Whether strings of eight bytes come again, in a sample chosen by content."""
    words = np.lib.stride_tricks.sliding_window_view(data, 8)
    sample = words[(data[: words.shape[0]] & 15) == 0]
    keys = np.ascontiguousarray(sample).view(np.uint64).ravel()
    return keys.size > 0 and np.unique(keys).size < 0.98 * keys.size


def _record_length(data: np.ndarray) -> int:
    """The distance in bytes at which values return far more often than at others, or 0.

    The commonest value (padding, white pixels) is left out: it returns at every distance.
    """
    sample = data[: 1 << 17]
    if sample.size < 4096:
        return 0
    telling = sample != np.bincount(sample).argmax()
    shares = np.zeros(_MAX_DISTANCE + 1)
    for distance in range(1, _MAX_DISTANCE + 1):
        returned = np.count_nonzero((sample[distance:] == sample[:-distance]) & telling[distance:])
        shares[distance] = returned / max(1, int(np.count_nonzero(telling[distance:])))
    best = int(np.argmax(shares >= 0.9 * shares.max()))
    if best < 2 or shares[best] < 0.25:
        return 0
    other_shares = np.delete(shares, np.arange(0, _MAX_DISTANCE + 1, best))
    return best if shares[best] >= 2 * np.quantile(other_shares, 0.95) else 0


def is_packed(content: Content) -> bool:
    return content == _PACKED


@kernel
def calls_to_absolute(data):
    """In place: near calls and jumps (E8, E9) get absolute targets, so that calls of one function look alike.

    Only the low 24 bits change and the order of the walk makes it exactly
    reversible (the E8E9 transform of ZPAQ).
    """
    for i in range(data.size - 5, -1, -1):
        if (data[i] & 254) == 0xE8 and (data[i + 4] == 0 or data[i + 4] == 255):
            value = np.int64(data[i + 1]) | np.int64(data[i + 2]) << 8 | np.int64(data[i + 3]) << 16
            _put24(data, i + 1, value + i)


@kernel
def calls_to_relative(data):
    """In place: undo `calls_to_absolute`."""
    for i in range(data.size - 4):
        if (data[i] & 254) == 0xE8 and (data[i + 4] == 0 or data[i + 4] == 255):
            value = np.int64(data[i + 1]) | np.int64(data[i + 2]) << 8 | np.int64(data[i + 3]) << 16
            _put24(data, i + 1, value - i)


@kernel
def _put24(data, offset, value):
    data[offset] = np.uint8(value & 255)
    data[offset + 1] = np.uint8((value >> 8) & 255)
    data[offset + 2] = np.uint8((value >> 16) & 255)
