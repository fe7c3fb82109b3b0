"""The digests of signed archives: SHA-256 or SHA-1 of each member, and of what the manifest says of it.

Archives of Java and of Android have a manifest with the digest of each member, and signature files with those of the
manifest's sections. A line that says what follows from the members loses its value. docs/format.md specifies it
(21.23). The format is that of the JAR File Specification.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from squeeze.codecs.parse import zip_header
from squeeze.errors import DamagedError

__all__ = ["MANIFEST", "SIGNATURE", "Digests", "kind_of", "name_before"]

MANIFEST, SIGNATURE = 1, 2  # kinds of members with digests
_MOST = 1 << 24  # bytes of a manifest
_NAMED = b"Name: "
# Digests that fit into a line of 72 bytes.
_HASHES = {
    b"SHA-256-Digest: ": hashlib.sha256,
    b"SHA1-Digest: ": hashlib.sha1,
    b"SHA-1-Digest: ": hashlib.sha1,
}


def kind_of(name: bytes) -> int:
    """Return whether a member of this name has digests of members, or of a manifest, else 0."""
    if name == b"META-INF/MANIFEST.MF":
        return MANIFEST
    return SIGNATURE if name.startswith(b"META-INF/") and name.endswith(b".SF") else 0


def name_before(gap: np.ndarray) -> bytes:
    """Return the name of the zip member whose header ends uint8 `gap`, empty without one."""
    header = zip_header.ending_at(gap[-zip_header.LONGEST :].tobytes(), min(gap.size, zip_header.LONGEST))
    return header.name if header else b""


class _Line(NamedTuple):
    """A line of a manifest.

    Attributes:
        text: The line without its end.
        end: A carriage return, or nothing.
        name: The name of its section, empty in the first one.
    """

    text: bytes
    end: bytes
    name: bytes


def _lines(content: bytes) -> Iterator[_Line]:
    """Yield the lines of a manifest, each up to a newline or the end. A name may go on in lines that a space begins."""
    parts, name = list[bytes](), b""
    for line in content.split(b"\n"):
        text = line.removesuffix(b"\r")
        if text.startswith(_NAMED):
            parts = [text[len(_NAMED) :]]
        elif parts and text.startswith(b" "):
            parts.append(text[1:])
        elif parts:
            name, parts = b"".join(parts), []
        yield _Line(text, line[len(text) :], name)
        name = name if text else b""


def _sections(manifest: bytes) -> dict[bytes, bytes]:
    """Return the sections of a manifest by their names, each with its name and the empty line after it."""
    found, begin, at = dict[bytes, bytes](), -1, 0
    for line in _lines(manifest):
        if line.text.startswith(_NAMED):
            begin = at
        at += len(line.text) + len(line.end) + 1
        if not line.text and begin >= 0:
            found[line.name], begin = manifest[begin:at], -1
    return found


class Digests:
    """The digests that follow from the members of an archive.

    Args:
        members: names and contents of zip members, apart from those whose digests are left out.
    """

    def __init__(self, members: Iterable[tuple[bytes, np.ndarray]]):
        self._contents, self._sections = dict[bytes, memoryview](), dict[bytes, bytes]()
        self._known = dict[tuple[int, bytes, bytes], bytes]()
        for name, content in members:
            if not (kind := kind_of(name)):
                self._contents[name] = content.data
            elif kind == MANIFEST:
                self.read(content)

    def read(self, manifest: np.ndarray) -> None:
        """Take the sections of a manifest, whose digests are those of signature files. A longer one has none."""
        self._sections = _sections(manifest.tobytes()) if manifest.size <= _MOST else {}

    def emptied(self, kind: int, content: np.ndarray) -> np.ndarray | None:
        """Return a manifest or a signature file, uint8, without what follows, or None if it would not come back."""
        if content.size > _MOST:
            return None
        lines = list[bytes]()
        for line in _lines(content.tobytes()):
            mark, _, value = line.text.partition(b" ")
            mark += b" "
            is_known = mark in _HASHES and value and value == self._digest(kind, mark, line.name)
            lines.append((mark if is_known else line.text) + line.end)
        remains = np.frombuffer(b"\n".join(lines), np.uint8)
        is_shorter = remains.size < content.size
        return remains if is_shorter and np.array_equal(self._filled(kind, remains), content) else None

    def filled(self, kind: int, remains: np.ndarray) -> np.ndarray:
        """Return the file of which `emptied` returned what remains, and read it if it is a manifest.

        Raises:
            DamagedError: if it is longer than any.
        """
        content = self._filled(kind, remains)
        if kind == MANIFEST:
            self.read(content)
        return content

    def _filled(self, kind: int, remains: np.ndarray) -> np.ndarray:
        if remains.size > _MOST:
            raise _impossible()
        lines, left = list[bytes](), _MOST + 1
        for line in _lines(remains.tobytes()):
            value = self._digest(kind, line.text, line.name) if line.text in _HASHES else b""
            lines.append(line.text + value + line.end)
            left -= len(lines[-1]) + 1
            if left < 0:
                raise _impossible()
        return np.frombuffer(b"\n".join(lines), np.uint8)

    def _digest(self, kind: int, mark: bytes, name: bytes) -> bytes:
        """Return the digest of the member or the section of a name in base64, empty for other names."""
        key = kind, mark, name
        if not name:
            return b""
        if key not in self._known:
            content = self._contents.get(name) if kind == MANIFEST else self._sections.get(name)
            value = b"" if content is None else base64.b64encode(_HASHES[mark](content).digest())
            self._known[key] = value
        return self._known[key]


def _impossible() -> DamagedError:
    return DamagedError("the digests of a signed archive are impossible: the file is damaged")
