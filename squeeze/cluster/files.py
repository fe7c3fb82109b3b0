"""Workers' operations on files: whole ones, and parts of large ones that are joined at the end.

Every operation can be repeated with the same result: an output appears complete or not at all, and an existing part is
not made again. Paths may be URLs. Then parts are objects next to the output, and the worker that joins them uploads
only what the store does not copy.
"""

import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

import xxhash

from squeeze.cluster.operations import COMPRESS, HASH, TEST, File, FileResult, Part, Task, result_or_error
from squeeze.codecs.stream import parts
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.index import Stream, read_index
from squeeze.codecs.stream.reader import open_reader as open_stream
from squeeze.codecs.stream.resources import LanguageOptions, Totals
from squeeze.codecs.stream.settings import Settings, resolve_settings, to_header
from squeeze.errors import DamagedError, VerifyError
from squeeze.system import files, storage
from squeeze.system.idempotent import replacing_or_equal
from squeeze.system.moving import NAME_LIMIT
from squeeze.system.part_file import FORMAT, is_whole, passed_on
from squeeze.system.remote_info import has_version
from squeeze.system.unchanged import stamp_of
from squeeze.version import __version__

__all__ = [
    "check_unchanged",
    "checksum_of",
    "join_parts",
    "open_unchanged",
    "process_files",
    "process_part",
    "remove_parts",
    "stamp_of",
    "version_of",
]

_PIECE = 1 << 20
_DELETED = 4  # tries to delete objects until none is listed


def version_of(path: Path) -> str:
    """Return the store's name of an object's version, or "" for a file."""
    place = storage.remote(path)
    return place.version if place else ""


def process_files(batch: Sequence[File], task: Task) -> list[FileResult]:
    """Compress, restore or test files one after another."""
    return [result_or_error(file, lambda file=file: _process_file(file, task)) for file in batch]  # type: ignore[misc]


def process_part(part: Part, task: Task) -> FileResult:
    """Compress, restore or test a part of a file."""
    return result_or_error(part.file, lambda: _part(part, task))


def join_parts(file: File, count: int, task: Task) -> FileResult:
    """Join the parts of a file to its output, and delete them."""
    return result_or_error(file, lambda: _join(file, count, task))


def _process_file(file: File, task: Task) -> FileResult:
    with open_unchanged(file) as source:
        if task.operation == TEST:
            totals = decompress_stream(source, None, **task.options)
            return _tested(file, totals.raw, source)
        assert file.target
        with _output(file, source, task) as sink:
            if task.operation == COMPRESS:
                totals = compress_stream(source, sink, **task.options)
            else:
                totals = decompress_stream(source, sink, **task.options)
        return FileResult(
            file, totals.raw, totals.coded, checksum_of(file.target if task.operation == COMPRESS else source)
        )


@contextmanager
def _output(file: File, source: BinaryIO, task: Task, composed: int = 0) -> Iterator[BinaryIO]:
    """Open the output of a file, which appears when the block succeeds and the source has not changed.

    Args:
        file: The file.
        source: The open source.
        task: The task.
        composed: The approximate bytes of parts that are joined, otherwise 0.
    """
    assert file.target
    with replacing_or_equal(file.target, files.status(source), task.overwrite, task.mark, composed) as made:
        yield made
        check_unchanged(file)


def _part(part: Part, task: Task) -> FileResult:
    settings, size = _prepared(task)
    target = _folder(part.file, task, settings) / f"{part.number:08d}"
    result = FileResult(part.file, part.length)
    if task.operation != TEST and _is_there(target, part, task):
        return result
    with open_unchanged(part.file) as source:
        if task.operation == TEST:
            _copy(part, None, task)
            return result
        if not storage.remote(target):
            target.parent.mkdir(exist_ok=True)
        with files.replacing(target) as sink:
            if part.begin == HASH:
                sink.write(parts.checksums(source, part.file.size, part.length))
            elif task.operation == COMPRESS:
                parts.code_part(source, part.begin, part.length, sink, settings, size, task.options["verify"])
            else:
                _copy(part, sink, task)
            check_unchanged(part.file)
    return result


def _is_there(target: Path, part: Part, task: Task) -> bool:
    with suppress(FileNotFoundError), target.open("rb") as made:
        if part.begin == HASH:
            return made.seek(0, os.SEEK_END) == parts.size_of_checksums(part.file.size, part.length)
        return is_whole(made) if task.operation == COMPRESS else made.seek(0, os.SEEK_END) == part.length
    return False


def _copy(part: Part, sink: BinaryIO | None, task: Task) -> None:
    """Decode the blocks of a part and verify their checksums."""
    with open_stream(part.file.source, **task.options) as reader:
        reader.seek(part.begin)
        remaining = part.length
        while remaining:
            piece = reader.read(min(remaining, _PIECE))
            if not piece:
                raise DamagedError("the file holds less than its index says: it is damaged")
            remaining -= len(piece)
            if sink:
                sink.write(piece)


