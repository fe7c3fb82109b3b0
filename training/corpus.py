"""The corpus on disk: the bytes of all documents, and an index of their places and kinds.

A folder has `train.bin`, `train.npz`, `held_out.bin`, `held_out.npz` and `corpus.json`. The arrays of an index are
`start` and `size` (int64, bytes), `kind` (uint8) and `source` (uint16), which index the lists of names in
`corpus.json`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.documents import Document

SPLITS = ("train", "held_out")


@dataclass(frozen=True)
class Split:
    """A part of a corpus, whose bytes are memory-mapped."""

    content: NDArray[np.uint8]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    kind: NDArray[np.uint8]
    source: NDArray[np.uint16]

    def __len__(self) -> int:
        return len(self.start)

    def part(self, begin: int, end: int | None) -> "Split":
        """Return the documents `begin` to `end`, as a slice."""
        return replace(self, **{name: getattr(self, name)[begin:end] for name in ("start", "size", "kind", "source")})

    def document(self, number: int) -> bytes:
        """Return the bytes of one document."""
        start = int(self.start[number])
        return self.content[start : start + int(self.size[number])].tobytes()


def write(folder: Path, split: str, documents: Sequence[Document], names: dict[str, list[str]]) -> dict[str, Any]:
    """Write one split. Return its sizes by kind and source, and its SHA-256.

    Args:
        folder: folder of the corpus
        split: name of the split
        documents: its documents, in order
        names: names of kinds and sources
    """
    digest, start = hashlib.sha256(), 0
    index = np.zeros((len(documents), 4), np.int64)
    kinds, sources = ({name: number for number, name in enumerate(names[of])} for of in ("kinds", "sources"))
    with (folder / f"{split}.bin").open("wb") as file:
        for number, document in enumerate(documents):
            index[number] = start, len(document.content), kinds[document.kind], sources[document.source]
            file.write(document.content)
            digest.update(document.content)
            start += len(document.content)
    kind, source = index[:, 2].astype("u1"), index[:, 3].astype("u2")
    np.savez(folder / f"{split}.npz", start=index[:, 0], size=index[:, 1], kind=kind, source=source)
    by_kind: Counter[str] = Counter()
    by_source: Counter[str] = Counter()
    for document in documents:
        by_kind[document.kind] += len(document.content)
        by_source[document.source] += len(document.content)
    sizes = {"bytes": start, "documents": len(documents), "sha256": digest.hexdigest()}
    return {**sizes, "by_kind": dict(sorted(by_kind.items())), "by_source": dict(sorted(by_source.items()))}


def read(folder: Path, split: str) -> Split:
    """Map one split into memory."""
    with np.load(folder / f"{split}.npz") as index:
        columns = {name: index[name] for name in ("start", "size", "kind", "source")}
    path = folder / f"{split}.bin"
    content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
    return Split(content, **columns)


def names(folder: Path) -> dict[str, list[str]]:
    """Return the names of kinds and sources, in the order that an index counts them."""
    described = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    return {"kinds": described["kinds"], "sources": described["sources"]}


def walk(split: Split) -> Iterator[bytes]:
    """Yield the bytes of every document in order."""
    for number in range(len(split)):
        yield split.document(number)
