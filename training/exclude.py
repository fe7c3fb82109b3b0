"""Find and remove passages that the corpus shares with benchmark files.

A passage counts if 50 consecutive bytes are equal and have at least 12 distinct values. So repeats within licences and
rulers do not count, while prose and code do. Hashes of all windows of the benchmarks are a sorted table behind a
bitmap. Equal 64-bit hashes count as equal bytes.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from training import corpus
from training.documents import Document

WINDOW = 50  # bytes
DISTINCT = 12  # values of a byte in a window that counts
AROUND = 512  # bytes that go on each side of a match where no blank line comes first
MOST = 0.3  # of a document; it goes whole when more of it has matches
_BITS = 30  # of the bitmap's index
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Windows:
    """Hashes of all windows of the benchmark files."""

    hashes: NDArray[np.uint64]  # sorted
    bitmap: NDArray[np.uint8]

    @classmethod
    def of(cls, paths: Iterable[Path]) -> "Windows":
        """Read files, and all files in folders."""
        parts = [_hashes(np.fromfile(path, np.uint8)) for path in files(paths)]
        hashes = np.unique(np.concatenate(parts) if parts else np.zeros(0, np.uint64))
        return cls(hashes, _fill(hashes, np.zeros(1 << (_BITS - 3), np.uint8)))

    def matches(self, content: bytes) -> NDArray[np.int64]:
        """Return the starts of a document's windows that the benchmarks have and that count."""
        data = np.frombuffer(content, np.uint8)
        return _matches(data, self.hashes, self.bitmap) if len(data) >= WINDOW else np.zeros(0, np.int64)


@dataclass
class Report:
    """Removed documents and bytes by source, with one example each."""

    whole: Counter[str] = field(default_factory=Counter)
    passages: Counter[str] = field(default_factory=Counter)
    removed: Counter[str] = field(default_factory=Counter)  # bytes
    examples: dict[str, str] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Return the report as plain values, sources with the most bytes first."""
        return {
            source: {
                "documents": self.whole[source],
                "passages": self.passages[source],
                "bytes": size,
                "example": self.examples[source],
            }
            for source, size in sorted(self.removed.items(), key=lambda item: (-item[1], item[0]))
        }


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the named files, and the files of named folders, in sorted order."""
    for path in paths:
        yield from sorted(inner for inner in path.rglob("*") if inner.is_file()) if path.is_dir() else (path,)


def clean(documents: Iterable[Document], windows: Windows, report: Report) -> Iterator[Document]:
    """Yield documents without the passages that the benchmarks have.

    Args:
        documents: documents to clean
        windows: hashes of the benchmark files
        report: report, which is updated
    """
    for document in documents:
        if kept := without(document, windows, report):
            yield kept


def without(document: Document, windows: Windows, report: Report) -> Document | None:
    """Return a document without the passages that the benchmarks have, or None if too much of it would be removed.

    Args:
        document: document to clean
        windows: hashes of the benchmark files
        report: report, which is updated
    """
    starts = windows.matches(document.content)
    if not len(starts):
        return document
    spans = passages(document.content, starts)
    gone = sum(end - start for start, end in spans)
    source, content = document.source, document.content
    report.examples.setdefault(
        source, f"{document.path}: {content[starts[0] : starts[0] + WINDOW].decode(errors='replace')}"
    )
    if gone > MOST * len(content):
        report.whole[source] += 1
        report.removed[source] += len(content)
        return None
    report.passages[source] += len(spans)
    report.removed[source] += gone
    ends = [0, *(end for _, end in spans)]
    starts_ = [*(start for start, _ in spans), len(content)]
    kept = b"".join(content[end:start] for end, start in zip(ends, starts_, strict=True))
    return Document(document.kind, source, document.path, kept)


