"""`.sqz` files in fsspec, and so in pandas, pyarrow and datasets: a protocol, and a compression codec.

fsspec finds the protocol by its entry point, without an import: `fsspec.open("sqz://::s3://bucket/x.jsonl.sqz")`.
Codecs have no entry points in fsspec, so importing this module registers the codec. After that
`fsspec.open("s3://bucket/x.jsonl.sqz", compression="infer")` and `compression="sqz"` work.
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
    """Return a file of raw bytes over a .sqz file.

    Args:
        file: The .sqz file.
        mode: "rb" or "wb". What is written is compressed when the file is closed.
        options: Options of `squeeze.open` or `squeeze.compress_stream`.
    """
    if "r" not in mode:
        return _Writer(file, options)
    if isinstance(file, AbstractBufferedFile):  # which reads far ahead
        return squeeze.open(RemotePath.of(file.fs, file.path), **options)
    return squeeze.open(file, **options)


class _Writer(Writer):
    """A writer that closes its target, and writes nothing if the `with` block on it or on fsspec's OpenFile raises."""

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
    """Return whether an error ends the block `with fsspec.open(...)` in which a file is being closed.

    An OpenFile closes its files as if there were no error. So the error is looked up in the frame of its `__exit__`.
    sys.exc_info() would not do, because a file may be closed by itself while an error is handled.
    """
    frame = sys._getframe(1)
    while frame and frame.f_code is not OpenFile.__exit__.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if not frame:
        return False
    told = frame.f_locals
    return any(told.get("args", ())) and any(one is file for one in told["self"].fobjects)


class SqzFileSystem(AbstractArchiveFileSystem):  # type: ignore[misc]
    """A read-only file system with the one file that a .sqz file holds: "sqz://x.jsonl::s3://bucket/x.jsonl.sqz".

    The name may be omitted. Reading a range decodes only the blocks that hold it.
    """

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
