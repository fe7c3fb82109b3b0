"""Turn the sources into a corpus: documents without duplicates, in the shares of the manifest, shuffled and split.

The same sources, manifest and arguments give the same bytes.
"""

import argparse
import hashlib
import json
import math
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from training import corpus, exclude
from training.documents import Document, documents
from training.generate import logs, mail, records
from training.manifest import Kind, Manifest, ManifestError, load

SEED = 20_230
HELD_OUT = 0.01  # of the bytes of each kind; half of it from sources that training never sees
GENERATED_HELD_OUT = frozenset({"logs:firewall"})

Found = Mapping[str, list[Document]]


def prepare(manifest: Manifest, sources: Path, into: Path, target: int, benchmarks: Sequence[Path]) -> dict[str, Any]:
    """Write a corpus of at most `target` bytes. Return the content of `corpus.json`.

    Args:
        manifest: manifest of all sources
        sources: folder of the sources' archives
        into: folder of the corpus
        target: size in bytes
        benchmarks: files and folders to exclude
    """
    dropped: Counter[str] = Counter()
    found = gather(manifest, sources, dropped)
    removed = exclude.Report()
    if benchmarks:
        windows = exclude.Windows.of(benchmarks)
        found = {kind: list(exclude.clean(part, windows, removed)) for kind, part in found.items()}
    target = min(target, reachable(manifest, found))
    passages = [
        passage for document in found.get("books", []) + found.get("docs", []) for passage in _passages(document)
    ]
    train: list[Document] = []
    held_out: list[Document] = []
    for kind in manifest.kinds.values():
        made = generated(kind, passages)
        made = exclude.clean(made, windows, removed) if benchmarks else made
        chosen = choose(kind, manifest, found, made, target)
        train += chosen[0]
        held_out += chosen[1]
    names = {"kinds": list(manifest.kinds), "sources": sorted({document.source for document in train + held_out})}
    into.mkdir(parents=True, exist_ok=True)
    described: dict[str, Any] = {"seed": SEED, "target": target, **names, "dropped": dict(sorted(dropped.items()))}
    described["excluded"] = removed.described()
    for name, documents_ in zip(corpus.SPLITS, (train, held_out), strict=True):
        described[name] = corpus.write(into, name, sorted(documents_, key=_place), names)
    (into / "corpus.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    return described


def gather(manifest: Manifest, sources: Path, dropped: Counter[str]) -> dict[str, list[Document]]:
    """Read every source, drop duplicates among all documents, and return the others by kind.

    Args:
        manifest: manifest of all sources
        sources: folder of the sources' archives
        dropped: counter of dropped files by reason, which is updated
    """
    seen = Seen()
    found: dict[str, list[Document]] = defaultdict(list)
    for source in sorted(manifest.sources.values(), key=lambda source: source.name):
        if not (sources / source.file_name).exists():
            raise ManifestError(f"{source.name} is not in {sources}; run python -m training.fetch --into {sources}")
        for document in documents(source, manifest, sources, dropped):
            if seen.add(document.content):
                found[document.kind].append(document)
            else:
                dropped["duplicate"] += 1
    return found


class Seen:
    """Hashes of all chunks of the documents that were kept, to find exact and near duplicates."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def add(self, content: bytes, *, most: float = 0.5) -> bool:
        """Add a document. Return False, and add nothing, if more than `most` of its bytes were seen before."""
        chunks = list(_chunks(content))
        total = sum(size for _, size in chunks)
        seen = sum(size for hash_, size in chunks if hash_ in self._hashes)
        if total == 0 or seen > most * total:
            return False
        self._hashes.update(hash_ for hash_, _ in chunks)
        return True


def _chunks(content: bytes) -> list[tuple[int, int]]:
    """Split into runs of lines, and return their hashes and sizes.

    The hash of a line decides whether a run ends, so that an insertion moves no later end.
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
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little"), len(joined)


def reachable(manifest: Manifest, found: Found) -> int:
    """Return the largest corpus in bytes for which the documents fill every kind that is not generated."""
    fixed = [kind for kind in manifest.kinds.values() if not kind.generated and kind.share]
    sizes = {kind.name: _size(_seen_in_training(found.get(kind.name, []), manifest)) for kind in fixed}
    return int(min((sizes[kind.name] / kind.share for kind in fixed), default=math.inf))


def choose(
    kind: Kind, manifest: Manifest, found: Found, made: Iterator[Document], target: int
) -> tuple[list[Document], list[Document]]:
    """Choose the documents of one kind for training and for the held-out set.

    All sources contribute equally, then generated documents fill the share. Half of the held-out bytes are from sources
    and formats that training never sees.

    Args:
        kind: the kind
        manifest: manifest of all sources
        found: documents by kind
        made: generated documents of this kind
        target: size of the corpus in bytes
    """
    wanted, room = int(target * kind.share), int(target * kind.share * HELD_OUT / 2)
    documents_ = found.get(kind.name, [])
    seen = _seen_in_training(documents_, manifest)
    unseen = [document for document in documents_ if manifest.sources[document.source].held_out]
    chosen = list(level(seen, int(wanted * (1 - kind.generated)) if kind.generated else wanted))
    missing = wanted - _size(chosen) if kind.generated else 0
    while missing > 0 and (document := next(made, None)):
        if document.source in GENERATED_HELD_OUT:
            unseen.append(document)
        else:
            chosen.append(document)
            missing -= len(document.content)
    chosen.sort(key=_place)
    held_out, _ = _parted(sorted(unseen, key=_place), room)
    more, train = _parted(chosen, room)
    return train, held_out + more


def level(documents_: Sequence[Document], wanted: int) -> Iterator[Document]:
    """Yield documents up to a total, with equal bytes per source; smaller sources contribute all they have."""
    by_source: dict[str, list[Document]] = defaultdict(list)
    for document in documents_:
        by_source[document.source].append(document)
    left = wanted
    order = sorted(by_source, key=lambda name: _size(by_source[name]))
    for place, name in enumerate(order):
        budget = left // (len(order) - place)
        for document in by_source[name]:
            if budget <= 0:
                break
            yield document
            budget -= len(document.content)
            left -= len(document.content)


def generated(kind: Kind, passages: Sequence[str]) -> Iterator[Document]:
    """Yield generated documents of a kind without end, or nothing if no program generates the kind."""
    makers: dict[str, Callable[[], Iterator[tuple[str, bytes]]]] = {
        "logs": lambda: logs.documents(SEED),
        "csv": lambda: records.tables(SEED),
        "json": lambda: records.records(SEED + 1),
        "mail": lambda: mail.documents(SEED, passages),
    }
    if kind.name in makers:
        for number, (form, content) in enumerate(makers[kind.name]()):
            yield Document(kind.name, f"{kind.name}:{form}", str(number), content)


def _seen_in_training(documents_: Sequence[Document], manifest: Manifest) -> list[Document]:
    return [document for document in documents_ if not manifest.sources[document.source].held_out]


def _parted(documents_: Sequence[Document], size: int) -> tuple[list[Document], list[Document]]:
    """Split after the first documents that together have `size` bytes."""
    count = 0
    while count < len(documents_) and size > 0:
        size -= len(documents_[count].content)
        count += 1
    return list(documents_[:count]), list(documents_[count:])


def _passages(document: Document) -> Iterator[str]:
    """Yield some passages of prose of a document, of 200 to 2,000 characters."""
    draw = random.Random(len(document.content))
    paragraphs = [part for part in document.content.decode().split("\n\n") if len(part) > 150 and part[0].isalpha()]
    for start in range(0, len(paragraphs), 40):
        passage = "\n\n".join(paragraphs[start : start + draw.randint(1, 4)])
        if len(passage) < 4_000:
            yield passage


def _size(documents_: Sequence[Document]) -> int:
    return sum(len(document.content) for document in documents_)


def _place(document: Document) -> bytes:
    return hashlib.sha256(
        f"{SEED}\0{document.source}\0{document.path}\0{document.kind}".encode() + document.content[:64]
    ).digest()


def summary(described: Mapping[str, Any]) -> str:
    """Return the sizes by kind, and the dropped and excluded documents, as lines."""
    kinds = described["kinds"]
    train, held_out = (described[name]["by_kind"] for name in corpus.SPLITS)
    lines = (
        f"{kind:10} {train.get(kind, 0) / 1e6:9.2f} MB {held_out.get(kind, 0) / 1e6:7.2f} MB held out" for kind in kinds
    )
    tail = [f"{described['train']['bytes'] / 1e6:.2f} MB, SHA-256 {described['train']['sha256']}"]
    dropped = [f"{count:7} files dropped: {reason}" for reason, count in described["dropped"].items()]
    excluded = [
        f"{part['bytes']:7} bytes excluded in {part['documents']} documents and {part['passages']} passages "
        f"of {source}, such as {part['example']!r}"
        for source, part in described["excluded"].items()
    ]
    return "\n".join(chain(lines, tail, dropped, excluded))


def main() -> None:
    """Prepare the corpus and print its sizes."""
    parser = argparse.ArgumentParser(prog="python -m training.prepare", description=main.__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="folder that training.fetch filled")
    parser.add_argument("--into", type=Path, required=True, help="folder for the corpus")
    parser.add_argument("--megabytes", type=float, default=600, help="largest size of all kinds together, default: 600")
    parser.add_argument(
        "--keep-out", type=Path, action="append", default=[], help="benchmark file or folder to exclude (repeatable)"
    )
    arguments = parser.parse_args()
    size = int(arguments.megabytes * 1e6)
    print(summary(prepare(load(), arguments.sources, arguments.into, size, arguments.keep_out)))


if __name__ == "__main__":
    main()
