"""A cache on disk of memories (deep/initial_state.py), so that a dictionary's text is read once.

A file has 8 bytes of XXH3-64 of the rest, 8 bytes of the header's length, a JSON header, and arrays, each at a cache
line. The header has the key and the places of arrays. The file is memory-mapped, and arrays are views of it. The key
covers the dictionary, the models, and all sources of compiled code, so another version reads the text again.

The checksum is against damage only. Compiled code trusts these arrays, so a folder that other users can write to is not
read.
"""

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash

from squeeze.codecs.deep import initial_state
from squeeze.codecs.deep.initial_state import Memory
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.errors import FormatError
from squeeze.numerics.bitmodels.layout import LINE
from squeeze.numerics.code_cache import source_digest
from squeeze.system import cache
from squeeze.system.documents import parse_object

__all__ = ["folder", "get", "put"]

LEAST = 1 << 15  # bytes of text; a shorter one is read as fast as its cache
MOST = 2 << 30  # bytes of all files: two of the largest, or a dozen of usual ones
_BEFORE = 16  # bytes before the header
_MOST_HEADER = 1 << 20  # bytes
_CACHE_ERRORS = (
    FormatError,
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)  # errors of reading an invalid file


def folder() -> Path:
    """Return the folder of the cache."""
    return cache.root() / "dictionaries"


def get(identity: str, preset: DeepPreset, record: int, size: int) -> Memory | None:
    """Return the memory of a dictionary's text, or None if it is not in the cache, or damaged.

    Args:
        identity: SHA-256 of the dictionary.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        size: bytes of the text.
    """
    if size < LEAST:
        return None
    with suppress(*_CACHE_ERRORS):
        key = _key(identity, preset, record)
        path = folder() / key
        if cache.open_to_others(path.parent):
            return None
        data = np.memmap(path, np.uint8, "c").view(np.ndarray)  # private: writes stay in memory
        checksum, length = (int(number) for number in data[:_BEFORE].view(np.uint64))
        begin = _BEFORE + length
        header = parse_object(data[_BEFORE : min(begin, _BEFORE + _MOST_HEADER)].tobytes())
        if header["key"] != key or xxhash.xxh3_64_intdigest(data[8:].data) != checksum:
            return None
        kept = {name: data[begin:][slice(*place)] for name, place in header["arrays"].items()}
        memory = initial_state.restored(kept, preset, record)
        with suppress(OSError):
            os.utime(path)  # the oldest files are removed first
        return memory
    return None


def put(identity: str, preset: DeepPreset, record: int, memory: Memory) -> None:
    """Write the memory of a dictionary's text to the cache, if the folder and the disk allow it.

    Args:
        identity: SHA-256 of the dictionary.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        memory: the text's.
    """
    if memory.text.size < LEAST:
        return
    chunks: list[np.ndarray] = []
    places, end = {}, 0
    for name, array in initial_state.arrays_of(memory).items():
        places[name] = end, end + array.nbytes
        chunks += [array.reshape(-1).view(np.uint8), np.zeros(-array.nbytes % LINE, np.uint8)]
        end += array.nbytes + chunks[-1].size
    key = _key(identity, preset, record)
    chunks.insert(0, _header(key, places))
    digest = xxhash.xxh3_64(chunks[0][8:].data)
    for chunk in chunks[1:]:
        digest.update(chunk.data)
    chunks[0][:8].view(np.uint64)[0] = digest.intdigest()
    with suppress(OSError, RuntimeError):
        place = folder()
        cache.make_folder(place)
        if cache.make_room(place, chunks[0].size + end, MOST):
            cache.replace(place / key, chunks)


def _key(identity: str, preset: DeepPreset, record: int) -> str:
    sources = source_digest(Path(initial_state.__file__))
    digest = hashlib.sha256(f"{sources} {preset!r} {record} {sys.byteorder}".encode())
    return f"{identity}-{digest.hexdigest()[:16]}"


def _header(key: str, places: dict[str, tuple[int, int]]) -> np.ndarray:
    """Return the header as uint8, with room for the checksum; offsets of arrays count from its end."""
    text = json.dumps({"key": key, "arrays": places}).encode()
    text += b" " * (-(_BEFORE + len(text)) % LINE)
    header = np.zeros(_BEFORE + len(text), np.uint8)
    header[8:_BEFORE].view(np.uint64)[0] = len(text)
    header[_BEFORE:] = np.frombuffer(text, np.uint8)
    return header