def _join(file: File, count: int, task: Task) -> FileResult:
    settings, _ = _prepared(task)
    folder = _folder(file, task, settings)
    with open_unchanged(file) as source:
        if task.operation == TEST:
            return _tested(file, sum(stream.raw_size for stream in read_index(source)), source)
        assert file.target
        streams = [] if task.operation == COMPRESS else read_index(source)
        size = sum(stream.raw_size for stream in streams) or file.size
        with _output(file, source, task, size) as sink:
            paths = [folder / f"{number:08d}" for number in range(count)]
            if task.operation == COMPRESS:
                known = paths.pop().read_bytes()
                totals = parts.join(_opened(paths), known, sink, settings)
            else:
                totals = Totals(_put_together(streams, _opened(paths), sink), file.size)
        checksum = checksum_of(file.target if task.operation == COMPRESS else source)
    remove_parts(folder)
    return FileResult(file, totals.raw, totals.coded, checksum)


def remove_parts(folder: Path) -> None:
    """Delete a folder of parts, or the objects below a URL, as far as possible."""
    if prefix := storage.remote(folder):
        for _ in range(_DELETED):
            with suppress(OSError):
                if not (found := prefix.descendants()):
                    return
                for part in found:
                    with suppress(OSError):
                        part.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _put_together(streams: list[Stream], opened: Iterable[BinaryIO], sink: BinaryIO) -> int:
    """Write parts one after another, verify the checksum of every stream, and return the bytes written."""
    remaining, digest, written = deque(streams), xxhash.xxh3_64(), 0
    wanted = remaining[0].raw_size  # raw bytes of the stream that is being written
    for piece in (piece for part in opened for piece in passed_on(part, sink)):
        written += len(piece)
        rest = memoryview(piece)
        while remaining and len(rest) >= wanted:
            digest.update(rest[:wanted])
            _compare(remaining.popleft(), digest.intdigest())
            digest.reset()
            rest, wanted = rest[wanted:], remaining[0].raw_size if remaining else 0
        digest.update(rest)
        wanted -= len(rest)
    if remaining:
        raise DamagedError("a part of the restored file is missing: restore it again")
    return written


def _compare(stream: Stream, digest: int) -> None:
    if (digest & 0xFFFFFFFF if stream.short else digest) != stream.checksum:
        raise DamagedError("a stream's checksum differs: the file is damaged, or one of its parts is")


def _opened(paths: Iterable[Path]) -> Iterator[BinaryIO]:
    for path in paths:
        with path.open("rb") as file:
            yield file


def _prepared(task: Task) -> tuple[Settings, int]:
    """Return the settings that parts are compressed with, empty if nothing is compressed, and the most raw bytes of a
    block.
    """
    if task.operation != COMPRESS:
        return Settings(), 0
    options = dict(task.options)
    options.pop("verify")
    level, threads, size = (options.pop(name, None) for name in ("level", "threads", "block_size"))
    dictionary, parse, _ = (options.pop(name, None) for name in ("dictionary", "parse", "long"))
    language, no_window = LanguageOptions(**options), False  # parts of a file are coded alone
    return resolve_settings(level, threads, size, dictionary, language, parse is not False, no_window)


def _folder(file: File, task: Task, settings: Settings) -> Path:
    """Return the folder for the parts of a file's output.

    It depends on the source's state and on the settings, including the content of a dictionary or model.
    """
    place = file.target or file.source
    options = sorted((name, str(value)) for name, value in task.options.items())
    settings_text = (task.operation, file.stamp, options, __version__, FORMAT, to_header(settings))
    digest = xxhash.xxh3_64_hexdigest(repr(settings_text).encode())
    return place.with_name(f".{place.name[:NAME_LIMIT]}.{digest[:12]}.parts")


def _tested(file: File, raw: int, source: BinaryIO) -> FileResult:
    checksum = checksum_of(source)
    if file.checksum and file.checksum != checksum:
        raise DamagedError("its checksum differs from the manifest's")
    return FileResult(file, raw, file.size, checksum)


def checksum_of(coded: Path | BinaryIO) -> str:
    """Return the checksums of raw bytes that the streams of a .sqz file record."""
    if isinstance(coded, Path) or storage.remote(coded):
        with cast(Path, coded).open("rb") as file:
            return checksum_of(file)
    streams = read_index(coded)
    return "-".join(f"{stream.checksum:08x}" if stream.short else f"{stream.checksum:016x}" for stream in streams)


@contextmanager
def open_unchanged(file: File) -> Iterator[BinaryIO]:
    """Open the source, which must not have changed since it was listed."""
    with file.source.open("rb") as source:
        _same(file, files.status(source))
        yield source


def check_unchanged(file: File) -> None:
    """Raise VerifyError if the source has changed since it was listed."""
    _same(file, file.source.stat())


def _same(file: File, status: os.stat_result) -> None:
    if stamp_of(status) != file.stamp and (has_version(status) or status.st_size != file.size):
        raise VerifyError("it changed while it was read: run again when nothing writes to it")
