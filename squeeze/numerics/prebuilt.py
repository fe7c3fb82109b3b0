"""The library of machine code that a wheel for a platform has: one for each level of processors.

`python -m prebuilt` makes it of what numba compiles (prebuilt/README.md). With each library comes a table: features of
the processor that it needs, and a line for each entry point: kernel, hash of the signature, name, kind of the result.

$SQUEEZE_KERNELS is the level to load instead of the best one, or `compile` to let numba compile all code.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from squeeze.system import processor

__all__ = ["FOLDER", "LIBRARY", "Library"]

FOLDER = Path(__file__).parents[1] / "machine_code"


class Library:
    """A library of machine code, and its table."""

    def __init__(self, path: Path) -> None:
        features, *rows = path.with_suffix(".txt").read_text("ascii").splitlines()
        self.name = path.stem
        self.features = frozenset(features.split())
        self.code: Any = ctypes.PyDLL(str(path))
        self._entries: dict[str, list[tuple[Any, list[str]]]] = {}
        self._add(rows, self.code)

    def _add(self, rows: list[str], code: Any) -> None:
        found: dict[str, list[tuple[Any, list[str]]]] = {}
        for row in rows:
            kernel, *entry = row.split()
            found.setdefault(kernel, []).append((code, entry))
        self._entries |= found

    def replace(self, path: Path) -> None:
        """Use the kernels of another library instead, such as those that are faster on processors of one maker."""
        _, *rows = path.with_suffix(".txt").read_text("ascii").splitlines()
        self._add(rows, ctypes.PyDLL(str(path)))

    def entries(self, kernel: str) -> list[tuple[Any, list[str]]]:
        """Return the entry points of a kernel: the code, and hash of the signature, name, and kind of the result."""
        return self._entries.get(kernel, [])

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))


def _found() -> Library | None:
    wanted = os.environ.get("SQUEEZE_KERNELS")
    if wanted == "compile" or not FOLDER.is_dir():
        return None
    start = f"{sys.platform}-{os.uname().machine}"
    for level in [wanted] if wanted else processor.levels():
        if (path := FOLDER / f"{start}-{level}.so").is_file():
            found = Library(path)
            if processor.is_from_amd() and (others := FOLDER / f"{start}-{level}-amd.so").is_file():
                found.replace(others)
            return found
    return None


LIBRARY = _found()
