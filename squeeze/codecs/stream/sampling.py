"""Trial coding: whether data that looks like noise shrinks, and which record length codes it best.

Order-0 entropy says nothing about ramps, sorted keys or sound, whose bytes are as frequent as those of noise. So
samples are coded with the models of level 1, which takes some hundredths of a second.
"""

import numpy as np

from squeeze.codecs.bytewise import coder
from squeeze.codecs.bytewise.presets import SMALL
from squeeze.codecs.content import Content

__all__ = [
    "OTHER",
    "SAMPLE",
    "are_cells",
    "are_records",
    "best_content",
    "candidate_record_lengths",
    "coded_size",
    "far_record_length",
    "mostly_repeats",
    "noise_before",
    "record_length",
    "saved",
    "with_far_records",
    "without_lines",
]

OTHER = Content("other")
_PLACES, _PIECE = 6, 1 << 12
SAMPLE = _PLACES * _PIECE  # bytes of a sample
_LONG = 1 << 20
_SHORT = 1 << 13  # bytes below which the usual lengths of numbers are tried
_USUAL = (4, 8)
_MAX_NOISY = 1 << 16  # bytes of the largest input whose noise is cut off
_ENTROPY_OF_NOISE = 7.93  # bits per byte of a piece of noise, below 8 because it is short
_NOISE_STEP = 256  # bytes; the noise that is cut off is a multiple of it
_LEAST_AFTER = 512  # bytes that level 1 must save after the noise
_LEAST = 1024  # bytes below which records cannot be detected
_MAX_DISTANCE = 512
_NEAR = 4  # two bytes of at most this difference, modulo 256, are near each other
_AROUND, _RECURS = 6, 1.5  # other distances that a record's is compared with, and how many times more often it recurs
_SIGNIFICANT = 6  # standard deviations above chance
_MAX_FAR, _FAR_RECORDS = 1 << 13, 8  # longest of records above _MAX_DISTANCE, and the fewest that are coded to try them
_FAR_SAMPLE = (1 << 17) - _MAX_FAR  # bytes in which they are looked for: with the distances a power of two
_FAR_TRIAL = 1 << 16  # bytes of up to twice as many
_FREQUENCIES = 1, 3, 9, 27, 64, 101  # of waves over the values of a byte, whose sum is high for near values only
_FARTHER = 1.02  # how much more alike bytes must be at the longer of two distances
_LINE = 4096  # bytes of a line or between control codes, above which text has no lines
_CLEARLY_FAR, _CLEARLY_NO_TEXT = 0.97, 0.9  # the same as _CLEARLY, for long records and in place of text
_TYPES_OF_CELLS = (*range(1, 7), 0xBD, 0xBE, 0xD6, 0xFD, *range(0x201, 0x207), 0x27E, 0x406)
_LEAST_CELL, _MOST_CELL, _CELLS_SHARE = 6, 64, 128  # bytes of cells in BIFF, and of a sample for each pair of cells
_DISTINCT = 0.25  # words of four bytes of data that mostly repeat, of all places
_CLEARLY = 0.985  # a table must be smaller than this share of the size without records


def best_content(data: np.ndarray, lengths: list[int]) -> tuple[Content, int]:
    """Choose the content of data that is neither text nor machine code: a table with one of some record lengths, or
    other.

    Args:
        data: uint8 [n].
        lengths: record lengths to try, in bytes.

    Returns:
        the content, and the bytes that level 1 saves of a sample with it; 0 or less if none.
    """
    choice, fewest = OTHER, _coded(data, OTHER)
    bar = _CLEARLY * fewest
    for length in lengths:
        content = Content("table", length)
        coded = _coded(data, content)
        if coded < min(bar, fewest):
            choice, fewest = content, coded
    return choice, min(data.size, SAMPLE) - fewest


def saved(data: np.ndarray, content: Content) -> int:
    """Return the bytes that level 1 saves of a sample of uint8 `data`; -1 if it is not shorter."""
    return min(data.size, SAMPLE) - _coded(data, content)


def coded_size(data: np.ndarray, content: Content) -> int:
    """Return the bytes of uint8 `data` coded by level 1, or its own if it is not shorter."""
    coded = coder.encode(data, SMALL[content.kind], content.record)
    return data.size if coded is None else len(coded)


