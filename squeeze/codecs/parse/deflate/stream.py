"""Opening deflate streams: their content, and the choices of their encoder. Closing them gives the same bytes again."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from squeeze.codecs.parse.deflate import choices, layout, reading, state, writing
from squeeze.codecs.parse.deflate.encoders import Encoder
from squeeze.codecs.parse.deflate.estimating import estimate
from squeeze.codecs.parse.deflate.layout import Tokens, empty
from squeeze.codecs.parse.room import Room
from squeeze.errors import DamagedError
from squeeze.numerics.bitmodels import coder as arithmetic
from squeeze.system.binary import read_exactly

__all__ = ["Closings", "IsSound", "Opened", "open_stream"]

IsSound = Callable[[np.ndarray, int], bool]

_PROOF = 8  # times as long as reading a stream: to find the choices of its encoder
_MOST_OF_TOKEN, _MOST_OF_BLOCK = 96, 1 << 14  # bytes of choices, if none was expected


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
        coded = choices.encode(stream, opened.encoder.settings, room, self._entries)
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
        content = np.require(content, requirements="W")  # read-only arrays would have kernels of their own
        stream = empty(0, content.size, most, most * layout.MOST_REPEATS)._replace(content=content)
        coded = np.frombuffer(bytearray(file.read()), np.uint8)
        coding = choices.coding(stream, self._encoder.settings, coded, self._entries)
        arithmetic.start_decoder(coding.coder, coding.coded)
        if choices.code(coding, choices.paths_of(coding), True) < 0:
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
    opened = Opened(stream, estimate(stream, window, room.encoder), size)
    if not _closes(opened, data[:size]):
        room.spend(_PROOF * stream.content.size)
        return None
    room.encoder = opened.encoder
    return opened


def _closes(opened: Opened, data: np.ndarray) -> bool:
    """Return whether closing a stream gives its bytes again, at a cost that pays."""
    coded = choices.encode(opened.stream, opened.encoder.settings, _most(opened.size), state.nothing_learnt())
    if coded is None:
        return False
    try:
        return np.array_equal(Closings().close(opened.content, b"\1" + opened.encoder.to_bytes() + coded), data)
    except DamagedError:
        return False


def _most(size: int) -> int:
    """Return the room for the choices of a stream of some bytes, beyond which it stays closed."""
    return size // 8 + 8 * state.ROOM
