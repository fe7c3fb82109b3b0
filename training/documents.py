"""Turn the files of a source into documents: decode them, convert books, and drop what is not suitable."""

import hashlib
import random
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from training import text
from training.manifest import Manifest, Source

LONGEST = 1_000_000  # bytes of a document; longer ones are cut at a line
SHORTEST = 64
GIANT_LINE = 5_000  # bytes of the mean line above which code and docs count as minified
_COPYLEFT = re.compile(
    r"SPDX-License-Identifier: *[AL]?GPL[\w.+-]*\s*$|GNU (?:Lesser |Affero |Library )?General Public License",
    re.MULTILINE,
)
_SHARE_ALIKE = re.compile(
    r"(?:licen[sc]ed|published|available)\s+under.{0,90}"
    r"(?:Share-?Alike|Non-?Commercial|Open Publication Licen[sc]e|CC.BY.(?:SA|NC))"
    r"|^\s*Licen[sc]e: *(?:CC.BY.(?:SA|NC)|OPUBL)",
    re.DOTALL | re.MULTILINE,
)
_PERMISSIVE = re.compile(r"\b(?:MIT|BSD|Apache|ISC|Zlib|CC0|PD)\b")
_GENERATED = re.compile(r"@generated|DO NOT EDIT|[Aa]utomatically generated|[Aa]uto-?generated")
_FOREIGN = re.compile(r"[\u0370-\u1dff\u2c00-\ufaff\U00010000-\U0001f000]")  # letters of other scripts than Latin


@dataclass(frozen=True)
class Document:
    """A document: its kind, its source, its path in the source, and its bytes."""

    kind: str
    source: str
    path: str
    content: bytes


def documents(source: Source, manifest: Manifest, folder: Path, dropped: Counter[str]) -> Iterator[Document]:
    """Yield the documents of a source in a fixed order, at most its cap of each kind.

    Args:
        source: the source
        manifest: manifest of all sources
        folder: folder of the sources' archives
        dropped: counter of dropped files by reason, which is updated
    """
    taken: Counter[str] = Counter()
    with zipfile.ZipFile(folder / source.file_name) as archive:
        paths = sorted(archive.namelist(), key=lambda path: _random(source, path).random())
        for path in paths:
            kind = manifest.kind_of(source, path)
            if kind is None or taken[kind] >= cap(source, manifest, kind):
                continue
            for document in converted(source, kind, path, archive.read(path)):
                reason = fault(document)
                if reason:
                    dropped[reason] += 1
                    continue
                if taken[document.kind] < cap(source, manifest, document.kind):
                    taken[document.kind] += len(document.content)
                    yield document


def cap(source: Source, manifest: Manifest, kind: str) -> int:
    """Return the most bytes of a kind from a source: its own cap for its main kind, else the kind's.

    Args:
        source: the source
        manifest: manifest of all sources
        kind: name of the kind
    """
    return (
        max(source.cap, manifest.kinds[kind].cap)
        if not source.kind or source.kind == kind
        else manifest.kinds[kind].cap
    )


def converted(source: Source, kind: str, path: str, content: bytes) -> Iterator[Document]:
    """Yield the documents of one file. Books are plain text, wrapped text, raw, or a wiki page.

    Args:
        source: the source
        kind: name of the kind
        path: path of the file in its source
        content: bytes of the file
    """
    random_ = _random(source, path)
    markup = kind in ("books", "languages") and path.endswith((".xhtml", ".xml", ".cnxml"))
    if not markup:
        yield Document(kind, source.name, path, cut(content))
        return
    if random_.random() < 0.12:
        yield Document("html", source.name, path, cut(content))
        return
    root = text.tree(content)
    if root is None:
        return
    if path.endswith(".cnxml") and random_.random() < 0.6:
        yield Document("wiki", source.name, path, cut(text.wiki(root, random_.randrange(1, 90_000)).encode()))
        return
    for chapter in text.chapters(root) if path.endswith(".xml") else (root,):
        body = text.plain(chapter)
        if random_.random() < 0.5:
            body = text.gutenberg(body, random_.randint(62, 78), indent=random_.random() < 0.2)
        yield Document(kind, source.name, path, cut(body.encode()))


def fault(document: Document) -> str | None:
    """Return why a document is dropped, or None if it is kept."""
    content = document.content
    if len(content) < SHORTEST:
        return "short"
    if b"\0" in content:
        return "binary"
    try:
        decoded = content.decode()
    except UnicodeDecodeError:
        return "not UTF-8"
    if document.kind in ("code", "docs") and len(content) > GIANT_LINE * (content.count(b"\n") + 1):
        return "giant lines"
    head = decoded[:3000]
    if _SHARE_ALIKE.search(head + decoded[-3000:]) or (_COPYLEFT.search(head) and not _PERMISSIVE.search(head)):
        return "licence"
    if document.kind == "code" and len(content) > 50_000 and _GENERATED.search(decoded[:1000]):
        return "generated"
    sample = decoded[:20_000]
    if len(_FOREIGN.findall(sample)) > 0.1 * len(sample):
        return "script"
    return None


def cut(content: bytes) -> bytes:
    """Cut a document at the last line end before the largest length."""
    if len(content) <= LONGEST:
        return content
    end = content.rfind(b"\n", 0, LONGEST) + 1
    return content[: end or LONGEST].decode(errors="ignore").encode()


def _random(source: Source, path: str) -> random.Random:
    return random.Random(hashlib.sha256(f"{source.name}\0{path}".encode()).digest())
