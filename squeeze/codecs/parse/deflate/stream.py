"""Opening deflate streams: their content, and the choices of their encoder. Closing them gives the same bytes again."""

import io
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from squeeze.codecs.parse.deflate import choices, layout, reading, state, writing
from squeeze.codecs.parse.deflate.layout import Tokens, empty
from squeeze.codecs.parse.deflate.matcher import (
    BY_CRC,
    FOUR,
    GREEDY,
    LAZY_MATCHING,
    LITERALS_ONLY,
    MARGIN,
    RUNS,
    THREE,
)
from squeeze.codecs.parse.deflate.state import Coding
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.system.binary import read_exactly, read_varint, varint

__all__ = ["Closings", "IsSound", "Opened", "open_stream"]

IsSound = Callable[[np.ndarray, int], bool]

_PROOF = 8  # times as long as reading a stream: to find the choices of its encoder
_STEPS, _LEAST_STEPS = 600, 1 << 22  # candidates that may be compared for each byte of content, and for all
_FEW_TOKENS, _SAMPLE = 1 << 12, 1 << 15  # tokens on which all settings are tried, and the best
_BEST, _NEAR = 3, 16  # settings that are tried again, and the most bytes that they may need beyond the best
_FEW = 24  # bytes of choices in a sample that is predicted well enough
_SETTINGS = 5  # bytes of settings that are not those before
_MOST_OF_TOKEN, _MOST_OF_BLOCK = 96, 1 << 14  # bytes of choices, if none was expected
_LEAST_WINDOW, _MOST_WINDOW = 9, 15  # bits
_BLOCK = (1 << 14) - 1  # tokens of zlib's blocks by default
_LEVELS = (  # speed, good, laziest, nice and chain
    (LITERALS_ONLY, 0, 0, 0, 0),
    (GREEDY, 4, 4, 8, 4),
    (GREEDY, 4, 5, 16, 8),
    (GREEDY, 4, 6, 32, 32),
    (LAZY_MATCHING, 4, 4, 16, 16),
    (LAZY_MATCHING, 8, 16, 32, 32),
    (LAZY_MATCHING, 8, 16, 128, 128),
    (LAZY_MATCHING, 8, 32, 128, 256),
    (LAZY_MATCHING, 32, 128, 258, 1024),
    (LAZY_MATCHING, 32, 258, 258, 4096),
    (LAZY_MATCHING, 259, 258, 258, 4096),  # of encoders other than zlib
    (RUNS, 0, 0, 0, 0),  # zlib's strategy for runs
    (GREEDY, 4, 0, 258, 1),  # zlib-ng at level 1, and at level 2
    (GREEDY, 4, 4, 8, 4),
    (GREEDY, 259, 258, 32, 2),  # libdeflate at level 1
    (GREEDY, 4, 0, 258, 1),  # ISA-L
)
_OTHER, _QUICK, _FAST, _TWO, _ISAL = 10, 12, 13, 14, 15
_FREE = (_OTHER, _TWO, _ISAL)  # match at any position of the window, and join the code lengths
_HASHED = {_QUICK: FOUR, _FAST: FOUR, _TWO: FOUR, _ISAL: BY_CRC}
_ISAL_MEMORY = 6, 8  # whose hashes have 13 and 15 bits
_HEAD, _TAIL = {_ISAL: 3}, {_FAST: 1}
_UNFILTERED = (6, 9, 1, 5, 8, 7, 4, 3, 2, *range(_OTHER, _ISAL))  # levels, the usual ones first
_FILTERED = (6, 9, 5, 8, 7, 4)


@dataclass(frozen=True)
class Encoder:
    """The settings by which an encoder's choices are predicted.

    Attributes:
        level: That of zlib, 0 for literals only, 11 for runs only, or others for other encoders.
        filtered: Whether short matches are not taken, as libpng asks for.
        joined: Whether the code lengths of literals and distances are repeated together.
        memory: zlib's memory level, 1 to 9.
        window: The bits of a window, 8 to 15.
        block: The tokens of a block.
    """

    level: int = 6
    filtered: bool = False
    joined: bool = False
    memory: int = 8
    window: int = 15
    block: int = _BLOCK

    @property
    def settings(self) -> np.ndarray:
        """The settings of a matcher, int64 [14]."""
        first, hashed = -1 if self.level in _FREE else 0, _HASHED.get(self.level, THREE)
        own = 1 << self.window, self.memory + 7, self.filtered, self.block, first, self.joined
        joining = _HEAD.get(self.level, 0), _TAIL.get(self.level, 0)
        return np.array((*_LEVELS[self.level], *own, hashed, *joining), np.int64)

    def to_bytes(self) -> bytes:
        """Return the settings in three bytes and a number."""
        flags = self.level | self.filtered << 4 | self.joined << 5
        return bytes([flags, self.memory << 4 | self.window]) + varint(self.block)

    @classmethod
    def read(cls, file: io.BytesIO) -> "Encoder":
        """Read what `to_bytes` wrote, or raise DamagedError."""
        flags, sizes = read_exactly(file, 2)
        found = cls(flags & 15, bool(flags & 16), bool(flags & 32), sizes >> 4, sizes & 15, read_varint(file)[0])
        if found.level >= len(_LEVELS) or not 1 <= found.memory <= 9 or not 8 <= found.window <= 15 or flags > 63:
            raise DamagedError("the settings of a deflate stream are impossible: the file is damaged")
        return found


