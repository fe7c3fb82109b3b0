"""Peaks of GGUF blocks: the codes of the weights that the scale of a block was chosen from.

A quantiser gives the largest weight of a block the largest code, so nearly every block has that code somewhere. Its
place is coded in place of the code, and the last code of the block moves there. That takes 1.4 bits less a peak.
A block without a peak has its last code among the places.
"""

import numpy as np

from squeeze.numerics.jit import inline, kernel
from squeeze.packing.tensors.block_order import WINDOW
from squeeze.packing.tensors.content import Content, InSegments
from squeeze.packing.tensors.float_payload import Array
from squeeze.system.arena import thread_buffer

__all__ = ["PEAKS", "Peaks", "Places", "Rest"]

_CODES = 32  # codes of a block
_HIGH = 127  # the largest code of 8 bits, which has a sign
_WHOLE_BYTE = 8
_LEAST = 0.9  # of all blocks have a peak, or places take too much


@inline
def _code(block, k, bits):
    """Return code k of a block."""
    if bits == 4:
        return np.int64(block[k % 16]) >> (k // 16 * 4) & 15
    return np.int64(block[k])


@inline
def _is_peak(code, bits, number):
    """Return whether a code is the peak of this number: the least code (0), or the greatest (1)."""
    if bits == _WHOLE_BYTE:
        return code in (_HIGH, 256 - _HIGH)
    return code == (number and (1 << bits) - 1)


@inline
def _put(out, index, code, bits):
    """Put a code at its place: two of 4 bits are a byte."""
    if bits == 4:
        shift = index % 2 * 4
        out[index // 2] = np.uint8((np.int64(out[index // 2]) & (15 << 4 >> shift)) | code << shift)
    else:
        out[index] = np.uint8(code)


@kernel
def split_peaks(codes, bits, peaks, places, rest, room):
    """Fill `places` with the places of the peaks of blocks, and `rest` with the other codes.

    Args:
        codes: uint8 [blocks, bytes].
        bits: of a code, 4, 5 or 8.
        peaks: peaks of a block, 1 or 2.
        places: uint8 [blocks * peaks].
        rest: uint8, the other codes of all blocks, end to end.
        room: int64 [32], working space.

    Returns the blocks with all peaks, or -1 if a code cannot be among the places.
    """
    found, left = 0, _CODES - peaks
    for number in range(codes.shape[0]):
        has = True
        for k in range(_CODES):
            room[k] = _code(codes[number], k, bits)
        for peak in range(peaks):
            last = _CODES - 1 - peak
            place = 0
            while place <= last and not _is_peak(room[place], bits, peak):
                place += 1
            if place <= last:
                entry = place | (_CODES if bits == _WHOLE_BYTE and room[place] != _HIGH else 0)
                room[place] = room[last]
            elif bits == _WHOLE_BYTE:
                has, entry = False, 64 + ((room[last] + 96) & 255)
                if entry > 255:
                    return -1
            else:
                has, entry = False, _CODES + room[last]
            places[number * peaks + peak] = np.uint8(entry)
        found += has
        for k in range(left):
            _put(rest, number * left + k, room[k], bits)
    return found


@kernel
def merge_peaks(places, rest, bits, peaks, codes, room):
    """Fill `codes`, uint8 [blocks, bytes], whose bits are 0, from what `split_peaks` made; entries may be invalid."""
    left = _CODES - peaks
    for number in range(codes.shape[0]):
        for k in range(left):
            index = number * left + k
            room[k] = np.int64(rest[index // 2]) >> (index % 2 * 4) & 15 if bits == 4 else np.int64(rest[index])
        for peak in range(peaks - 1, -1, -1):
            last, entry = _CODES - 1 - peak, np.int64(places[number * peaks + peak])
            if bits == _WHOLE_BYTE:
                is_place, code = entry < 2 * _CODES, _HIGH if entry < _CODES else 256 - _HIGH
            else:
                is_place, code = entry < _CODES, (1 << bits) - 1 if peak else 0
            if is_place:
                place = min(entry % _CODES, last)
                room[last] = room[place]
                room[place] = code
            else:
                room[last] = (entry - 160) & 255 if bits == _WHOLE_BYTE else (entry - _CODES) & ((1 << bits) - 1)
        for k in range(_CODES):
            if bits == 4:
                codes[number, k % 16] |= np.uint8(room[k] << (k // 16 * 4))
            else:
                codes[number, k] = np.uint8(room[k])


class Peaks:
    """The peaks of the blocks of a type: `bits` of a code, and `number` of peaks of a block."""

    def __init__(self, bits: int, number: int):
        self.bits, self.number = bits, number
        self.width = 16 if bits == 4 else _CODES  # bytes of the codes of a block

    def rest_size(self, blocks: int) -> int:
        """Return the bytes of the codes that are not peaks."""
        codes = blocks * (_CODES - self.number)
        return -(-codes // 2) if self.bits == 4 else codes

    def split(self, codes: Array) -> tuple[int, Array, Array]:
        """Return the result of `split_peaks`, the places and the other codes, in memory of this thread."""
        blocks = codes.size // self.width
        places = thread_buffer("places of peaks", blocks * self.number)
        rest = thread_buffer("codes without peaks", self.rest_size(blocks))
        rest[-1:] = 0
        rows = codes.reshape(blocks, self.width)
        return split_peaks(rows, self.bits, self.number, places, rest, np.empty(_CODES, np.int64)), places, rest

    def merge(self, places: Array, rest: Array, codes: Array) -> None:
        """Fill `codes`, uint8."""
        codes[:] = 0
        merge_peaks(places, rest, self.bits, self.number, codes.reshape(-1, self.width), np.empty(_CODES, np.int64))

    def fit(self, codes: Content) -> bool:
        """Return whether most blocks have their peaks, and all others can do without."""
        found, step, most = 0, WINDOW * self.width, 0.0
        for begin in range(0, codes.size, step):
            part = thread_buffer("codes with peaks", min(step, codes.size - begin))
            codes.fill(begin, part)
            here = self.split(part)[0]
            found, most = found + here, most + part.size / self.width
            if here < 0 or found < _LEAST * most:
                return False
        return True


PEAKS = {"Q4_0": Peaks(4, 1), "Q4_1": Peaks(4, 2), "Q5_0": Peaks(5, 1), "Q5_1": Peaks(5, 2), "Q8_0": Peaks(8, 1)}


class _Part(InSegments):
    """A content with a part of the codes of another one; `per_window` are its bytes for a window of blocks."""

    def __init__(self, codes: Content, peaks: Peaks, size: int, per_window: int):
        self._codes, self._peaks, self.size, self.step = codes, peaks, size, per_window

    def _decode(self, first: int, last: int, out: Array) -> None:
        whole = WINDOW * self._peaks.width
        for window in range(first, last):
            begin = window * whole
            codes = thread_buffer("codes with peaks", min(whole, self._codes.size - begin))
            self._codes.fill(begin, codes)
            found = self._take(codes)
            place = (window - first) * self.step
            out[place : place + found.size] = found

    def _take(self, codes: Array) -> Array:
        raise NotImplementedError


class Places(_Part):
    """The places of the peaks of some blocks' codes."""

    room = "places of peaks in parts"

    def __init__(self, codes: Content, peaks: Peaks):
        super().__init__(codes, peaks, codes.size // peaks.width * peaks.number, WINDOW * peaks.number)

    def _take(self, codes: Array) -> Array:
        return self._peaks.split(codes)[1]


class Rest(_Part):
    """The codes of some blocks without their peaks."""

    room = "codes without peaks in parts"

    def __init__(self, codes: Content, peaks: Peaks):
        blocks = codes.size // peaks.width
        super().__init__(codes, peaks, peaks.rest_size(blocks), peaks.rest_size(WINDOW))

    def _take(self, codes: Array) -> Array:
        return self._peaks.split(codes)[2]
