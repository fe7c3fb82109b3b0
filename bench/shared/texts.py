"""The texts that language models are measured on."""

import os
import sys
from pathlib import Path


def read(path: Path | None, name: str, count: int) -> bytes:
    """The first bytes of a file; where none is given, of the corpus's text `name`."""
    if path is None:
        corpus = os.environ.get("SQUEEZE_CORPUS")
        if not corpus:
            sys.exit(f"Error: name a file, or set SQUEEZE_CORPUS to a folder that holds text/{name}")
        path = Path(corpus, "text", name)
    return path.read_bytes()[:count]
