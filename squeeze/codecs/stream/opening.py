"""`squeeze.open`: a .sqz file as a file object for reading or writing bytes or text, like `gzip.open`.

Reading is random access (reader.py). Written bytes wait in memory or a temporary file. They are compressed when the
file is closed, and only then a path has its complete file. A `with` block that raises writes nothing.
"""

import errno
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, cast, overload

from squeeze.codecs.stream import levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.reader import Reader, open_reader
from squeeze.codecs.stream.resources import DictionarySource
from squeeze.errors import OptionError, printable
from squeeze.system import files
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of, remote

__all__ = ["Writer", "open"]

File = str | bytes | os.PathLike[str] | os.PathLike[bytes] | int | BinaryIO
MODES = ("r", "rb", "rt", "w", "wb", "wt", "x", "xb", "xt")
IN_MEMORY = 1 << 26  # bytes that wait in memory; more go to a temporary file
_FOR_WRITING = ("level", "verify", "block_size", "lanes", "window", "backend", "parse", "long")
_FOR_TEXT = ("encoding", "errors", "newline")


@overload
def open(
    file: File,
    mode: Literal["r", "rb"] = ...,
    *,
    threads: int | None = ...,
    model: str | os.PathLike[str] | None = ...,
    adapter: str | os.PathLike[str] | None = ...,
    device: str = ...,
    dictionary: DictionarySource = ...,
    limits: Limits | None = ...,
) -> Reader: ...


@overload
def open(file: File, mode: Literal["w", "wb", "x", "xb"], **options: Any) -> "Writer": ...


@overload
def open(file: File, mode: Literal["rt", "wt", "xt"], **options: Any) -> TextIO: ...


@overload
def open(file: File, mode: str, **options: Any) -> Any: ...


def open(file: File, mode: str = "rb", **options: Any) -> Any:
    """Open a .sqz file, to read its raw content at any position or to write one.

    Reading decodes and checks only the blocks that are read, and keeps the last one. `limits.memory` applies to the
    index and to each block. A pipe is restored as a whole first. A shard of `squeeze compress --shards` that is named
    by path or URL has `members()` and `member(name)`.

    Args:
        file: a path (str, bytes or PathLike), a URL that fsspec reads, a file descriptor, or a binary file. A
            descriptor is closed with the result, a binary file stays open.
        mode: `r` to read, `w` to write, `x` to write a file that must not exist; with `b` (the default) for bytes, with
            `t` for text.
        options: for text `encoding`, `errors` and `newline`, as the built-in `open` has them. For writing those of
            `compress_stream`, such as `level`. For reading those of `decompress_stream`: `threads`, `model`, `adapter`,
            `device`, `dictionary` and `limits`.

    Raises:
        FormatError: if the file is damaged.
        DictionaryError: if it needs another dictionary.
        DeviceError: if the device is missing.
        LimitError: if a limit is exceeded.
        LevelError: if the level does not exist.
        OptionError: if the mode does not exist, or an option belongs to another mode.
        OSError: if the file cannot be opened.
    """
    if mode not in MODES:
        raise OptionError(f"mode must be one of {', '.join(MODES)}, got {printable(repr(mode))}")
    is_text, reads = mode.endswith("t"), mode.startswith("r")
    text = {name: options.pop(name) for name in _FOR_TEXT if name in options}
    if text and not is_text:
        raise OptionError(f"`{next(iter(text))}` is for text: use mode {mode[0]}t, or leave it out")
    if wrong := [name for name in (_FOR_WRITING if reads else ("limits",)) if name in options]:
        raise OptionError(f"`{wrong[0]}` is for {'writing' if reads else 'reading'}: leave it out")
    binary = _reading(file, options) if reads else _writing(file, mode.startswith("x"), options)
    if not is_text:
        return binary
    try:
        return io.TextIOWrapper(binary, **text) if reads else _TextWriter(binary, **text)
    except BaseException:
        _drop(binary)
        raise


def _reading(file: File, options: dict[str, Any]) -> Any:
    if isinstance(file, bytes | os.PathLike | str):
        return open_reader(_path(file), **options)
    source: BinaryIO = os.fdopen(file, "rb") if isinstance(file, int) else file
    if source.seekable():
        return open_reader(source, closes=isinstance(file, int), **options)
    content = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    try:
        decompress_stream(source, cast(BinaryIO, content), **options)
    finally:
        if isinstance(file, int):
            source.close()
    content.seek(0)
    return content


def _writing(file: File, exclusive: bool, options: dict[str, Any]) -> Any:
    if options.get("level") is not None:
        levels.level(options["level"])
    if isinstance(file, bytes | os.PathLike | str):
        path = _path(file)
        if exclusive and path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        files.check_target(path, [], overwrite=True)
        return _PathWriter(path, exclusive, options)
    if isinstance(file, int):
        return _FileWriter(os.fdopen(file, "wb"), True, options)
    return _FileWriter(file, False, options)


def _path(file: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> Path:
    return cast(Path, file) if remote(file) else path_of(os.fsdecode(file))


def _drop(binary: Any) -> None:
    if isinstance(binary, Writer):
        binary.give_up()
    else:
        binary.close()


class Writer(io.BufferedIOBase):
    """A file that is compressed as a whole when it is closed. A `with` block that raises writes nothing."""

    def __init__(self, options: dict[str, Any]):
        """Take the options of `compress_stream`."""
        self._options = options
        self._content = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115

    @contextmanager
    def sink(self) -> Iterator[BinaryIO]:
        """Open the file that gets the compressed bytes."""
        raise NotImplementedError
        yield

    def dropped(self) -> None:
        """Clean up, once, if nothing is written."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._content.write(data)

    def tell(self) -> int:
        return self._content.tell()

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with self._content as content, self.sink() as sink:
            content.seek(0)
            compress_stream(cast(BinaryIO, content), sink, **self._options)

    def give_up(self) -> None:
        """Close the file without writing anything."""
        if not self.closed:
            super().close()
            self._content.close()
            self.dropped()

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            self.give_up()

    def __del__(self) -> None:
        self.give_up()


class _PathWriter(Writer):
    def __init__(self, path: Path, exclusive: bool, options: dict[str, Any]):
        super().__init__(options)
        self._path, self._exclusive = path, exclusive

    @contextmanager
    def sink(self) -> Iterator[BinaryIO]:
        with files.replacing(self._path, overwrite=not self._exclusive) as file:
            yield file


class _FileWriter(Writer):
    def __init__(self, file: BinaryIO, closes: bool, options: dict[str, Any]):
        super().__init__(options)
        self._file, self._closes = file, closes

    @contextmanager
    def sink(self) -> Iterator[BinaryIO]:
        try:
            yield self._file
        finally:
            self.dropped()

    def dropped(self) -> None:
        if self._closes:
            self._file.close()


class _TextWriter(io.TextIOWrapper):
    """A text file over a Writer."""

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            cast(Writer, self.detach()).give_up()
