"""The library of machine code that a wheel for a platform has: one for each level of processors.

`python -m prebuilt` makes it of what numba compiles (prebuilt/README.md). Each library has a table. Its first line is
the version of this package and features of the processor. The others are entry points: kernel, hash of the signature,
name, kind of the result. If no library fits processor, package and Python, numba compiles at first use.

$SQUEEZE_KERNELS is the level to load instead of the best one, or `compile` to let numba compile all code.
"""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

import squeeze.system.notices as notices
from squeeze.errors import FormatError
from squeeze.system import processor
from squeeze.version import __version__

__all__ = ["FOLDER", "LIBRARY", "Library"]

FOLDER = Path(__file__).parents[1] / "machine_code"


class Library:
    """A library of machine code, and its table."""

    def __init__(self, path: Path) -> None:
        """Load a library. Raises OSError if it cannot be loaded, and FormatError if it is of another version."""
        self.name = path.stem
        self._entries: dict[str, list[tuple[Any, list[str]]]] = {}
        self.code, self.features = self._read(path)

    def _read(self, path: Path) -> tuple[Any, frozenset[str]]:
        """Load a library, take the rows of its table, and return its code and features."""
        first, *rows = path.with_suffix(".txt").read_text("ascii").splitlines()
        version, *features = first.split()
        if version != __version__:
            raise FormatError(f"it is of version {version}")
        code = ctypes.PyDLL(str(path))
        found: dict[str, list[tuple[Any, list[str]]]] = {}
        for row in rows:
            kernel, *entry = row.split()
            found.setdefault(kernel, []).append((code, entry))
        self._entries |= found
        return code, frozenset(features)

    def replace(self, path: Path) -> None:
        """Use the kernels of another library instead, such as those that are faster on processors of one maker."""
        self._read(path)

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
            return _loaded(path)
    return None


def _loaded(path: Path) -> Library | None:
    """Return a library with the kernels for this maker of processors, or None if it cannot be used, which is told."""
    try:
        if sys.implementation.name != "cpython":
            raise FormatError(f"it is not for {sys.implementation.name}")
        found = Library(path)
        if processor.is_from_amd() and (others := path.with_stem(f"{path.stem}-amd")).is_file():
            found.replace(others)
    except (FormatError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        notices.mention(f"Warning: code is compiled at first use, since {path.name} cannot be used: {reason}")
        return None
    return found


LIBRARY = _found()
