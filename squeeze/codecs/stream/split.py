"""Split blocks: texts within other data are joined and coded by the language model, the rest without it.

An archive of sources has headers and padding between them, a program has its messages, a report has images in base64.
Texts and the rest are one block each, which learns from all its parts.
"""

import io

import numpy as np

from squeeze.errors import DamagedError
from squeeze.numerics.jit import inline, kernel
from squeeze.system.binary import read_exactly, read_varint, varint

_LEAST = 512  # bytes of the shortest text that is split off
_LEAST_IN_ALL = 2048  # fewest bytes of all texts of a block
# Cost of a byte that is not text, of an invalid high byte, and the largest drop of the score.
_OTHER, _HIGH, _DROP = 40, 1, 160
_DENSE_WINDOW, _DENSE_BITS = 1024, 5.75  # bits per character: base64 has 6, prose 4.5, sources and JSON 5
_TEXT = np.zeros(256, bool)
_TEXT[[9, 10, 12, 13, *range(32, 127)]] = True


def find(data: np.ndarray) -> np.ndarray | None:
    """Return the bytes of uint8 `data` that belong to texts, bool [bytes], or None if texts or the rest are too short
    to pay."""
    runs = np.empty((data.size // _LEAST + 1, 2), np.int64)
    of_text = np.zeros(data.size, bool)
    for begin, end in runs[: _find_runs(data, _dense(data), runs)]:
        of_text[begin:end] = True
    in_texts = np.count_nonzero(of_text)
    return of_text if in_texts >= _LEAST_IN_ALL and data.size - in_texts >= _LEAST else None


def join(of_text: np.ndarray, text: bytes, rest: bytes) -> bytes:
    """Return the payload of a split block after its content.

    Args:
        of_text: bool [bytes], bytes of texts.
        text: coded texts.
        rest: coded or raw other bytes.
    """
    turns = np.flatnonzero(np.diff(of_text)) + 1
    lengths = np.diff(turns, prepend=0, append=of_text.size).tolist()
    if of_text[0]:
        lengths.insert(0, 0)
    return b"".join(map(varint, (len(lengths), *lengths, len(text)))) + text + rest


def read(payload: io.BytesIO, size: int) -> tuple[np.ndarray, bytes, bytes]:
    """Read what `join` wrote, for a block of `size` raw bytes.

    Returns:
        the bytes of texts, bool [size], and both payloads.

    Raises:
        DamagedError: if it is impossible.
    """
    count, _ = read_varint(payload)
    if not 2 <= count <= size + 1:
        raise DamagedError("a block's number of texts is impossible: the file is damaged")
    lengths = [read_varint(payload)[0] for _ in range(count)]
    if sum(lengths) != size or not all(lengths[1:]):
        raise DamagedError("the lengths of a block's texts are impossible: the file is damaged")
    length, _ = read_varint(payload)
    if length > size:
        raise DamagedError("the length of a block's coded texts is impossible: the file is damaged")
    of_text = np.repeat(np.arange(count) % 2 == 1, lengths)
    return of_text, read_exactly(payload, length), payload.read()


def _dense(data: np.ndarray) -> np.ndarray:
    """Return whether each window, and one next to it, has characters of almost equal frequency, like base64; bool
    [windows]."""
    whole = data.size // _DENSE_WINDOW
    dense = np.zeros(whole + 2, bool)
    for i, window in enumerate(data[: whole * _DENSE_WINDOW].reshape(whole, _DENSE_WINDOW)):
        counts = np.bincount(window, minlength=128)
        shares = counts[counts > 0] / _DENSE_WINDOW
        dense[i + 1] = counts.size == 128 and -(shares * np.log2(shares)).sum() > _DENSE_BITS
    return np.append(dense[1:-1] & (dense[:-2] | dense[2:]), False)


@kernel
def _find_runs(data: np.ndarray, dense: np.ndarray, runs: np.ndarray) -> int:
    """Write the starts and ends of texts to `runs`, and return their number.

    A text goes from where its score starts to rise to its maximum, before the score has dropped too far (the X-drop of
    BLAST).
    """
    count, begin, end, score, best, i = 0, -1, 0, 0, 0, 0
    while i < data.size:
        length, worth = _character(data, i)
        if dense[min(i // _DENSE_WINDOW, dense.size - 1)]:
            worth = -_OTHER
        if worth > 0 and begin < 0:
            begin, score, best = i, 0, 0
        score += worth
        if begin >= 0 and score > best:
            best, end = score, i + length
        i += length
        if begin >= 0 and (score < 0 or best - score > _DROP or i >= data.size):
            if end - begin >= _LEAST:
                runs[count, 0], runs[count, 1] = begin, end
                count += 1
            begin = -1
    return count


@inline
def _character(data: np.ndarray, i: int) -> tuple[int, int]:
    """Return the bytes of the character at `i`, as UTF-8 if it is valid, and its contribution to a text's score."""
    byte = np.int64(data[i])
    if byte < 128:
        return 1, 1 if _TEXT[byte] else -_OTHER
    length = 2 if 0xC2 <= byte < 0xE0 else 3 if byte & 0xF0 == 0xE0 else 4 if 0xF0 <= byte < 0xF5 else 0
    if length == 0 or i + length > data.size:
        return 1, -_HIGH
    for k in range(1, length):
        if data[i + k] & 0xC0 != 0x80:
            return 1, -_HIGH
    return length, length
