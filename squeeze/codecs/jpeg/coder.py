"""Coding a JPEG image: its header, what ends its scans, and its coefficients."""

import io

import numpy as np

from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.bytewise.presets import LARGE
from squeeze.codecs.content import Progress
from squeeze.codecs.jpeg import frame as frames, state
from squeeze.codecs.jpeg.image import Image, close, most_blocks, open_image
from squeeze.codecs.jpeg.known import known_header
from squeeze.codecs.jpeg.layout import Frame
from squeeze.codecs.jpeg.medium import find_images
from squeeze.codecs.jpeg.model import code_row
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["decode", "encode", "memory"]

_HEADER = LARGE["other"]
_DEEPEST = 2  # images in headers of images


def encode(data: bytes, progress: Progress = None) -> bytes | None:
    """Return the coded bytes of an image, or None if they are not fewer, or data is not an image that can be opened."""
    return _encode(data, 0, progress)


def memory(length: int) -> int:
    """Estimate the memory in bytes of coding or decoding an image of `length` bytes."""
    return state.memory(most_blocks(length))


def _encode(data: bytes, depth: int, progress: Progress = None) -> bytes | None:
    image = open_image(data)
    if image is None:
        return None
    parts = [_header_bytes(image.header, depth)]
    for padding, rest in zip(image.paddings, image.rests, strict=True):
        parts += [varint(2 * len(rest) + padding), rest]
    coder, out = np.zeros(3, np.uint64), np.zeros(len(data) + 4 * arithmetic.SPARE, np.uint8)
    arithmetic.start_encoder(coder)
    if not _code(image.frame, image.coefficients, coder, out, False, len(data), progress):
        return None
    parts.append(out[: arithmetic.finish_encoder(coder, out)].tobytes())
    payload = b"".join(parts)
    return payload if len(payload) < len(data) else None


def _header_bytes(header: bytes, depth: int) -> bytes:
    """Return a header's images, such as thumbnails, and the rest of it, coded."""
    parts, rest, done = list[bytes](), bytearray(), 0
    for start, end in find_images(header, 2) if depth < _DEEPEST else ():
        if inner := _encode(header[start:end], depth + 1):
            rest += header[done:start]
            parts += [varint(start - done), varint(end - start), varint(len(inner)), inner]
            done = end
    rest += header[done:]
    coded = bytewise.encode_after(_known(), np.frombuffer(bytes(rest), np.uint8), _HEADER)
    numbers = varint(len(parts) // 4), *parts, varint(len(rest)), varint(len(coded or b""))
    return b"".join([*numbers, coded or bytes(rest)])


def _known() -> np.ndarray:
    return np.frombuffer(known_header(), np.uint8)


def decode(payload: bytes, length: int, progress: Progress = None) -> np.ndarray:
    """Return the uint8 [length] of an image from its coded bytes.

    Raises:
        DamagedError: if they are invalid.
    """
    return _decode(payload, length, 0, progress)


def _decode(payload: bytes, length: int, depth: int, progress: Progress = None) -> np.ndarray:
    file = io.BytesIO(payload)
    header = _read_header(file, length, depth)
    frame = frames.parse(header)
    if frame.blocks > most_blocks(length):
        raise DamagedError("a JPEG image has too many blocks: the file is damaged")
    paddings, rests = list[int](), list[bytes]()
    for _ in frame.scans:
        size, padding = divmod(read_varint(file)[0], 2)
        paddings.append(padding)
        rests.append(_read(file, size))
    coder, coded = np.zeros(3, np.uint64), np.frombuffer(bytearray(file.read()), np.uint8)
    arithmetic.start_decoder(coder, coded)
    coefficients = np.zeros((frame.blocks, 64), np.int16)
    if not _code(frame, coefficients, coder, coded, True, length, progress):
        raise DamagedError("the coded bytes of a JPEG image end too early: the file is damaged")
    data = close(Image(header, frame, coefficients, tuple(paddings), tuple(rests)), length)
    if len(data) != length:
        raise DamagedError("a JPEG image has another length: the file is damaged")
    return np.frombuffer(data, np.uint8)


def _read_header(file: io.BytesIO, length: int, depth: int) -> bytes:
    inner, count = list[tuple[int, bytes]](), read_varint(file)[0]
    if depth == _DEEPEST and count:
        raise DamagedError("a JPEG image has too many others in it: the file is damaged")
    for _ in range(count):
        gap, size = read_varint(file)[0], read_varint(file)[0]
        payload = _read(file, read_varint(file)[0])
        length -= size
        if length < 0:
            raise _impossible()
        inner.append((gap, _decode(payload, size, depth + 1).tobytes()))
    size, coded = read_varint(file)[0], read_varint(file)[0]
    if not coded <= size <= length:
        raise _impossible()
    rest = _read(file, coded or size)
    if coded:
        rest = bytewise.decode_after(_known(), rest, size, _HEADER).tobytes()
    parts, done = list[bytes](), 0
    for gap, image in inner:
        parts += [rest[done : done + gap], image]
        done += gap
    if done > size:
        raise _impossible()
    return b"".join([*parts, rest[done:]])


def _read(file: io.BytesIO, size: int) -> bytes:
    if size > len(file.getbuffer()):
        raise _impossible()
    return read_exactly(file, size)


def _impossible() -> DamagedError:
    return DamagedError("the header of a JPEG image is impossible: the file is damaged")


def _code(
    frame: Frame,
    coefficients: np.ndarray,
    coder: np.ndarray,
    coded: np.ndarray,
    decoding: bool,
    length: int,
    progress: Progress,
) -> bool:
    """Code the coefficients in either direction; return whether the coded bytes are enough."""
    model, done, total = state.fresh(frame, coefficients), 0, sum(c.high for c in frame.components)
    for index in range(len(frame.components)):
        plane = state.plane(frame.components, index)
        for y in range(plane.high):
            if not code_row(model, coder, coded, plane, y, decoding):
                return False
            before, done = done, done + 1
            if progress:
                progress(length * done // total - length * before // total)
    return True
