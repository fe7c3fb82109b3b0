"""`.sqz` files in fsspec, and so in pandas, pyarrow and datasets: a protocol, and a codec.

The protocol needs no import, since fsspec finds it by its entry point: `fsspec.open("sqz://::s3://bucket/x.jsonl.sqz")`.
fsspec has no entry points for codecs. The import of this module registers the codec:
`fsspec.open("s3://bucket/x.jsonl.sqz", compression="infer")` and `compression="sqz"` work from then on.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import fsspec
from fsspec.archive import AbstractArchiveFileSystem
from fsspec.compression import compr, register_compression
from fsspec.core import OpenFile
from fsspec.registry import register_implementation
from fsspec.spec import AbstractBufferedFile

import squeeze
from squeeze.codecs.stream.opening import Writer
from squeeze.system.files import SUFFIX
from squeeze.system.remote_path import RemotePath
from squeeze.system.upload import discard_upload

__all__ = ["SqzFileSystem", "codec"]

_NAME = SUFFIX.removeprefix(".")


def codec(file: BinaryIO, mode: str = "rb", **options: Any) -> Any:
    """A file of raw bytes over a .sqz file, as fsspec asks for. options: those of `squeeze.open`, or of
    `squeeze.compress_stream`; what is written is compressed when it is closed."""
    if "r" not in mode:
        return _Writer(file, options)
    if isinstance(file, AbstractBufferedFile):  # which reads far ahead
        return squeeze.open(RemotePath.of(file.fs, file.path), **options)
    return squeeze.open(file, **options)


class _Writer(Writer):
    """Closes the file that it writes to. A `with` block on it, or on fsspec's OpenFile, that raises writes nothing."""

    def __init__(self, file: BinaryIO, options: dict[str, Any]):
        super().__init__(options)
        self._file = file

    @contextmanager
    def sink(self) -> Iterator[BinaryIO]:
        try:
            yield self._file
        except BaseException:
            self.dropped()
            raise
        self._file.close()

    def dropped(self) -> None:
        discard_upload(self._file)

    def close(self) -> None:
        if not self.closed and _block_failed(self):
            self.give_up()
        else:
            super().close()


def _block_failed(file: object) -> bool:
    """Whether an error ends the block `with fsspec.open(...)` in which a file is being closed.

    An OpenFile is told of the error, and closes its files as if there were none. So it is asked for in the call of its
    `__exit__`, if that is what closes the file. sys.exc_info() would not do: a file may well be closed by itself where
    an error is handled.
    """
    frame = sys._getframe(1)
    while frame and frame.f_code is not OpenFile.__exit__.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if not frame:
        return False
    told = frame.f_locals
    return any(told.get("args", ())) and any(one is file for one in told["self"].fobjects)


class SqzFileSystem(AbstractArchiveFileSystem):  # type: ignore[misc]
    """One .sqz file as a folder of the one file that it holds: "sqz://x.jsonl::s3://bucket/x.jsonl.sqz". The name may
    be left out. It can only be read; a range takes the blocks that it lies in."""

    root_marker = ""
    protocol = _NAME
    cachable = False

    def __init__(
        self, fo: str = "", target_protocol: str | None = None, target_options: Any = None, **options: Any
    ) -> None:
        super().__init__(self, **options)
        target = fsspec.filesystem(target_protocol or "file", **(target_options or {}))
        self._file, self.fo = RemotePath.of(target, fo), fo
        self._inner = fo.rstrip("/").rpartition("/")[2].removesuffix(SUFFIX)
        self.dir_cache: dict[str, Any] | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).lstrip("/")

    def _get_dirs(self) -> None:
        if self.dir_cache is None:
            with squeeze.open(self._file) as file:
                size = file.seek(0, 2)
            self.dir_cache = {self._inner: {"name": self._inner, "size": size, "type": "file"}}

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError("sqz:// can only be read")
        if path not in ("", self._inner):
            raise FileNotFoundError(path)
        return squeeze.open(self._file)


register_implementation(_NAME, SqzFileSystem, clobber=True)  # for a squeeze that is not installed
if _NAME not in compr:
    register_compression(_NAME, codec, _NAME)
