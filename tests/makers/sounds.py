"""Sounds that depend on no library, and the files that hold them."""

import struct

import numpy as np

from squeeze.codecs.sound.layout import Layout

__all__ = ["aiff", "au", "bytes_of", "caf", "samples", "to_bytes", "wav", "wav64"]

_GUID = b"\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"


def samples(count: int, channels: int, bits: int, seed: int = 0) -> np.ndarray:
    """Return int64 [count, channels]: two waves in integers, with a little noise, and channels alike."""
    noise = np.random.default_rng(seed).integers(-3, 4, (count, channels))
    made, half = np.zeros((count, channels), np.int64), 1 << (bits - 3)
    for factor, start in ((250, half), (190, half // 3)):
        a, b = start, 0
        for i in range(count):
            a -= b * factor // 2000
            b += a * factor // 2000
            made[i] += [b + a * c // 8 for c in range(channels)]
    return (made + noise).clip(-(1 << bits - 1), (1 << bits - 1) - 1)


def to_bytes(made: np.ndarray, width: int, big: bool = False, unsigned: bool = False) -> bytes:
    """Return the samples, each of `width` bytes."""
    values = made.ravel() + ((1 << 8 * width - 1) if unsigned else 0)
    columns = [values >> 8 * k & 255 for k in range(width)]
    return np.stack(columns[::-1] if big else columns, 1).astype(np.uint8).tobytes()


def _fmt(order: str, made: np.ndarray, width: int, extensible: bool = False) -> bytes:
    channels = made.shape[1]
    numbers = struct.pack(
        order + "HHIIHH", 0xFFFE if extensible else 1, channels, 44100, 44100, channels * width, 8 * width
    )
    if extensible:
        guid = bytes.fromhex("000000001000800000aa00389b71")
        numbers += struct.pack(order + "HHIH", 22, 8 * width, 0, 1) + guid
    return numbers


def wav(made: np.ndarray, width: int, mark: bytes = b"RIFF", extensible: bool = False) -> bytes:
    """Return a file in WAV, or in RF64 or RIFX by its mark."""
    order = ">" if mark == b"RIFX" else "<"
    body = to_bytes(made, width, mark == b"RIFX", width == 1)
    size = 0xFFFFFFFF if mark == b"RF64" else len(body)
    chunks = [(b"fmt ", _fmt(order, made, width, extensible))]
    if mark == b"RF64":
        chunks.insert(0, (b"ds64", struct.pack("<QQQI", len(body) + 80, len(body), 0, 0)))
    head = b"".join(name + struct.pack(order + "I", len(text)) + text for name, text in chunks)
    return (
        mark
        + struct.pack(order + "I", len(body) + 36)
        + b"WAVE"
        + head
        + b"data"
        + struct.pack(order + "I", size)
        + body
    )


def wav64(made: np.ndarray, width: int) -> bytes:
    """Return a file in Wave64."""
    body, fmt = to_bytes(made, width), _fmt("<", made, width)
    riff = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0" + struct.pack("<Q", len(body) + 104) + b"wave" + _GUID
    head = b"fmt " + _GUID + struct.pack("<Q", 24 + len(fmt)) + fmt
    return riff + head + b"data" + _GUID + struct.pack("<Q", 24 + len(body)) + body


def aiff(made: np.ndarray, width: int, coding: bytes = b"") -> bytes:
    """Return a file in AIFF, or in AIFF-C if it has a coding."""
    body = struct.pack(">II", 0, 0) + to_bytes(made, width, coding != b"sowt", coding == b"raw ")
    common = struct.pack(">HIH", made.shape[1], len(made), 8 * width) + bytes.fromhex("400eac44000000000000")
    common += coding + b"\0\0" if coding else b""
    chunks = b"COMM" + struct.pack(">I", len(common)) + common + b"SSND" + struct.pack(">I", len(body)) + body
    return b"FORM" + struct.pack(">I", len(chunks) + 4) + (b"AIFC" if coding else b"AIFF") + chunks


def au(made: np.ndarray, width: int) -> bytes:
    """Return a file in the format AU."""
    body = to_bytes(made, width, True)
    return struct.pack(">4s5I", b".snd", 24, len(body), width + 1, 44100, made.shape[1]) + body


def caf(made: np.ndarray, width: int, little: bool = True) -> bytes:
    """Return a file in the Core Audio Format."""
    channels, body = made.shape[1], to_bytes(made, width, not little)
    desc = struct.pack(">d4s5I", 44100.0, b"lpcm", 2 * little, channels * width, 1, channels, 8 * width)
    data = struct.pack(">I", 0) + body
    return b"caff\0\1\0\0desc" + struct.pack(">q", 32) + desc + b"data" + struct.pack(">q", len(data)) + data


def bytes_of(form: Layout, count: int, seed: int = 0) -> bytes:
    """Return the bytes of a sound that has such a layout."""
    made = samples(count, form.channels, form.bits, seed)
    return bytes(i % 7 for i in range(form.prefix)) + to_bytes(made, form.width, bool(form.big), bool(form.unsigned))
