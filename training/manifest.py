"""The manifest of sources: files to take, licences, and the share of each kind.

`python -m training.manifest` prints the tables of kinds and sources for the README.
"""

import fnmatch
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = Path(__file__).with_name("sources.toml")


class ManifestError(Exception):
    """A manifest or a source that breaks a rule of the corpus."""


@dataclass(frozen=True)
class Kind:
    """A kind of content: its share of the corpus, its file names, and a cap per source in bytes."""

    name: str
    share: float
    cap: int
    endings: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    generated: float = 0.0  # the part of the kind that is generated when enough is found; the rest if not


@dataclass(frozen=True)
class Source:
    """A git repository at one commit, and the files of it that are taken.

    Globs match whole paths; `*` crosses slashes. With `kind` every file is of that kind, else its name decides.
    """

    name: str
    address: str
    licence: str
    commit: str
    sha256: str
    kind: str = ""
    take: tuple[str, ...] = ("*",)
    leave: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()  # globs of texts in other languages than English
    cap: int = 0  # bytes of each kind; 0: the kind's own
    held_out: bool = False

    @property
    def file_name(self) -> str:
        """The name of the source's archive in a folder of sources."""
        return self.name.replace("/", "+") + ".zip"


@dataclass(frozen=True)
class Manifest:
    """All sources and kinds, the allowed licences, and excluded repositories."""

    kinds: Mapping[str, Kind]
    sources: Mapping[str, Source]
    licences: frozenset[str]
    leave: tuple[str, ...]
    kept_out: tuple[str, ...] = field(default=())

    def kind_of(self, source: Source, path: str) -> str | None:
        """Return the kind of a file, or None if it is not taken."""
        if not _matches(path, source.take) or _matches(path, source.leave) or _matches(path, self.leave):
            return None
        if re.search("|".join(self.kept_out) or "$^", path.lower()):
            return None
        if _matches(path, source.languages):
            return "languages"
        if source.kind:
            return source.kind
        name = PurePosixPath(path).name
        ending = name.rpartition(".")[2].lower() if "." in name else ""
        for kind in self.kinds.values():
            if name in kind.names or ending in kind.endings:
                return kind.name
        return None


def load(path: Path = MANIFEST) -> Manifest:
    """Read a manifest and check its rules. Raises ManifestError."""
    return parse(tomllib.loads(path.read_text(encoding="utf-8")))


def parse(table: Mapping[str, Any]) -> Manifest:
    """Build a manifest from the tables of its TOML and check its rules. Raises ManifestError."""
    kinds = {name: _kind(name, entry) for name, entry in table["kinds"].items()}
    sources = {name: _source(name, entry, table["host"]) for name, entry in table["sources"].items()}
    manifest = Manifest(kinds, sources, frozenset(table["licences"]), tuple(table["leave"]), tuple(table["kept_out"]))
    check(manifest)
    return manifest


def check(manifest: Manifest) -> None:
    """Raise ManifestError if the manifest breaks a rule on shares, licences, pinned commits or excluded sources."""
    total = sum(kind.share for kind in manifest.kinds.values())
    if abs(total - 1) > 1e-9:
        raise ManifestError(f"The shares add up to {total}, not 1")
    for source in manifest.sources.values():
        if source.licence not in manifest.licences:
            raise ManifestError(f"{source.name}: the licence {source.licence!r} is not allowed")
        if not re.fullmatch("[0-9a-f]{40}", source.commit) or not re.fullmatch("[0-9a-f]{64}", source.sha256):
            raise ManifestError(f"{source.name}: commit and sha256 are needed in full")
        if source.kind and source.kind not in manifest.kinds:
            raise ManifestError(f"{source.name}: no kind {source.kind!r}")
        for pattern in manifest.kept_out:
            if re.search(pattern, source.name.lower()):
                raise ManifestError(f"{source.name}: {pattern!r} is kept out")


def tables(manifest: Manifest) -> Iterable[str]:
    """Yield the lines of the Markdown tables of kinds and sources."""
    yield "| kind | share | cap a source, MB |"
    yield "|---|--:|--:|"
    for kind in manifest.kinds.values():
        yield f"| {kind.name} | {kind.share:.0%} | {kind.cap / 1e6:g} |"
    yield ""
    yield "| source | licence | commit | |"
    yield "|---|---|---|---|"
    for source in sorted(manifest.sources.values(), key=lambda source: source.name.lower()):
        notes = ", ".join(filter(None, [source.kind, "held out" if source.held_out else ""]))
        yield f"| [{source.name}]({source.address}) | {source.licence} | {source.commit[:12]} | {notes} |"


def _matches(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, glob) for glob in globs)


def _kind(name: str, entry: Mapping[str, Any]) -> Kind:
    endings, names = frozenset(entry.get("endings", ())), frozenset(entry.get("names", ()))
    return Kind(name, entry["share"], int(entry["megabytes"] * 1e6), endings, names, entry.get("generated", 0.0))


def _source(name: str, entry: Mapping[str, Any], host: str) -> Source:
    known = {"licence", "commit", "sha256", "kind", "take", "leave", "languages", "megabytes", "held_out"}
    if unknown := set(entry) - known:
        raise ManifestError(f"{name}: unknown entries {sorted(unknown)}")
    return Source(
        name=name,
        address=host + name,
        licence=entry["licence"],
        commit=entry["commit"],
        sha256=entry["sha256"],
        kind=entry.get("kind", ""),
        take=tuple(entry.get("take", ("*",))),
        leave=tuple(entry.get("leave", ())),
        languages=tuple(entry.get("languages", ())),
        cap=int(entry.get("megabytes", 0) * 1e6),
        held_out=entry.get("held_out", False),
    )


if __name__ == "__main__":
    print("\n".join(tables(load())))
