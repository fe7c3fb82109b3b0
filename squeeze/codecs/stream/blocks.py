"""Cutting input into blocks of one kind of content, and the call filter for x86 executables.

The kinds are guesses that choose a block's contexts: a wrong one costs size, never correctness. "packed" is content
that is already compressed or encrypted: its bytes have the entropy of noise, and samples of it do not shrink
(sampling.py).
"""

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.stream import sampling
from squeeze.numerics.jit import kernel

WINDOW = 1 << 16
_LEAST_RUN = 4  # windows of the shortest region
PACKED = Content("packed")
_SMALL = 1 << 18  # bytes of the largest input that is coded at several levels
_CHUNK = 1 << 12  # bytes of a chunk whose entropy is measured
_NOISE_ENTROPY = 7.955  # bits per byte of a chunk of noise, below 8 because it is short
_LOW_ENTROPY = 7.7  # bits per byte below which a chunk is not noise
_GAP = 4  # longest gap in chunks within a run
_LEAST_SAVED = 64  # savings in bytes that pay for another block
_LEAST_SHARE = 0.005  # smallest savings of a sample at level 1, as a share of it, for which it is coded
_LEAST_PROMISED = 0.01  # the same for all chunks by their order-0 entropy
_OTHER = 0.75  # share of the size after a window of a table below which an end of it has another content
_TEXT_BYTES = np.zeros(256, bool)
_TEXT_BYTES[[9, 10, 12, 13, *range(32, 127), *range(128, 245)]] = True


def regions(data: np.ndarray) -> Iterator[tuple[int, int, Content]]:
    """Yield (start, end, content) of regions that cover uint8 `data`, each with the most frequent kind of its
    windows."""
    if data.size <= _SMALL:
        yield from _small_regions(data.tobytes())
    else:
        yield from _regions(data)


def order0_size(data: np.ndarray) -> float:
    """Return the bytes of uint8 `data` by its order-0 entropy."""
    counts = np.bincount(data, minlength=256)
    counts = counts[counts > 0]
    return float((counts * np.log2(data.size / counts)).sum()) / 8


def is_text(data: np.ndarray) -> bool:
    """Return whether uint8 `data`, at least one byte, looks like text."""
    return _classify(data) == "text"


def content(data: np.ndarray) -> Content:
    """Return the content of uint8 `data` as one region."""
    return _content(data.tobytes()) if data.size <= _SMALL else _content_of_region(data, _classify(data) or "other")


@lru_cache(4)
def _small_regions(raw: bytes) -> tuple[tuple[int, int, Content], ...]:
    """Cache the regions of a small input, which several levels ask for."""
    return tuple(_regions(np.frombuffer(raw, np.uint8)))


@lru_cache(4)
def _content(raw: bytes) -> Content:
    data = np.frombuffer(raw, np.uint8)
    return _content_of_region(data, _classify(data) or "other") if data.size else sampling.OTHER


def _regions(data: np.ndarray) -> Iterator[tuple[int, int, Content]]:
    starts = list(range(0, data.size, WINDOW))
    if len(starts) > 1 and data.size - starts[-1] < WINDOW // 2:
        starts.pop()
    kinds = _filled([_classify(data[start : start + WINDOW]) for start in starts])
    run = 0
    for i in range(1, len(starts) + 1):
        if i < len(starts) and not _starts_region(kinds, run, i):
            continue
        begin, end = starts[run], starts[i] if i < len(starts) else data.size
        kind = Counter(kinds[run:i]).most_common(1)[0][0]
        part = data[begin:end]
        parts = _packed_regions(part) if kind == "packed" else _cut_ends(part, _content_of_region(part, kind))
        yield from ((begin + first, begin + last, content) for first, last, content in parts)
        run = i


def _cut_ends(data: np.ndarray, content: Content) -> list[tuple[int, int, Content]]:
    """Return (start, end, content) of a region: of a table, its ends may have other records.

    An example is the footer of a file of columns.
    """
    starts = range(0, data.size, WINDOW)
    if content.kind != "table" or len(starts) < _LEAST_RUN:
        return [(0, data.size, content)]
    found = [start for start in starts if sampling.are_records(data[start : start + WINDOW], content.record)]
    first, last = (found[0], min(found[-1] + WINDOW, data.size)) if found else (0, data.size)
    before = _other_content(data[:first], data[first : first + WINDOW], content)
    after = _other_content(data[last:], data[max(last - WINDOW, 0) : last], content)
    first, last = first if before else 0, last if after else data.size
    parts = (0, first, before), (first, last, content), (last, data.size, after)
    return [(start, end, own) for start, end, own in parts if own]


