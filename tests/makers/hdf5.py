"""HDF5 files with one array, of both versions of object headers, in chunks or in one piece."""

import struct
import zlib

import numpy as np

__all__ = ["hdf5", "planes"]

_MARK = b"\x89HDF\r\n\x1a\n".ljust(64, b"\0")


def hdf5(made: np.ndarray, chunk: int = 0, version: int = 1, shuffled: bool = True, split: bool = False) -> bytes:
    """Return a file of integers or floats with two or more axes.

    Args:
        made: the array.
        chunk: numbers of the first axis in a chunk, which deflate codes, a divisor of all; 0 for one piece.
        version: of the object header, 1 or 2.
        shuffled: whether the bytes of a chunk are in planes.
        split: whether the header goes on behind itself.
    """
    width, axes = made.dtype.itemsize, made.ndim + 1
    raw = made.tobytes()
    pieces = [raw]
    if chunk:
        size = len(raw) * chunk // len(made)
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        pieces = [zlib.compress(planes(part, width) if shuffled else part) for part in parts]
    floats = made.dtype.kind == "f"
    order = (made.dtype.byteorder == ">") | (0x20 if floats else 8 if made.dtype.kind == "i" else 0)
    kind = struct.pack("<4BI2H", 0x10 | floats, order, 0, 0, width, 0, 8 * width).ljust(20, b"\0")
    space = bytes([1, made.ndim]).ljust(8, b"\0") + struct.pack(f"<{made.ndim}Q", *made.shape)
    coded = struct.pack("<4H4x", 1, 0, 1, 1) if not shuffled else struct.pack("<6H4x", 2, 0, 1, 4, 0, 0)
    filters = bytes([1, 1 + shuffled]).ljust(8, b"\0") + coded
    step = 8 * axes + 16
    tree = len(_MARK) + 512
    places = np.cumsum([tree + 24 + step * len(pieces) + step - 8, *map(len, pieces)])[:-1]
    if chunk:
        shape = (chunk, *made.shape[1:], width)
        layout = struct.pack(f"<3BQ{axes}I", 3, 2, axes, tree, *shape)
    else:
        layout = struct.pack("<2BQQ", 3, 1, int(places[0]), len(raw))
    messages = [(1, space), (3, kind), (8, layout), *([(11, filters)] if chunk else [])]
    node = b"TREE\1\0" + struct.pack("<H16x", len(pieces))
    for place, piece in zip(places, pieces, strict=True):
        node += struct.pack("<II", len(piece), 0) + bytes(8 * axes) + struct.pack("<Q", int(place))
    head = _header(messages, version, split)
    return _MARK + head.ljust(512, b"\0") + node.ljust(int(places[0]) - tree, b"\0") + b"".join(pieces)


def planes(raw: bytes, width: int) -> bytes:
    """Return the first bytes of all numbers of some bytes each, then their second ones, and so on."""
    return b"".join(raw[at::width] for at in range(width))


def _header(messages: list[tuple[int, bytes]], version: int, split: bool) -> bytes:
    """Return an object header, of which all but the first message are in another block if it is split."""
    written = [struct.pack("<HHB3x" if version == 1 else "<BHB", kind, len(body), 0) + body for kind, body in messages]
    first, rest = b"".join(written), b""
    if split:
        begin = b"" if version == 1 else b"OCHK"
        rest = begin + b"".join(written[1:]) + (b"" if version == 1 else bytes(4))
        more = struct.pack("<HHB3xQQ" if version == 1 else "<BHBQQ", 16, 16, 0, len(_MARK) + 256, len(rest))
        first = written[0] + more
    if version == 1:
        head = struct.pack("<BBHII4x", 1, 0, len(messages), 1, len(first)) + first
    else:
        head = b"OHDR" + struct.pack("<BBB", 2, 0, len(first)) + first + bytes(4)
    return head.ljust(256, b"\0") + rest if split else head
