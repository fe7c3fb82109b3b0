"""Files that benchmarks measure: the corpus, or single files of it by name."""

import os
import sys
from pathlib import Path

__all__ = ["corpus", "find_file", "read"]


def read(path: Path | None, name: str, count: int) -> bytes:
    """Return the first bytes of a file, by default those of the corpus text `name`."""
    if path is None and not os.environ.get("SQUEEZE_CORPUS"):
        sys.exit(f"Error: name a file, or set SQUEEZE_CORPUS to a folder that holds text/{name}")
    return find_file(path or Path(os.environ["SQUEEZE_CORPUS"], "text", name)).read_bytes()[:count]


def find_file(path: Path) -> Path:
    """Return a file, or the file of the corpus with its name."""
    folder = os.environ.get("SQUEEZE_CORPUS")
    if path.exists() or not folder:
        return path
    paths = sorted(Path(folder).rglob(path.name))
    if not paths:
        sys.exit(f"Error: there is no file {path} here, or in the corpus")
    return paths[0]


def corpus(below: int | None = None) -> list[Path]:
    """Return all files of the corpus with fewer bytes than `below`, the smallest first."""
    folders = [Path(os.environ["SQUEEZE_CORPUS"], name) for name in ("text", "binary")]
    paths = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    sized = sorted((path.stat().st_size, path.name, path) for path in paths)
    return [path for size, _, path in sized if below is None or size < below]
