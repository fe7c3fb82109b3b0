"""The main path: bytes to .sqz, read this first.

`compress_stream` cuts its input into blocks of one kind of content, codes them
(with threads, always to the same bytes), decodes each again to be sure, and
writes what is smallest. decompressor.py undoes it. What decides how blocks are
coded is settings.py's, how one is coded is coding.py's, and how it lies in the
file is container.py's.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any, BinaryIO, Unpack

import numpy as np

from squeeze.codecs.stream import blocks, container, levels, split
from squeeze.codecs.stream.coding import SMALL, Coded, Progress, encode_block, memory_of, unread
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.header import to_header
from squeeze.codecs.stream.resources import (
    DictionarySource,
    LanguageKeywords,
    LanguageOptions,
    as_dictionary,
    built_in_name,
)
from squeeze.codecs.stream.settings import Settings, begun, choose
from squeeze.codecs.stream.totals import Totals
from squeeze.codecs.stream.writer import Writer
from squeeze.errors import LevelError
from squeeze.system.in_order import ordered_map
from squeeze.system.limits import Limits
from squeeze.system.pipes import read_some, write_all
from squeeze.system.sparse import reading


def compress(
    data: bytes, level: int | None = None, *, threads: int | None = None, verify: bool = True, **options: Any
) -> bytes:
    """Compress bytes to a .sqz file in memory; `options` are those of `compress_stream`.

    Raises LevelError for a level that does not exist, ModelError for a language model that is not there, DeviceError
    for such a device, and VerifyError if the result does not decode to `data` (a fault of the machine).

    >>> squeeze.decompress(squeeze.compress(b"abc" * 100)) == b"abc" * 100
    True
    """
    sink = io.BytesIO()
    compress_stream(io.BytesIO(data), sink, level=level, threads=threads, verify=verify, **options)
    return sink.getvalue()


def compress_stream(
    source: BinaryIO,
    sink: BinaryIO,
    *,
    level: int | None = None,
    threads: int | None = None,
    verify: bool = True,
    block_size: int | None = None,
    dictionary: DictionarySource = None,
    progress: Progress = None,
    **language: Unpack[LanguageKeywords],
) -> Totals:
    """Compress a binary file or pipe of any length into `sink`. The holes of a sparse file are not read.

    `threads` work at a time (None: one, and at levels 7 to 9 one a core); `block_size` is the most raw bytes of
    a block. At levels 7 to 9 `model` is the language model, a path (None: the bundled one), and `adapter` one that
    `squeeze train --adapter` wrote (None: the bundled one of the bundled model; "none": none), each text is cut
    into `lanes`, and a token is predicted from the `window` of tokens before it; `backend` is "exact" (None), or
    "llamacpp" for any GGUF model, in a file that opens on machines like this one only and is always verified. `device`
    runs the model: "auto" (all GPUs, where there are some), "cpu", "cuda" (all GPUs) or "cuda:N"; the file is the same.
    `dictionary` is a Dictionary that `train` made, or its file's path: it sets the level,
    and is needed again to decompress. Or it names what is built in, which is not: "auto" (None) begins each block as
    the level has it for what it seems to hold, "text" as levels 1 to 6 have it for text, "none" with nothing built in.
    `progress(n)` is told of n more raw bytes coded or verified.
    """
    settings, size = prepare(level, threads, block_size, dictionary, LanguageOptions(**language))
    return _compress(reading(source), sink, settings, size, verify, progress)


def prepare(
    level: int | None,
    threads: int | None,
    block_size: int | None,
    dictionary: DictionarySource,
    language: LanguageOptions,
) -> tuple[Settings, int]:
    """The settings that these options of `compress_stream` mean, and the most raw bytes of a block."""
    known = as_dictionary(dictionary)
    if level is None:
        level = known.level if known else levels.DEFAULT
    row = levels.level(level)
    size = levels.DEFAULT_BLOCK if block_size is None else block_size
    if not 1 <= size <= container.MAX_BLOCK:
        raise LevelError(f"a block holds from 1 byte to {container.MAX_BLOCK >> 20} MiB: choose a block size between")
    settings, name = choose(row, threads, known, language), built_in_name(dictionary)
    return (begun(settings, name) if name else settings), size


def _compress(
    source: BinaryIO, sink: BinaryIO, settings: Settings, size: int, verify: bool, progress: Progress
) -> Totals:
    """Compress in blocks of at most `size` raw bytes, or as a short stream."""
    writer = Writer(sink, to_header(settings))
    first = _read_full(source, size)
    if lower := _beside(first, settings, size):
        stream = _smallest(first, settings, lower, size, verify, progress)
        write_all(sink, stream)
        return Totals(len(first), len(stream))
    if settings.language and not settings.bound and container.MAX_SHORT < len(first) < size:
        coded = list(_coded(_parts(first, io.BytesIO(), size, settings), settings, verify, progress))
        if not any(block and block.kind in container.BY_LANGUAGE for _, block in coded):
            if _beside(first, _plain(settings), size):
                return _compress(io.BytesIO(first), sink, _plain(settings), size, verify, None)
            writer = Writer(sink, to_header(_plain(settings)))  # whose blocks these are
        return _written(writer, coded)
    if settings.level is None or len(first) > container.MAX_SHORT or len(first) == size:
        return _write_long(writer, _parts(first, source, size, settings), settings, verify, progress)
    parts = list(_parts(first, io.BytesIO(), size, settings))
    if settings.language is None or not (settings.bound or len(parts) > 1 or any(map(_has_texts, parts))):
        stream = _short(first, settings, verify, progress)
        if _is_foreign(first, settings):
            stream = min(stream, _without_dictionary(first, settings, size, verify), key=len)
    else:
        long = io.BytesIO()
        _write_long(Writer(long, to_header(settings)), iter(parts), settings, verify, progress)
        stream = min(_short(first, _plain(settings), verify, None), long.getvalue(), key=len)
    if settings.language and (lower := _beside(first, _plain(settings), size)):
        stream = min(stream, _smallest(first, _plain(settings), lower, size, verify, None), key=len)
    write_all(sink, stream)
    return Totals(len(first), len(stream))


def _beside(raw: bytes, settings: Settings, size: int) -> list[levels.Level]:
    """Lower levels at which an input of less than a block is coded, too."""
    if settings.level is None or settings.dictionary or len(raw) >= size:
        return []
    data = np.frombuffer(raw, np.uint8)
    looks = lambda: blocks.content(data).kind, lambda: unread(data, settings)
    return levels.with_those_beside(settings.level, len(raw), *looks)[1:]


def _is_foreign(raw: bytes, settings: Settings) -> bool:
    """Whether an input seems to be of another kind of content than what a dictionary knows, which may do it harm."""
    known = settings.dictionary
    if known is None:
        return False
    found = blocks.content(np.frombuffer(raw, np.uint8))
    unclear = found.kind == "other" and len(raw) < SMALL  # a table, or a program, of so few bytes looks like nothing
    return found != known.content and not (unclear and known.content.kind != "text")


def _without_dictionary(raw: bytes, settings: Settings, size: int, verify: bool) -> bytes:
    """The stream of the level alone."""
    assert settings.level
    sink, alone = io.BytesIO(), Settings(levels.level(settings.level.number), settings.threads)
    _compress(io.BytesIO(raw), sink, alone, size, verify, None)
    return sink.getvalue()


def _has_texts(part: tuple[np.ndarray, Content]) -> bool:
    """Whether a part that seems to be something else holds texts."""
    return part[1].kind != "text" and split.find(part[0]) is not None


def _smallest(
    raw: bytes, settings: Settings, lower: list[levels.Level], size: int, verify: bool, progress: Progress
) -> bytes:
    """The smallest stream of those at a level and at lower ones; of equals that of the level."""
    streams = [_alone(raw, settings, size, verify, progress)]
    streams += [_alone(raw, replace(settings, level=row), size, verify, None) for row in lower]
    return min(streams, key=len)


def _alone(raw: bytes, settings: Settings, size: int, verify: bool, progress: Progress) -> bytes:
    """The stream of an input without a language model."""
    if len(raw) <= container.MAX_SHORT:
        return _short(raw, settings, verify, progress)
    sink = io.BytesIO()
    parts = _parts(raw, io.BytesIO(), size, settings)
    _write_long(Writer(sink, to_header(settings)), parts, settings, verify, progress)
    return sink.getvalue()


def _write_long(
    writer: Writer, parts: Iterable[tuple[np.ndarray, Content]], settings: Settings, verify: bool, progress: Progress
) -> Totals:
    """A stream of blocks, with an index."""
    return _written(writer, _coded(parts, settings, verify, progress))


def _written(writer: Writer, coded: Iterable[tuple[np.ndarray, Coded | None]]) -> Totals:
    for data, block in coded:
        writer.write_block(data, block)
    return writer.finish()


def _coded(
    parts: Iterable[tuple[np.ndarray, Content]], settings: Settings, verify: bool, progress: Progress
) -> Iterator[tuple[np.ndarray, Coded | None]]:
    """Blocks with their coded form; None where they are stored. Fewer are coded at a time than there are threads where
    memory is short."""
    parts = iter(parts)
    first = list(islice(parts, 2 if settings.allotment.blocks > 1 else 0))
    if len(first) == 1:
        settings = replace(settings, alone=True)

    def encode(part: tuple[np.ndarray, Content]) -> tuple[np.ndarray, Coded | None]:
        return part[0], encode_block(*part, settings, verify, progress)

    def cost(part: tuple[np.ndarray, Content]) -> int:
        kind = container.BYTEWISE
        if settings.language:
            kind = container.TOKENWISE if part[1].kind == "text" else container.SPLIT
        return memory_of(settings, kind, part[0].size, part[0].size)

    return ordered_map(encode, chain(first, parts), settings.allotment.blocks, cost, Limits().allows_memory)


def coded_blocks(
    source: BinaryIO, settings: Settings, size: int, verify: bool, progress: Progress = None
) -> Iterator[tuple[np.ndarray, Coded | None]]:
    """The blocks that `compress_stream` cuts a source into, unless it is a short one, with their coded form; None
    where they are stored. In a file of which only a part is read that begins at a multiple of `size`."""
    return _coded(_parts(_read_full(source, size), source, size, settings), settings, verify, progress)


def _short(raw: bytes, settings: Settings, verify: bool, progress: Progress) -> bytes:
    """A short stream, which has no index. With a language model it is of a level without where that does no worse."""
    data, dictionary = np.frombuffer(raw, np.uint8), settings.dictionary
    content = dictionary.content if dictionary else settings.content or blocks.content(data)
    coded, model = None, None
    if settings.language and content.kind == "text":
        coded = encode_block(data, content, replace(settings, short=True, alone=True), verify, progress)
        if coded is not None and coded.kind == container.TOKENWISE:
            model = settings.language.model.identity
        progress = None  # it is told already
    if settings.language and model is None:
        settings = _plain(settings)
    if model is None:
        coded = encode_block(data, content, replace(settings, short=True, alone=True), verify, progress)
    assert settings.level
    header = container.short_header_bytes(
        settings.level.number, settings.level.bare, dictionary.identity if dictionary else None, model
    )
    return container.short_stream_bytes(header, raw, coded.payload if coded else None)


def _plain(settings: Settings) -> Settings:
    return Settings(levels.without_language_model(), settings.threads)


def _parts(chunk: bytes, source: BinaryIO, size: int, settings: Settings) -> Iterator[tuple[np.ndarray, Content]]:
    """A chunk and the rest of the source in parts of one kind of content, at most `size` bytes each."""
    while chunk:
        data = np.frombuffer(chunk, np.uint8)
        if settings.content:
            yield data, settings.content
        else:
            for start, end, content in blocks.regions(data):
                yield data[start:end], content
        chunk = _read_full(source, size)


def _read_full(source: BinaryIO, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the source; pipes may give them in pieces."""
    pieces = []
    while size:
        piece = read_some(source, size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
