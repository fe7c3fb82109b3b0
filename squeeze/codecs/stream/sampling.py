"""Trial coding: whether bytes that look like noise shrink, and which record length serves them best.

Order-0 entropy tells nothing of ramps, sorted keys or sound: their bytes are as frequent as those of noise. Samples are
coded with the models of level 1 instead, which cost some hundredths of a second.
"""

import numpy as np

from squeeze.codecs.bytewise import coder
from squeeze.codecs.bytewise.presets import SMALL
from squeeze.codecs.stream.container import Content

__all__ = ["OTHER", "SAMPLE", "best", "record_length", "suspects"]

OTHER = Content("other")
_PLACES, _PIECE = 6, 1 << 12
SAMPLE = _PLACES * _PIECE  # bytes that are coded: of data that is no longer, all
_LONG = 1 << 20
_SHORT = 1 << 13  # bytes whose statistics tell little, so that the usual lengths of numbers are tried
_USUAL = (4, 8)
_LEAST = 1024  # bytes in which records can be seen
_MAX_DISTANCE = 512
_NEAR = 4  # two bytes of at most this difference, modulo 256, are near each other
_SIGNIFICANT = 6  # standard deviations above chance
_CLEARLY = 0.985  # of the bytes without records: what those with records must stay below


def best(data: np.ndarray, lengths: list[int]) -> tuple[Content, int]:
    """Choose how to code uint8 `data` that is neither text nor machine code: as records of one of some lengths, or
    without.

    Returns the content, and how many bytes level 1 saves of a sample with it: 0 or less if it saves nothing.
    """
    choice, fewest = OTHER, _coded(data, OTHER)
    bar = _CLEARLY * fewest
    for length in lengths:
        content = Content("table", length)
        coded = _coded(data, content)
        if coded < min(bar, fewest):
            choice, fewest = content, coded
    return choice, min(data.size, SAMPLE) - fewest


def record_length(data: np.ndarray) -> int:
    """Return the distance in bytes at which values return far more often than at others, or 0.

    The commonest value (padding, white pixels) is left out: it returns at every distance.
    """
    sample = data[: 1 << 17]
    if sample.size < 4096:
        return 0
    telling = sample != np.bincount(sample).argmax()
    if not telling.any():
        return 0
    shares = np.zeros(_MAX_DISTANCE + 1)
    for distance in range(1, _MAX_DISTANCE + 1):
        returned = np.count_nonzero((sample[distance:] == sample[:-distance]) & telling[distance:])
        shares[distance] = returned / max(1, int(np.count_nonzero(telling[distance:])))
    best = int(np.argmax(shares >= 0.9 * shares.max()))
    if best < 2 or shares[best] < 0.25:
        return 0
    other_shares = np.delete(shares, np.arange(0, _MAX_DISTANCE + 1, best))
    return best if shares[best] >= 2 * np.quantile(other_shares, 0.95) else 0


def suspects(data: np.ndarray) -> list[int]:
    """Return distances at which bytes are near each other or equal more often than by chance, the shortest of
    multiples; the usual lengths of numbers too if there are few bytes."""
    begin = max(data.size - SAMPLE, 0) // 2
    sample = data[begin : begin + SAMPLE]
    if sample.size < _LEAST or sample.min() == sample.max():
        return []
    distances = range(2, min(_MAX_DISTANCE, sample.size // 8) + 1)
    near, equal = np.zeros(len(distances)), np.zeros(len(distances))
    for i, distance in enumerate(distances):
        differences = sample[distance:] - sample[:-distance]  # modulo 256
        near[i] = np.count_nonzero(differences + np.uint8(_NEAR) <= 2 * _NEAR) / differences.size
        equal[i] = np.count_nonzero(differences == 0) / differences.size
    found = [_standing_out(shares, sample.size) for shares in (near, equal)]
    lengths = [distances[i] for i in found if i is not None]
    return list(dict.fromkeys([*lengths, *(_USUAL if data.size <= _SHORT else ())]))


def _standing_out(shares: np.ndarray, size: int) -> int | None:
    """Return the place of the first share that is nearly the largest, if that is no chance."""
    if not shares.size:
        return None
    usual = float(np.median(shares))
    above = shares - usual
    if above.max() < _SIGNIFICANT * np.sqrt(max(usual, 1 / size) / size):
        return None
    return int(np.argmax(above >= 0.8 * above.max()))


def _coded(data: np.ndarray, content: Content) -> int:
    """Return the bytes that level 1 makes of a sample; one more than it has if it is not shorter."""
    sample = _sample(data, max(content.record, 1))
    coded = coder.encode(sample, SMALL[content.kind], content.record)
    return min(data.size, SAMPLE) + (1 if coded is None else len(coded) - sample.size)


def _sample(data: np.ndarray, step: int) -> np.ndarray:
    """Return all of short data, and pieces of longer data that begin a record of `step`, with its start and end unless
    it is long: headers tell nothing of that."""
    if data.size <= SAMPLE:
        return data
    shares = np.linspace(0, 1, _PLACES) if data.size <= _LONG else np.linspace(0, 1, _PLACES + 2)[1:-1]
    starts = (int(share * (data.size - _PIECE)) // step * step for share in shares)
    return np.concatenate([data[start : start + _PIECE // step * step] for start in starts])
