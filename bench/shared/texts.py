"""Files that benchmarks measure: the corpus, or single files of it by name."""

import os
import sys
from pathlib import Path

__all__ = ["corpus", "find_file"]


def find_file(path: Path) -> Path:
    """Return a file, or the file of the corpus with its name."""
    folder = os.environ.get("SQUEEZE_CORPUS")
    if path.exists() or not folder:
        return path
    paths = sorted(Path(folder).rglob(path.name))
    if not paths:
        sys.exit(f"Error: there is no file {path} here, or in the corpus")
    return paths[0]


def corpus() -> list[Path]:
    """Return all files of the corpus, the smallest first."""
    folders = [Path(os.environ["SQUEEZE_CORPUS"], name) for name in ("text", "binary")]
    paths = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return sorted(paths, key=lambda path: (path.stat().st_size, path.name))