@dataclass(frozen=True)
class Opened:
    """A stream, the settings that predict it, and its size in bytes."""

    stream: Tokens
    encoder: Encoder
    size: int

    @property
    def content(self) -> np.ndarray:
        """The bytes that the stream stands for, uint8 [n]."""
        return self.stream.content


class Closings:
    """A coder of what closes several streams, one after the other: each teaches the probabilities of the next.

    `encode` and `close` are called for the same streams in the same order.
    """

    def __init__(self) -> None:
        self._entries, self._encoder = state.nothing_learnt(), Encoder()

    def encode(self, opened: Opened) -> bytes:
        """Return what closes a stream, with its content."""
        known, stream = opened.encoder == self._encoder, opened.stream
        self._encoder = opened.encoder
        room = state.ROOM + _MOST_OF_TOKEN * stream.tokens.size + _MOST_OF_BLOCK * stream.blocks.shape[0]
        coded = _choices(stream, opened.encoder, room, self._entries)
        assert coded is not None, "a stream that was opened can be closed"
        return (b"\0" if known else b"\1" + opened.encoder.to_bytes()) + coded

    def close(self, content: np.ndarray, closing: bytes) -> np.ndarray:
        """Return the bytes of a stream from its content uint8 [n].

        Raises:
            DamagedError: if they do not belong together.
        """
        file = io.BytesIO(closing)
        if read_exactly(file, 1) != b"\0":
            self._encoder = Encoder.read(file)
        most = layout.most_blocks(content.size)
        stream = empty(0, content.size, most, most * layout.MOST_REPEATS)._replace(content=content)
        coding = _coding(stream, self._encoder, np.frombuffer(bytearray(file.read()), np.uint8), self._entries)
        arithmetic.start_decoder(coding.coder, coding.coded)
        if choices.code(coding, True) < 0:
            raise DamagedError("what closes a deflate stream is impossible: the file is damaged")
        return writing.write(stream)


def open_stream(data: np.ndarray, room: Room, window: int = 15, is_sound: IsSound | None = None) -> Opened | None:
    """Open the deflate stream that data starts with.

    Args:
        data: uint8, with the stream at its start.
        room: for its content.
        window: bits of the window, if a header tells them.
        is_sound: whether the content, uint8, and the size of a stream agree with what is around it.

    Returns:
        the stream, or None if closing it does not give the same bytes, or costs more than an eighth of them.
    """
    found = reading.read(data, room)
    if found is None:
        return None
    stream, size = found
    if is_sound and not is_sound(stream.content, size):
        room.spend(stream.content.size)
        return None
    opened = Opened(stream, _estimate(stream, window, room.encoder), size)
    if not _closes(opened, data[:size]):
        room.spend(_PROOF * stream.content.size)
        return None
    room.encoder = opened.encoder
    return opened


def _closes(opened: Opened, data: np.ndarray) -> bool:
    """Return whether closing a stream gives its bytes again, at a cost that pays."""
    coded = _choices(opened.stream, opened.encoder, _most(opened.size), state.nothing_learnt())
    if coded is None:
        return False
    try:
        return np.array_equal(Closings().close(opened.content, b"\1" + opened.encoder.to_bytes() + coded), data)
    except DamagedError:
        return False


def _most(size: int) -> int:
    """Return the room for the choices of a stream of some bytes, beyond which it stays closed."""
    return size // 8 + 8 * state.ROOM


def _coding(stream: Tokens, encoder: Encoder, coded: np.ndarray, entries: np.ndarray) -> Coding:
    steps = max(_LEAST_STEPS, _STEPS * stream.content.size)
    return state.coding(stream, encoder.settings, steps, coded, entries)