def _other_content(data: np.ndarray, table: np.ndarray, content: Content) -> Content | None:
    """Return the content of one end of a table, or None if it is no other one, or models that know the table do well.

    Args:
        data: uint8 [n], the end.
        table: uint8 [m], the window of the table that is next to it.
        content: that of the table.
    """
    if data.size < WINDOW:
        return None
    own = _content_of_region(data, _classify(data) or "other")
    if own == content or is_packed(own):
        return None
    part = data[:WINDOW]
    both = sampling.coded_size(np.concatenate([table, part]), content)
    return own if sampling.coded_size(part, own) < _OTHER * (both - sampling.coded_size(table, content)) else None


def _filled(kinds: list[str]) -> list[str]:
    """Replace the kind "" of windows that hold one value by a neighbour's kind, so that no region starts there."""
    filled, known = [], next(filter(None, kinds), "other")
    for kind in kinds:
        known = kind or known
        filled.append(known)
    return filled


def _packed_regions(data: np.ndarray) -> Iterator[tuple[int, int, Content]]:
    """Yield (start, end, content) of a region that looks packed; its stretches of low entropy are coded alone."""
    done, entropies = 0, _entropies(data)
    settled = _content_of_region(data, "packed", entropies)
    if not is_packed(settled):
        yield 0, data.size, settled
        return
    for begin, end in _low_entropy_runs(entropies):
        part = data[begin:end]
        content = _content_of_region(part, _classify(part) or "other")
        if not is_packed(content):
            if done < begin:
                yield done, begin, PACKED
            yield begin, begin + part.size, content
            done = begin + part.size
    if done < data.size:
        yield done, data.size, PACKED