def mostly_repeats(data: np.ndarray) -> bool:
    """Return whether uint8 `data` mostly repeat earlier bytes: few of their words of four bytes are distinct."""
    words = np.lib.stride_tricks.sliding_window_view(data, 4) if data.size >= _LEAST else data[:0].reshape(0, 4)
    return np.unique(words.copy().view(np.uint32)).size < _DISTINCT * len(words)


def noise_before(data: np.ndarray) -> int:
    """Return how many bytes of noise a short input begins with, or 0 if it does not, or if all of it is noise.

    Models that have learned noise take long to unlearn it, as in the low bytes of numbers before their high ones.
    """
    if not 2 * _PIECE < data.size <= _MAX_NOISY:
        return 0
    shares = np.bincount(data[:_PIECE], minlength=256) / _PIECE
    if shares.min() == 0 or -(shares * np.log2(shares)).sum() < _ENTROPY_OF_NOISE:
        return 0
    growth = coder.growth(data, SMALL["other"], _NOISE_STEP)
    place = int(growth.argmax())
    noise = (place + 1) * _NOISE_STEP
    return noise if noise >= _PIECE and growth[-1] < growth[place] - _LEAST_AFTER else 0


def record_length(data: np.ndarray) -> int:
    """Return the distance in bytes at which values recur far more often than at others, or 0.

    The most frequent value (padding, white pixels) is left out: it recurs at every distance.
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
    length = int(np.argmax(shares >= 0.9 * shares.max()))
    if length < 2 or shares[length] < 0.25:
        return 0
    other_shares = np.delete(shares, np.arange(0, _MAX_DISTANCE + 1, length))
    return length if shares[length] >= 2 * np.quantile(other_shares, 0.95) else 0


def are_cells(data: np.ndarray, record: int) -> bool:
    """Return whether uint8 `data` has pairs of cells of a spreadsheet, or one of two records of `record` bytes has
    a byte that counts up."""
    begin = max(data.size - SAMPLE, 0) // 2
    sample = data[begin : begin + SAMPLE]
    if sample.size < _LEAST:
        return False
    if 0 < 4 * record < sample.size:
        steps = sample[record:] - sample[:-record]  # modulo 256
        counts = (steps[record:] == steps[:-record]) & (steps[record:] != 0)
        if 2 * record * np.count_nonzero(counts[record:] & counts[:-record]) >= sample.size:
            return True
    words = sample[:-1].astype(np.int64) | sample[1:].astype(np.int64) << 8
    plausible = np.isin(words[:-2], _TYPES_OF_CELLS) & (words[2:] >= _LEAST_CELL) & (words[2:] <= _MOST_CELL)
    places = np.flatnonzero(plausible)
    after = places + 4 + words[places + 2]
    pairs = np.count_nonzero(plausible[after[after < plausible.size]])
    return bool(_CELLS_SHARE * pairs >= sample.size)


def are_records(data: np.ndarray, record: int) -> bool:
    """Return whether bytes of uint8 `data` recur, or are near each other, at a distance of `record` bytes more often
    than at other distances of about that."""
    if data.size <= 2 * (record + _AROUND):
        return True
    telling = data != np.bincount(data).argmax()
    distances = [record, *(n for n in range(max(record - _AROUND, 1), record + _AROUND + 1) if n % record)]
    shares = np.zeros((2, len(distances)))
    for place, distance in enumerate(distances):
        differences = (data[distance:] - data[:-distance])[telling[distance:]]  # modulo 256
        near = np.count_nonzero(differences + np.uint8(_NEAR) <= 2 * _NEAR)
        shares[:, place] = np.count_nonzero(differences == 0), near
    return bool((shares[:, 0] > _RECURS * np.median(shares[:, 1:], axis=1)).any())


def candidate_record_lengths(data: np.ndarray) -> list[int]:
    """Return distances at which bytes are near each other or equal more often than by chance.

    They are the shortest of their multiples. A few bytes also get the usual lengths of numbers.
    """
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


def with_far_records(data: np.ndarray, content: Content, share: float = _CLEARLY_FAR) -> Content:
    """Return a table of records that are longer than `content` may have, if it is clearly smaller, or `content`.

    Args:
        data: uint8 [n].
        content: what it is otherwise.
        share: the size that a table must stay below, of that otherwise.
    """
    if not (record := far_record_length(data, content.record)):
        return content
    size = max(_FAR_RECORDS * record, min(2 * _FAR_RECORDS * record, _FAR_TRIAL))
    begin = max(data.size - size, 0) // 2
    sample, far = data[begin : begin + size], Content("table", record)
    return far if coded_size(sample, far) < share * coded_size(sample, content) else content


def without_lines(data: np.ndarray) -> Content:
    """Return the content of text: a table if it has no lines and fields of fixed lengths, as in DBF, or text."""
    text = Content("text")
    begin = max(data.size - _FAR_SAMPLE, 0) // 2
    sample = data[begin : begin + _FAR_SAMPLE]
    if np.count_nonzero(sample < ord(" ")) > sample.size / _LINE:
        return text
    record = record_length(data)
    near = Content("table", record) if record else text
    choice = near if _coded(data, near) < _CLEARLY_NO_TEXT * _coded(data, text) else text
    return with_far_records(data, choice, _CLEARLY_NO_TEXT if choice == text else _CLEARLY_FAR)


def far_record_length(data: np.ndarray, near: int = 0) -> int:
    """Return a distance of more than _MAX_DISTANCE bytes at which bytes are near each other or equal, or 0.

    Args:
        data: uint8 [n].
        near: a shorter distance, at which bytes must be less so, or 0.
    """
    begin = max(data.size - _FAR_SAMPLE, 0) // 2
    sample = data[begin : begin + _FAR_SAMPLE]
    if sample.size <= 2 * _FAR_RECORDS * _MAX_DISTANCE:
        return 0
    alike = _likeness(sample, min(_MAX_FAR, sample.size // _FAR_RECORDS))
    place = _standing_out(alike[_MAX_DISTANCE + 1 :], sample.size, 0.95)
    if place is None:
        return 0
    far = _MAX_DISTANCE + 1 + place
    return far if near == 0 or alike[far] > _FARTHER * alike[near] else 0


def _likeness(sample: np.ndarray, most: int) -> np.ndarray:
    """Return about the share of bytes that are near those a distance before them, float64 [most + 1].

    The most frequent value is left out. Byte values are places on circles that they go round at several speeds. Their
    products at all distances, which are high for near values, are an autocorrelation.
    """
    telling = sample != np.bincount(sample).argmax()
    size = 1 << (int(sample.size) + most - 1).bit_length()
    spectrum = np.zeros(size)
    for frequency in _FREQUENCIES:
        circle = np.exp(2j * np.pi * frequency / 256 * np.arange(256)).astype(np.complex64)
        spectrum += np.abs(np.fft.fft(circle[sample] * telling, size)) ** 2
    products: np.ndarray = np.fft.ifft(spectrum).real[: most + 1]
    compared = (sample.size - np.arange(most + 1)) * (max(1, int(np.count_nonzero(telling))) / sample.size)
    scores: np.ndarray = products / (len(_FREQUENCIES) * compared)
    return scores


def _standing_out(shares: np.ndarray, size: int, nearly: float = 0.8) -> int | None:
    """Return the index of the first share that is nearly the largest, or None if that may be chance.

    Args:
        shares: of bytes, by distance.
        size: bytes that were compared.
        nearly: what the first share has of the largest one, both without the usual share.
    """
    if not shares.size:
        return None
    usual = float(np.median(shares))
    above = shares - usual
    if above.max() < _SIGNIFICANT * np.sqrt(max(usual, 1 / size) / size):
        return None
    return int(np.argmax(above >= nearly * above.max()))


def _coded(data: np.ndarray, content: Content) -> int:
    """Return the bytes of a sample coded by level 1; one more than it has if it is not shorter."""
    sample = _sample(data, max(content.record, 1))
    coded = coder.encode(sample, SMALL[content.kind], content.record)
    return min(data.size, SAMPLE) + (1 if coded is None else len(coded) - sample.size)


def _sample(data: np.ndarray, step: int) -> np.ndarray:
    """Return short data as it is, and pieces of longer data that begin a record of `step` bytes.

    The start and end are included unless the data is long, where headers say nothing about the rest.
    """
    if data.size <= SAMPLE:
        return data
    shares = np.linspace(0, 1, _PLACES) if data.size <= _LONG else np.linspace(0, 1, _PLACES + 2)[1:-1]
    starts = (int(share * (data.size - _PIECE)) // step * step for share in shares)
    return np.concatenate([data[start : start + _PIECE // step * step] for start in starts])