def _choices(stream: Tokens, encoder: Encoder, most: int, entries: np.ndarray) -> bytes | None:
    """Return the coded choices of a stream, or None if they take more bytes or steps."""
    coding = _coding(stream, encoder, np.zeros(most, np.uint8), entries)
    arithmetic.start_encoder(coding.coder)
    if choices.code(coding, False) < 0:
        return None
    return coding.coded[: arithmetic.finish_encoder(coding.coder, coding.coded)].tobytes()


def _estimate(stream: Tokens, window: int, before: object) -> Encoder:
    """Return the settings that predict the first tokens best.

    The window is the smallest that holds all matches, if the content is larger and the given one predicts worse.
    """
    found, cost = _best(stream, window, before)
    smaller = _window_of(stream)
    if cost < _FEW or smaller >= window or stream.content.size <= 1 << smaller:
        return found
    other, less = _best(stream, smaller, before)
    return other if less + _SETTINGS < cost else found


def _best(stream: Tokens, window: int, before: object) -> tuple[Encoder, int]:
    """Return the settings with this window that predict the first tokens best, and the bytes of their choices.

    Few tokens are predicted by all settings, more by the best ones. Those of the stream before are tried first, and are
    enough if they predict well.
    """
    block = _block_of(stream)
    memory = (block + 1).bit_length() - 7  # zlib's blocks have 2^(memory + 6) - 1 tokens
    base = Encoder(window=window, block=block, memory=memory if 1 <= memory <= 9 else 8)
    levels = [(level, filtered) for filtered, some in ((False, _UNFILTERED), (True, _FILTERED)) for level in some]
    tried = [replace(base, level=level, filtered=filtered, joined=level in _FREE) for level, filtered in levels]
    tried += [replace(base, level=_ISAL, joined=True, memory=memory) for memory in _ISAL_MEMORY]
    if isinstance(before, Encoder):
        same = replace(base, level=before.level, filtered=before.filtered, joined=before.joined)
        if (size := _cost(_sample(stream, _FEW_TOKENS), same)) < _FEW:
            return same, size
    for most in (_FEW_TOKENS, _SAMPLE):
        sample, found = _sample(stream, most), list[tuple[int, int, Encoder]]()
        for number, encoder in enumerate(tried):
            size = _cost(sample, encoder)
            found.append((size, number, encoder))
            if size < _FEW and most >= stream.tokens.size:
                return encoder, size
        least = min(size for size, _, _ in found)
        tried = [encoder for size, _, encoder in sorted(found)[:_BEST] if size <= least + _NEAR]
        if len(tried) == 1 or most >= stream.tokens.size:
            break
    return tried[0], least


def _cost(sample: Tokens, encoder: Encoder) -> int:
    """Return the bytes of a sample's choices; many if they are too many."""
    coded = _choices(sample, encoder, 8 * state.ROOM + int(sample.totals[layout.TOKENS]), state.nothing_learnt())
    return 1 << 62 if coded is None else len(coded)


def _block_of(stream: Tokens) -> int:
    """Return the tokens of a block that are most frequent before the last one."""
    rows = stream.blocks
    counts = np.diff(rows[:, layout.END], prepend=0)[:-1][rows[:-1, layout.TYPE] != layout.STORED]
    values, often = np.unique(counts, return_counts=True)
    return int(values[often.argmax()]) if values.size and often.max() > 1 else max(_BLOCK, int(counts.max(initial=0)))


def _window_of(stream: Tokens) -> int:
    """Return the bits of the smallest window in which zlib finds the matches of a stream."""
    farthest = int((stream.tokens & 0xFFFF).max(initial=0)) + MARGIN
    return min(max((farthest - 1).bit_length(), _LEAST_WINDOW), _MOST_WINDOW)


def _sample(stream: Tokens, most: int) -> Tokens:
    """Return the first tokens of a stream as a stream of one block."""
    start = np.flatnonzero(stream.blocks[:, layout.TYPE] != layout.STORED)
    count = min(int(stream.totals[layout.TOKENS]), most)
    if not start.size or stream.blocks[0, layout.TYPE] == layout.STORED:
        count = 0
    tokens = stream.tokens[:count]
    lengths = np.maximum(tokens >> 16, 1)
    size = int(lengths.sum())
    blocks = np.zeros((1, layout.COLUMNS), np.int64)
    blocks[0, [layout.TYPE, layout.FINAL, layout.END, layout.SIZE]] = layout.FIXED, 1, count, size
    found = empty(0, 0, 1, 0)._replace(content=stream.content[:size], tokens=tokens, blocks=blocks)
    found.totals[[layout.CONTENT, layout.TOKENS, layout.BLOCKS, layout.SYMBOLS, layout.REST]] = size, count, 1, 0, 0
    return found
