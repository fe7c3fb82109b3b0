"""Writing that may be done twice: what was written before and not noted, as before a crash, is compared."""

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
    """As `files.replacing`; where the target is there already and may not be overwritten, what is written has to be
    what it holds. Raises SqueezeError where it is not."""
    if there := None if overwrite else _there(target):
        with there:
            sink = _Compared(target, there)
            yield cast(BinaryIO, sink)
            sink.end()
        temporary.sweep(target)
        return
    with files.replacing(target, like, overwrite, mark, composed) as made:
        yield made


def _there(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


class _Compared:
    """Takes what is written, which has to be what a file holds. Raises SqueezeError where it is not."""

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
        """Nothing is written."""

    def end(self) -> None:
        if self._file.read(1):
            raise in_the_way(self._path)
