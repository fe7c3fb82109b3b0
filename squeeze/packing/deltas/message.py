"""Messages of a stream: a snapshot has all tensors, a patch the changes since the message before.

A message is a header of 64 bytes and a body. docs/format.md, section 26, specifies both. The hash of a message covers
all other bytes, so a damaged one is refused before anything of it is read.
"""

import json
import struct
from dataclasses import dataclass, replace
from typing import Any

import xxhash

from squeeze.errors import DamagedError, FormatError
from squeeze.system.documents import check, parse

__all__ = ["PATCH", "SNAPSHOT", "Message"]

SNAPSHOT, PATCH = 0, 1
_HEADER = struct.Struct("<4sBBHQQQQQ16s")
_MAGIC, _VERSION = b"SQZD", 1
_HASH = 16
_SCHEMAS = {
    SNAPSHOT: {"tensors": [[object]]},
    PATCH: {"sections": [[int]], "dense": [[object]]},
}


@dataclass(frozen=True)
class Message:
    """A message that was checked, or that is to be written.

    Attributes:
        sequence: its number, which is that of the state after it.
        model: identity of the model.
        before: checksum of the state before it, 0 for a snapshot.
        after: checksum of the state after it.
        described: JSON about the body's bytes.
    """

    kind: int
    sequence: int
    model: int
    before: int
    after: int
    described: dict[str, Any]
    body: bytes | memoryview

    def to_bytes(self) -> bytes:
        """Return the message."""
        text = json.dumps(self.described, separators=(",", ":")).encode()
        content = len(text).to_bytes(8, "little") + text
        size = len(content) + len(self.body)
        fields = (self.sequence, self.model, self.before, self.after, size)
        head = _HEADER.pack(_MAGIC, _VERSION, self.kind, 0, *fields, bytes(_HASH))[:-_HASH]
        state = xxhash.xxh3_128(head)
        state.update(content)
        state.update(self.body)
        return b"".join((head, state.digest(), content, self.body))

    @classmethod
    def parse(cls, data: bytes | memoryview) -> "Message":
        """Check and parse a message.

        Raises FormatError for other data, and DamagedError if the message is damaged.
        """
        view = memoryview(data)
        message, size = _head_of(view)
        if view.nbytes != _HEADER.size + size:
            raise DamagedError(f"the message is damaged: expected {_HEADER.size + size} bytes, got {view.nbytes}")
        state = xxhash.xxh3_128(view[: _HEADER.size - _HASH])
        state.update(view[_HEADER.size :])
        if state.digest() != bytes(view[_HEADER.size - _HASH : _HEADER.size]):
            raise DamagedError("the message is damaged: its checksum differs")
        content = view[_HEADER.size :]
        length = int.from_bytes(content[:8], "little")
        if length > content.nbytes - 8:
            raise DamagedError("the message is damaged: its description is longer than it")
        try:
            described = parse(bytes(content[8 : 8 + length]))
            check(described, _SCHEMAS[message.kind])
        except FormatError:
            raise DamagedError("the message is damaged: its description cannot be read") from None
        return replace(message, described=described, body=content[8 + length :])

    @staticmethod
    def sequence_of(data: bytes | memoryview) -> tuple[int, bool]:
        """Return the number of a message, and whether it is a snapshot, without checking the rest of it."""
        message, _ = _head_of(memoryview(data))
        return message.sequence, message.kind == SNAPSHOT


def _head_of(view: memoryview) -> tuple[Message, int]:
    """Return a message without its content, and the bytes of that."""
    if view.nbytes < _HEADER.size or bytes(view[:4]) != _MAGIC:
        raise FormatError("not a message of a stream of differences")
    _, version, kind, _, sequence, model, before, after, size, _ = _HEADER.unpack_from(view)
    if version != _VERSION or kind not in _SCHEMAS:
        raise FormatError(f"message format {version}, kind {kind} is unknown: use a newer squeeze")
    return Message(kind, sequence, model, before, after, {}, b""), size
