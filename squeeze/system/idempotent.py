"""Writing that may be repeated: a file that exists from an earlier try must have the same content.

A run that crashes after it has written a file and before it has recorded that writes the file again.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from squeeze.system import files, temporary
from squeeze.system.moving import in_the_way

__all__ = ["replacing_or_equal"]


@contextmanager
def replacing_or_equal(
    target: Path,
    like: os.stat_result | None = None,
    overwrite: bool = True,
    mark: str = temporary.MARK,
    composed: int = 0,
) -> Iterator[BinaryIO]:
    """Open a file for writing as `files.replacing` does, or compare what is written with an existing target.

    Args:
        target: The path or URL of the result.
        like: The status whose permissions and times the result gets.
        overwrite: Whether an existing target is replaced. If not, it is compared.
        mark: The end of the temporary name.
        composed: The approximate size in bytes of an object that is composed of others, otherwise 0.

    Raises:
        SqueezeError: The target exists and has other content.
    """
    if there := None if overwrite else _open_existing(target):
        with there:
            sink = _Compared(target, there)
            yield cast(BinaryIO, sink)
            sink.end()
        temporary.sweep(target)
        return
    with files.replacing(target, like, overwrite, mark, composed) as file:
        yield file


def _open_existing(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


class _Compared:
    """A sink that compares what is written with an existing file. Raises SqueezeError if they differ."""

    def __init__(self, path: Path, file: BinaryIO):
        self._path, self._file = path, file

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._file.read(view.nbytes) != view:
            raise in_the_way(self._path)
        return view.nbytes

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        """Do nothing: this sink has no buffer."""

    def end(self) -> None:
        if self._file.read(1):
            raise in_the_way(self._path)