def _low_entropy_runs(entropies: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield (start, end) in bytes of runs of chunks with low entropy that pay for a block."""
    places = np.flatnonzero(entropies < _LOW_ENTROPY)
    for run in np.split(places, np.flatnonzero(np.diff(places) > _GAP) + 1):
        if run.size and _order0_savings(entropies[run]) >= _LEAST_SAVED:
            yield int(run[0]) * _CHUNK, (int(run[-1]) + 1) * _CHUNK


def _order0_savings(entropies: np.ndarray) -> float:
    """Return the bytes that an order-0 code would save on chunks with these entropies."""
    return float(np.maximum(_NOISE_ENTROPY - entropies, 0).sum()) * _CHUNK / 8


def _entropies(data: np.ndarray) -> np.ndarray:
    """Return the order-0 entropy of each chunk in bits per byte."""
    found, log = [], np.log2(np.maximum(np.arange(_CHUNK + 1), 1)) * np.arange(_CHUNK + 1)
    for start in range(0, data.size, WINDOW):
        window = data[start : start + WINDOW]
        chunks = [window[begin : begin + _CHUNK] for begin in range(0, window.size, _CHUNK)]
        counts = np.array([np.bincount(chunk, minlength=256) for chunk in chunks])
        sizes = counts.sum(1)
        found.append(np.log2(sizes) - log[counts].sum(1) / sizes)
    return np.concatenate(found)


def _starts_region(kinds: list[str], run: int, i: int) -> bool:
    """Return whether a region starts at window i: four windows of one kind before it, four of another kind after it."""
    after = kinds[i : i + _LEAST_RUN]
    before = kinds[max(run, i - _LEAST_RUN) : i]
    steady = len(after) == len(before) == _LEAST_RUN and len(set(after)) == len(set(before)) == 1
    return steady and after[0] != before[0]


def _classify(window: np.ndarray) -> str:
    """Return the kind that a window looks like.

    It is "packed" if its order-0 entropy is that of noise, until it is tried, and "" if it holds a single value.
    """
    if window[0] == window[-1] and not (window != window[0]).any():
        return ""
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
    """Return whether a window is valid UTF-8, apart from characters that are cut at its ends."""
    starts = np.flatnonzero((window & 0xC0) != 0x80)
    if starts.size < 2:
        return False
    try:
        window[starts[0] : starts[-1]].tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_x86(window: np.ndarray) -> bool:
    """Return whether a window has enough near calls."""
    if window.size < 1024:
        return False
    calls = int(np.count_nonzero(window[:-4] == 0xE8))
    return _near_calls(window).size > max(window.size / 400, 0.4 * calls)


def _near_calls(data: np.ndarray) -> np.ndarray:
    """Return the places of what may be calls: E8 bytes, each before a distance within 16 MiB."""
    places = np.flatnonzero(data[:-4] == 0xE8)
    top = data[places + 4]
    return places[(top == 0) | (top == 255)]


def _calls_are_alike(data: np.ndarray) -> bool:
    """Return whether most distances of calls are equal, as in object files and numbers that only look like calls."""
    places = _near_calls(data[:WINDOW])
    low = data[places + 1].astype(np.int64) | data[places + 2].astype(np.int64) << 8
    return np.unique(low).size < places.size / 2


def _content_of_region(data: np.ndarray, kind: str, entropies: np.ndarray | None = None) -> Content:
    """Return the content of a whole region.

    Args:
        data: uint8 [n], the region.
        kind: what its windows look like.
        entropies: order-0 entropies of its chunks, if they are known.
    """
    if kind == "packed":
        choice, saved = sampling.best_content(data, sampling.candidate_record_lengths(data))
        whole = data.size <= sampling.SAMPLE
        if saved > (0 if whole else _LEAST_SHARE * sampling.SAMPLE):
            return choice
        promised = not whole and _order0_savings(_entropies(data) if entropies is None else entropies) / data.size
        return choice if promised >= _LEAST_PROMISED or _has_repeats(data) else PACKED
    if kind == "other":
        if record := sampling.record_length(data):
            return sampling.with_far_records(data, Content("table", record))
        lengths = sampling.candidate_record_lengths(data)
        choice = sampling.best_content(data, lengths)[0] if lengths else sampling.OTHER
        return sampling.with_far_records(data, choice)
    if kind == "text":
        return sampling.without_lines(data)
    if kind == "executable" and _calls_are_alike(data):
        choice, saved = sampling.best_content(data, sampling.candidate_record_lengths(data))
        return choice if saved > sampling.saved(data, Content(kind)) else Content(kind)
    return Content(kind)


def _has_repeats(data: np.ndarray) -> bool:
    """Return whether strings of eight bytes repeat, in a sample that their content chooses."""
    words = np.lib.stride_tricks.sliding_window_view(data, 8)
    sample = words[(data[: words.shape[0]] & 15) == 0]
    keys = np.ascontiguousarray(sample).view(np.uint64).ravel()
    return keys.size > 0 and np.unique(keys).size < 0.98 * keys.size


def is_packed(content: Content) -> bool:
    """Return whether content is already compressed or encrypted."""
    return content == PACKED


@kernel
def calls_to_absolute(data):
    """Replace the relative targets of near calls and jumps (E8, E9) by absolute ones, in place.

    Calls of one function then look alike. Only the low 24 bits change, and the order of the walk makes it exactly
    reversible (the E8E9 transform of ZPAQ).
    """
    for i in range(data.size - 5, -1, -1):
        if (data[i] & 254) == 0xE8 and (data[i + 4] == 0 or data[i + 4] == 255):
            value = np.int64(data[i + 1]) | np.int64(data[i + 2]) << 8 | np.int64(data[i + 3]) << 16
            _put24(data, i + 1, value + i)


@kernel
def calls_to_relative(data):
    """Undo `calls_to_absolute`, in place."""
    for i in range(data.size - 4):
        if (data[i] & 254) == 0xE8 and (data[i + 4] == 0 or data[i + 4] == 255):
            value = np.int64(data[i + 1]) | np.int64(data[i + 2]) << 8 | np.int64(data[i + 3]) << 16
            _put24(data, i + 1, value - i)


@kernel
def _put24(data, offset, value):
    data[offset] = np.uint8(value & 255)
    data[offset + 1] = np.uint8((value >> 8) & 255)
    data[offset + 2] = np.uint8((value >> 16) & 255)
