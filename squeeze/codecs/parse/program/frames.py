"""Call frame information: `.eh_frame` with differences for addresses, and `.eh_frame_hdr`, which follows from it.

A frame begins where the one before it ends, or a few bytes later. So it has the difference from there, and the place
of the common information that it is of, instead of the distance to it.
"""

import numpy as np

from squeeze.codecs.parse.program.numbers import put, word
from squeeze.numerics.jit import inline, kernel

__all__ = ["HEADER", "hide", "index", "show"]

HEADER = bytes([1, 0x1B, 3, 0x3B])  # of an `.eh_frame_hdr` that is derived: version and encodings
_RELATIVE = 0x1B  # the encoding of addresses as 32-bit differences from their own place
_ABSENT = 0xFF
_LONGEST = 16  # characters of an augmentation
_MOST = 64  # bytes of common information that are looked at


def hide(frames: np.ndarray, address: int, is_placed: bool = True) -> None:
    """Replace addresses by differences, in place.

    Args:
        frames: uint8 [n], the bytes of `.eh_frame`.
        address: of the first.
        is_placed: whether addresses are final, unlike those of object files, which stay as they are.
    """
    _walk(frames, np.int64(address & 0xFFFFFFFF), is_placed, True)


def show(frames: np.ndarray, address: int, is_placed: bool = True) -> None:
    """Undo `hide`, in place."""
    _walk(frames, np.int64(address & 0xFFFFFFFF), is_placed, False)


def index(frames: np.ndarray, address: int, place: int) -> bytes:
    """Return the bytes of `.eh_frame_hdr` behind its HEADER.

    Args:
        frames: uint8 [n], the bytes of `.eh_frame`.
        address: of the first.
        place: address of `.eh_frame_hdr`.
    """
    rows = np.empty((frames.size // 12, 2), np.int32)
    count = _list(frames, np.int64(address - place), rows)
    rows = rows[:count]
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    start = np.array([address - place - 4, count], np.int64) & 0xFFFFFFFF
    return start.astype("<u4").tobytes() + rows.astype("<i4").tobytes()


@kernel
def _walk(frames, address, is_placed, forward):
    at, expected, expected_data = 0, np.int64(0), np.int64(0)
    while at + 16 <= frames.size:
        length, back = word(frames, at), word(frames, at + 4)
        end = at + 4 + length
        if length >= 0xFFFFFFF0 or length < 4 or end > frames.size:
            break
        if back and length >= 12:
            common = at + 4 - back if forward else back - 4
            if 0 <= common < at:
                begins, data = _encodings(frames, common)
                if begins == _RELATIVE:
                    put(frames, at + 4, common + 4 if forward else at + 4 - common, 4)
                if begins == _RELATIVE and is_placed:
                    begin = _moved(frames, at + 8, address + at + 8, expected, forward)
                    expected = begin + word(frames, at + 12)
                    if data == _RELATIVE and length >= 17 and frames[at + 16] == 4:
                        expected_data = _moved(frames, at + 17, address + at + 17, expected_data, forward)
        at = end


@inline
def _moved(frames, at, here, expected, forward):
    """Replace the address at a place, which is relative to that, by its difference from what is expected, or undo it;
    return it.
    """
    value = word(frames, at)
    absolute = value + (here if forward else expected)
    put(frames, at, absolute - (expected if forward else here), 4)
    return absolute & 0xFFFFFFFF


@inline
def _encodings(frames, at):
    """Return the encodings of begins and data of frames with common information at a place, or _ABSENT for each."""
    begins, data = np.int64(_ABSENT), np.int64(_ABSENT)
    end = min(at + 4 + word(frames, at), at + _MOST)
    first = at + 9
    place = first
    while place < min(end, first + _LONGEST) and frames[place]:
        place += 1
    last = place
    if first + 1 < last and frames[first] == 0x7A and last + 5 < end and end <= frames.size:
        place += 1
        for _ in range(4):  # code and data alignment, return register, length: varints of one byte but for the second
            while place < end - 1 and frames[place] >= 128:
                place += 1
            place += 1
        for i in range(first + 1, last):
            if place >= end:
                break
            letter = frames[i]
            if letter == 0x52:  # R
                begins = np.int64(frames[place])
                place += 1
            elif letter == 0x4C:  # L
                data = np.int64(frames[place])
                place += 1
            elif letter == 0x50:  # P
                place += 5
    return begins, data


@kernel
def _list(frames, offset, rows):
    at, count = 0, 0
    while at + 16 <= frames.size and count < rows.shape[0]:
        length, back = word(frames, at), word(frames, at + 4)
        if length >= 0xFFFFFFF0 or length < 4 or at + 4 + length > frames.size:
            break
        if back:
            rows[count, 0] = np.int32(word(frames, at + 8) + offset + at + 8)
            rows[count, 1] = np.int32(offset + at)
            count += 1
        at += 4 + length
    return count
