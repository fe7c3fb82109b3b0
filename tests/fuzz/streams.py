"""The blocks, header and index of a .sqz file taken apart, and put together with checks that are right again."""

import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import xxhash

import squeeze
from squeeze.codecs.stream import container
from squeeze.codecs.stream.container import BlockHeader
from squeeze.codecs.stream.footer import Index, index_bytes
from squeeze.system.binary import read_exactly, varint
from tests.fuzz import mutations
from tests.fuzz.judging import Wrong
from tests.makers import inputs


@dataclass
class Part:
    """A block; `raw` are its bytes, where they are known."""

    kind: int
    raw_length: int
    payload: bytes
    checksum: int
    raw: bytes | None
    payload_length: int | None = None  # what the header says, where that is a lie

    def to_bytes(self) -> bytes:
        length = len(self.payload) if self.payload_length is None else self.payload_length
        return container.block_header_bytes(self.kind, self.raw_length, length, self.checksum) + self.payload

    def right(self, raw: bytes) -> None:
        """Let the checksum be that of other bytes."""
        self.raw, self.checksum = raw, xxhash.xxh3_64_intdigest(raw)


@dataclass
class Stream:
    fields: dict[str, Any]
    parts: list[Part]
    checksum: int
    header: bytes = b""  # instead of what the fields give
    entries: list[tuple[int, int]] | None = None  # of the index, where they are lies
    tail: bytes = b""

    def to_bytes(self) -> bytes:
        header = self.header or header_of(self.fields)
        blocks = [part.to_bytes() for part in self.parts]
        entries = [(part.raw_length, len(block)) for part, block in zip(self.parts, blocks, strict=True)]
        end = index_bytes(Index(len(header), entries if self.entries is None else self.entries, self.checksum))
        return header + b"".join(blocks) + end + self.tail


def header_of(fields: Any) -> bytes:
    text = mutations.to_json(fields, separators=(",", ":")).encode("utf-8", "surrogatepass")
    body = container.MAGIC + bytes([container.LONG]) + varint(len(text)) + text
    return body + container.check16(body)


def parsed(coded: bytes, raw: bytes) -> list[Stream]:
    """The streams of a sound file, whose raw bytes are these."""
    file, streams, at = io.BytesIO(coded), [], 0
    while (header := container.read_header(file)) is not None:
        begun, parts, entries = at, [], []
        while (block := container.read_block_header(file)) is not None:
            payload = read_exactly(file, block.payload_length)
            parts.append(Part(block.kind, block.raw_length, payload, block.checksum, raw[at : at + block.raw_length]))
            entries.append((block.raw_length, block.size + block.payload_length))
            at += block.raw_length
        checksum = xxhash.xxh3_64_intdigest(raw[begun:at])
        end = index_bytes(Index(header.size, entries, checksum))
        if b"\0" + file.read(len(end) - 1) != end:
            raise Wrong("the index is not that of the blocks")
        streams.append(Stream(header.fields, parts, checksum))
    return streams


@cache
def compile_levels() -> None:
    """Compile what levels 1 to 6 need, whatever a header comes to name."""
    for level in range(1, 7):
        for raw in (inputs.words(300), inputs.records(20)):
            squeeze.decompress(squeeze.compress(raw, level, threads=1), threads=1)


def prove(data: bytes, found: bytes, way: str, whole: bool = True) -> None:
    """Raises Wrong where the checksums of the file `data` are not those of the bytes `found`. whole: those of streams,
    too."""
    file, at, start = io.BytesIO(data), 0, 0
    while (header := container.read_header(file)) is not None:
        if header.short:
            block = container.read_short_block_header(file, header.kind)
            _check_block(block, found[at : at + block.raw_length], way, short=True)
            file.seek(block.payload_length, io.SEEK_CUR)
            start = at = at + block.raw_length
            continue
        entries = []
        while (block := container.read_block_header(file)) is not None:
            _check_block(block, found[at : at + block.raw_length], way)
            at += block.raw_length
            entries.append((block.raw_length, block.size + block.payload_length))
            file.seek(block.payload_length, io.SEEK_CUR)
        end = index_bytes(Index(header.size, entries, xxhash.xxh3_64_intdigest(found[start:at])))
        body = b"\0" + file.read(len(end) - 1)
        if whole and body != end:
            raise Wrong(f"{way}: a stream's checksum is another")
        start = at
    if at != len(found):
        raise Wrong(f"{way}: {len(found)} bytes for {at}")


def _check_block(block: BlockHeader, found: bytes, way: str, short: bool = False) -> None:
    right = container.matches_checksum(xxhash.xxh3_64_intdigest(found), block.checksum, short)
    if len(found) != block.raw_length or not right:
        raise Wrong(f"{way}: a block's checksum is another")
