"""Opening single blocks of Snappy and LZ4, and closing them again: what is coded is their encoder and its choices."""

import numpy as np

from squeeze.codecs.parse.quick import choices, layout, lz4, snappy
from squeeze.codecs.parse.quick.layout import Tokens
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError

__all__ = ["SNAPPY_ENCODERS", "choices_of", "close_block", "open_lz4", "open_snappy"]

SNAPPY_ENCODERS = range(layout.BY_SIZE)  # how they hash; the two of LZ4 blocks follow: by the size, and linked
_USUAL = (layout.LOW_OF_15, layout.HIGH, layout.CRC_OF_15, layout.CRC_OF_14, layout.LOW_OF_14)
_PROOF = 16  # times as long as reading a block: to find its encoder
_LEAST_ROOM = 64  # bytes of choices that any block may have
_SHARE = 8  # and the same for a part of its bytes


def _settings(encoder: int, size: int) -> np.ndarray:
    """Return the settings of an encoder by its number in files, for a content of `size` bytes."""
    if encoder in SNAPPY_ENCODERS:
        return layout.settings(layout.SNAPPY, encoder, layout.SNAPPY_PART)
    return layout.settings(layout.LZ4, layout.BY_SIZE, max(size, 1), encoder > layout.BY_SIZE)


def choices_of(tokens: Tokens, settings: list[np.ndarray], size: int, room: Room) -> tuple[int, bytes] | None:
    """Return the number of the settings that predict tokens best, and the coded choices.

    Args:
        tokens: those of a block or of a frame.
        settings: of possible encoders.
        size: its bytes.
        room: counts attempts in vain.

    Returns:
        None if the choices take more than an eighth of the bytes.
    """
    fewest, best = tokens.total + 1, 0
    for number, tried in enumerate(settings):
        found = choices.differences(tokens, tried, fewest) if fewest else fewest
        if 0 <= found < fewest:
            fewest, best = found, number
    coded = choices.encode(tokens, settings[best], _LEAST_ROOM + size // _SHARE)
    if coded is None or len(coded) > size // _SHARE:
        room.spend(_PROOF * tokens.content.size)
        return None
    return best, coded


def open_snappy(data: np.ndarray, size: int, room: Room) -> tuple[np.ndarray, bytes] | None:
    """Open a Snappy block, uint8 that is all of `data`.

    Args:
        data: the block.
        size: the bytes of its content.
        room: for its content.

    Returns:
        its content and what closes it, or None if it does not come back.
    """
    if snappy.content_size(data)[0] != size or not 0 < size <= room.content:
        return None
    tokens = layout.empty(np.zeros(size, np.uint8), layout.SNAPPY_PART)
    if not snappy.read(data, tokens):
        room.spend(size)
        return None
    return _opened(data, tokens, list(_USUAL), room)


def open_lz4(data: np.ndarray, size: int, room: Room) -> tuple[np.ndarray, bytes] | None:
    """Open an LZ4 block, as `open_snappy` does."""
    if not 0 < size <= room.content or lz4.content_size(data, size) != size:
        room.spend(data.size)
        return None
    tokens = layout.empty(np.zeros(size, np.uint8), size)
    if lz4.read_part(data, tokens, 0, 0, False) != size:
        room.spend(size)
        return None
    return _opened(data, tokens, [layout.BY_SIZE, layout.BY_SIZE + 1], room)


def _opened(data: np.ndarray, tokens: Tokens, encoders: list[int], room: Room) -> tuple[np.ndarray, bytes] | None:
    encoders.sort(key=lambda encoder: encoder != room.looks)
    size = tokens.content.size
    found = choices_of(tokens, [_settings(encoder, size) for encoder in encoders], data.size, room)
    if found is None:
        return None
    extra = bytes([encoders[found[0]]]) + found[1]
    if not np.array_equal(close_block(tokens.content, extra), data):
        room.spend(_PROOF * size)
        return None
    room.looks = encoders[found[0]]
    return tokens.content, extra


def close_block(content: np.ndarray, extra: bytes) -> np.ndarray:
    """Return the block of a content, uint8 [n], from what `open_snappy` or `open_lz4` gave.

    Raises:
        DamagedError: if they do not belong together.
    """
    if not extra or extra[0] > layout.BY_SIZE + 1 or not content.size:
        raise DamagedError("what closes a block of Snappy or LZ4 is impossible: the file is damaged")
    tokens = choices.restore(content, _settings(extra[0], content.size), extra[1:])
    if extra[0] in SNAPPY_ENCODERS:
        return snappy.write(tokens)
    return lz4.write_part(tokens, 0, 0, content.size)
