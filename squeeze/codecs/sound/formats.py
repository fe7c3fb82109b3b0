"""Sounds of integer samples in data: WAV with RF64 and RIFX, Wave64, AIFF, AU, CAF, and the samples of SoundFonts."""

import re
import struct
from collections.abc import Iterator

import numpy as np

from squeeze.codecs.numbers import Found, Numbers
from squeeze.codecs.sound.layout import MOST_CHANNELS, Layout
from squeeze.codecs.sound.raw import find_raw

__all__ = ["Sound"]

_MOST_PREFIX = 1 << 12  # bytes of a header that is coded with its sound
_MOST_CHUNKS = 64
_WAVE = re.compile(rb"(RIFF|RF64|RIFX).{4}WAVE", re.DOTALL)
_GUID = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"  # the end of the names of most chunks of Wave64
_WAVE64 = re.compile(rb"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0.{8}wave" + re.escape(_GUID), re.DOTALL)
_AIFF = re.compile(rb"FORM.{4}AIF[FC]", re.DOTALL)
_AU = re.compile(rb"\.snd\0.{7}\0\0\0[\x02-\x05].{4}\0\0\0[\x01-\x08]", re.DOTALL)
_CAF = re.compile(rb"caff\0\x01\0\0desc")
_SAMPLES = re.compile(rb"LIST.{4}sdtasmpl(.{4})", re.DOTALL)  # of a SoundFont
_PCM, _EXTENSIBLE = 1, 0xFFFE  # formats of WAV
_UNKNOWN = (1 << 32) - 1  # the size of data whose end is not known
# Whether the high byte is first, and whether samples have no sign, by the compression of AIFF-C.
_AIFC = {b"NONE": (1, 0), b"twos": (1, 0), b"sowt": (0, 0), b"raw ": (1, 1), b"in24": (1, 0), b"in32": (1, 0)}


class Sound(Numbers):
    """Integer samples of sound, without compression."""

    block, kind, module, layout = 10, "sound", "squeeze.codecs.sound.coder", Layout

    def named(self, data: bytes) -> list[Found]:
        return [*_waves(data), *_waves64(data), *_aiffs(data), *_aus(data), *_cafs(data), *_fonts(data)]

    def bare(self, data: np.ndarray) -> Layout | None:
        return find_raw(data)

    def unit(self, form: Layout) -> tuple[int, int]:
        return form.frame, 1


def _region(raw: bytes, start: int, first: int, size: int, form: Layout) -> Iterator[Found]:
    """Yield the sound whose header is at `start`, and whose samples begin at `first`, as far as the data has it."""
    end = min(first + size, len(raw))
    if 1 <= form.width <= 4 and 1 <= form.channels <= MOST_CHANNELS and end - first >= form.frame:
        if first - start > _MOST_PREFIX:
            start = first
        yield start, end, form._replace(prefix=first - start)


def _numbers(form: str, raw: bytes, at: int) -> tuple[int, ...]:
    """Return the numbers at a place, or zeros if the data ends before."""
    size = struct.calcsize(form)
    return struct.unpack_from(form, raw, at) if at + size <= len(raw) else struct.unpack(form, bytes(size))


def _chunks(raw: bytes, at: int, head: str, even: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, begin and size of chunks from a place on.

    Args:
        raw: the data.
        at: where the first chunk begins.
        head: the form of a name and a size.
        even: the bytes of which a chunk has a multiple.
    """
    length = struct.calcsize(head)
    for _ in range(_MOST_CHUNKS):
        if at + length > len(raw):
            return
        name, size = struct.unpack_from(head, raw, at)
        yield name, at + length, size
        if size < 0:
            return
        at += length + -(-size // even) * even


def _of_wave(raw: bytes, at: int, order: str) -> Layout | None:
    """Return the layout that a chunk `fmt ` of WAV tells, or None if samples are not integers."""
    kind, channels, _, _, frame, bits = _numbers(order + "HHIIHH", raw, at)
    if kind == _EXTENSIBLE:
        kind = _numbers(order + "H", raw, at + 24)[0]
    width = (bits + 7) // 8
    if kind != _PCM or not channels or frame != channels * width:
        return None
    return Layout(width, channels, int(order == ">"), int(width == 1))


def _waves(raw: bytes) -> Iterator[Found]:
    """Yield sounds in WAV, RF64 and RIFX."""
    for match in _WAVE.finditer(raw):
        order, form, large = ">" if match[1] == b"RIFX" else "<", None, 0
        for name, at, size in _chunks(raw, match.end(), order + "4sI", 2):
            if name == b"ds64":
                large = _numbers("<QQ", raw, at)[1]
            elif name == b"fmt ":
                form = _of_wave(raw, at, order)
            elif name == b"data" and form:
                yield from _region(raw, match.start(), at, large if size == _UNKNOWN and large else size, form)
                break


def _waves64(raw: bytes) -> Iterator[Found]:
    """Yield sounds in Wave64."""
    for match in _WAVE64.finditer(raw):
        at, form = match.end(), None
        for _ in range(_MOST_CHUNKS):
            size = _numbers("<Q", raw, at + 16)[0]
            name = raw[at : at + 4]
            if name == b"fmt ":
                form = _of_wave(raw, at + 24, "<")
            elif name == b"data" and form:
                yield from _region(raw, match.start(), at + 24, size - 24, form)
            if size < 24 or name == b"data":
                break
            at += (size + 7) // 8 * 8


def _aiffs(raw: bytes) -> Iterator[Found]:
    """Yield sounds in AIFF and AIFF-C."""
    for match in _AIFF.finditer(raw):
        form = None
        for name, at, size in _chunks(raw, match.end(), ">4sI", 2):
            if name == b"COMM":
                channels, _, bits = _numbers(">HIH", raw, at)
                coding = raw[at + 18 : at + 22] if match[0].endswith(b"C") else b"NONE"
                form = Layout((bits + 7) // 8, channels, *_AIFC[coding]) if coding in _AIFC else None
            elif name == b"SSND" and form:
                skip = _numbers(">I", raw, at)[0]
                yield from _region(raw, match.start(), at + 8 + skip, size - 8 - skip, form)
                break


def _aus(raw: bytes) -> Iterator[Found]:
    """Yield sounds in the format AU."""
    for match in _AU.finditer(raw):
        begin, size, coding, _, channels = _numbers(">4x5I", raw, match.start())
        if begin >= 24:
            yield from _region(raw, match.start(), match.start() + begin, size, Layout(coding - 1, channels, 1))


def _cafs(raw: bytes) -> Iterator[Found]:
    """Yield sounds in the Core Audio Format."""
    for match in _CAF.finditer(raw):
        form = None
        for name, at, size in _chunks(raw, match.start() + 8, ">4sq", 1):
            if name == b"desc" and raw[at + 8 : at + 12] == b"lpcm":
                flags, packet, _, channels, bits = _numbers(">5I", raw, at + 12)
                if not flags & 1 and channels and packet == channels * ((bits + 7) // 8):
                    form = Layout((bits + 7) // 8, channels, int(not flags & 2))
            elif name == b"data" and form:
                length = size - 4 if size >= 4 else len(raw)
                yield from _region(raw, match.start(), at + 4, length, form)
                break


def _fonts(raw: bytes) -> Iterator[Found]:
    """Yield the samples of SoundFonts."""
    for match in _SAMPLES.finditer(raw):
        size = int.from_bytes(match[1], "little")
        yield from _region(raw, match.start(), match.end(), size, Layout(2, 1))