def passages(content: bytes, starts: Sequence[int] | NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the spans to remove for windows at `starts`: up to the blank lines around, or some bytes around."""
    spans: list[tuple[int, int]] = []
    for start in map(int, starts):
        if spans and start + WINDOW <= spans[-1][1]:
            continue
        blank = content.rfind(b"\n\n", max(0, start - AROUND), start)
        first = blank + 2 if blank >= 0 else _start(content, max(0, start - AROUND))
        end = start + WINDOW
        blank = content.find(b"\n\n", end, end + AROUND)
        last = blank + 2 if blank >= 0 else _start(content, min(len(content), end + AROUND))
        if spans and first <= spans[-1][1]:
            first = spans.pop()[0]
        spans.append((first, last))
    return spans


def _start(content: bytes, place: int) -> int:
    """Return the start of the UTF-8 character at a place."""
    while 0 < place < len(content) and content[place] & 0xC0 == 0x80:
        place -= 1
    return place


@njit(cache=True)  # type: ignore[untyped-decorator]
def _hashes(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Hash every window by a polynomial modulo 2^64, whose bits are mixed by a multiplication and a shift."""
    count = max(0, len(data) - WINDOW + 1)
    hashes = np.empty(count, np.uint64)
    top = np.uint64(1)
    for _ in range(WINDOW):
        top *= _BASE
    hash_ = np.uint64(0)
    for place in range(len(data)):
        hash_ = hash_ * _BASE + np.uint64(data[place]) + np.uint64(1)
        if place >= WINDOW:
            hash_ -= top * (np.uint64(data[place - WINDOW]) + np.uint64(1))
        if place >= WINDOW - 1:
            hashes[place - WINDOW + 1] = (hash_ ^ (hash_ >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fill(hashes: NDArray[np.uint64], bitmap: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Set the bit of every hash."""
    for hash_ in hashes:
        place = hash_ >> np.uint64(64 - _BITS)
        bitmap[place >> np.uint64(3)] |= np.uint8(1 << (place & np.uint64(7)))
    return bitmap


@njit(cache=True)  # type: ignore[untyped-decorator]
def _matches(data: NDArray[np.uint8], hashes: NDArray[np.uint64], bitmap: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the starts of windows whose hash is in the table and which have enough distinct bytes.

    Args:
        data: bytes of a document
        hashes: sorted hashes of the benchmarks
        bitmap: bits of these hashes
    """
    found = []
    own = _hashes(data)
    for start in range(len(own)):
        place = own[start] >> np.uint64(64 - _BITS)
        if not (bitmap[place >> np.uint64(3)] >> np.uint8(place & np.uint64(7))) & 1:
            continue
        at = np.searchsorted(hashes, own[start])
        if at < len(hashes) and hashes[at] == own[start] and len(np.unique(data[start : start + WINDOW])) >= DISTINCT:
            found.append(start)
    return np.array(found, np.int64)


def main() -> None:
    """Report what a corpus shares with benchmark files. Exit with 1 if it shares anything."""
    parser = argparse.ArgumentParser(prog="python -m training.exclude", description=main.__doc__)
    parser.add_argument("--corpus", type=Path, required=True, help="folder that training.prepare wrote")
    parser.add_argument("files", type=Path, nargs="+", help="files and folders that benchmarks measure")
    arguments = parser.parse_args()
    windows, shared = Windows.of(arguments.files), 0
    names = corpus.names(arguments.corpus)["sources"]
    for name in corpus.SPLITS:
        split = corpus.read(arguments.corpus, name)
        for number, content in enumerate(corpus.walk(split)):
            starts = windows.matches(content)
            if len(starts):
                shared += 1
                example = content[starts[0] : starts[0] + WINDOW]
                print(f"{name} {number} {names[split.source[number]]}: {len(starts)} windows, such as {example!r}")
    print(f"{len(windows.hashes):,} windows of {WINDOW} bytes; {shared} documents share one")
    sys.exit(shared > 0)


if __name__ == "__main__":
    main()
