"""Exact and near duplicates: documents whose chunks were mostly seen before."""

import zlib
from hashlib import blake2b


class Seen:
    """The hashes of all chunks of the documents that were kept."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, content: bytes, *, most: float = 0.5) -> bool:
        """Remember a document; False, and remember nothing, when more than `most` of its bytes were seen before."""
        chunks = list(_chunks(content))
        total = sum(size for _, size in chunks)
        seen = sum(size for hash_, size in chunks if hash_ in self._hashes)
        if total == 0 or seen > most * total:
            return False
        self._hashes.update(hash_ for hash_, _ in chunks)
        return True


def _chunks(content: bytes) -> list[tuple[int, int]]:
    """Cut into runs of lines and give their hashes and sizes.

    A line's own hash says where a run ends, so that an insertion moves no later end.
    """
    chunks: list[tuple[int, int]] = []
    run: list[bytes] = []
    for line in (b" ".join(line.split()) for line in content.splitlines()):
        if not line:
            continue
        run.append(line)
        if zlib.crc32(line) & 7 == 0:
            chunks.append(_hash(run))
            run = []
    if run:
        chunks.append(_hash(run))
    return chunks


def _hash(lines: list[bytes]) -> tuple[int, int]:
    joined = b"\n".join(lines)
    return int.from_bytes(blake2b(joined, digest_size=8).digest(), "little"), len(joined)
