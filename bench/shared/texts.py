"""The files that benchmarks measure."""

import os
import sys
from pathlib import Path


def read(path: Path | None, name: str, count: int) -> bytes:
    """The first bytes of a file; where none is given, of the corpus's text `name`."""
    return text(path, name).read_bytes()[:count]


def text(path: Path | None, name: str) -> Path:
    """A file as it was named; where none is, the corpus's text `name`."""
    if path is not None:
        return found(path)
    corpus = os.environ.get("SQUEEZE_CORPUS")
    if not corpus:
        sys.exit(f"Error: name a file, or set SQUEEZE_CORPUS to a folder that holds text/{name}")
    return Path(corpus, "text", name)


def found(path: Path) -> Path:
    """A file, or the one of the corpus that has its name."""
    corpus = os.environ.get("SQUEEZE_CORPUS")
    if path.exists() or not corpus:
        return path
    paths = sorted(Path(corpus).rglob(path.name))
    if not paths:
        sys.exit(f"Error: there is no file {path} here, or in the corpus")
    return paths[0]
