"""The main path: bytes to .sqz, read this first.

`compress_stream` cuts its input into blocks of one kind of content, codes them
(with threads, always to the same bytes), decodes each again to be sure, and
writes what is smallest. decompressor.py undoes it. What decides how blocks are
coded is settings.py's, how one is coded is encoding.py's, and how it lies in the
file is container.py's.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Any, BinaryIO, Unpack

import numpy as np

from squeeze.codecs.stream import blocks, container, levels, split
from squeeze.codecs.stream.container import Content
from squeeze.codecs.stream.decoding import Coded, Progress
from squeeze.codecs.stream.dictionary import Dictionary
from squeeze.codecs.stream.encoding import SMALL, encode_block, unread
from squeeze.codecs.stream.estimates import block_memory
from squeeze.codecs.stream.resources import (
    DictionarySource,
    LanguageKeywords,
    LanguageOptions,
    Totals,
    as_dictionary,
    built_in_name,
)
from squeeze.codecs.stream.settings import Settings, begun, choose, to_header
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
    """Compress in blocks of at most `size` raw bytes; what is less than one in the ways of `candidates`."""
    first = _read_full(source, size)
    if len(first) == size:
        return _write(sink, settings, _coded(_parts(first, source, size, settings), settings, verify, progress))
    requested, *others = candidates(first, settings)
    streams = [_stream(first, requested, verify, progress), *(_stream(first, way, verify, None) for way in others)]
    stream = min(filter(None, streams), key=len)
    write_all(sink, stream)
    return Totals(len(first), len(stream))


def candidates(raw: bytes, settings: Settings) -> list[Settings]:
    """Return the ways to code an input of less than a block, of which the smallest result is written, the first of
    equals: at the level itself and at lower ones beside it; without the language model, and with it where there are
    texts; with the dictionary, and without it where the input seems to be of another kind."""
    data, level = np.frombuffer(raw, np.uint8), settings.level
    assert level
    if settings.language:
        ways = candidates(raw, _without_model(settings))
        if not (settings.bound or _has_text(raw, settings)):
            return ways
        return [settings, *ways[len(raw) > container.MAX_SHORT :]]  # each long block is coded without the model, too
    if settings.dictionary:
        alone = Settings(levels.level(level.number), settings.threads)
        return [settings, *(candidates(raw, alone) if _is_foreign(data, settings.dictionary) else [])]
    looks = lambda: blocks.content(data).kind, lambda: unread(data, settings)
    rows = levels.with_those_beside(level, len(raw), *looks)
    return [settings, *(replace(settings, level=row) for row in rows[1:])]


def _without_model(settings: Settings) -> Settings:
    """The highest level without a language model, on as many threads."""
    return Settings(levels.without_language_model(), settings.allotment.per_text)


def _has_text(raw: bytes, settings: Settings) -> bool:
    parts = _parts(raw, io.BytesIO(), len(raw), settings)
    return any(content.kind == "text" or split.find(data) is not None for data, content in parts)


def _is_foreign(data: np.ndarray, known: Dictionary) -> bool:
    """Whether a short input seems to be of another kind of content than what a dictionary knows, which may do it
    harm."""
    found = blocks.content(data)
    unclear = found.kind == "other" and data.size < SMALL  # a table, or a program, of so few bytes looks like nothing
    is_short = data.size <= container.MAX_SHORT
    return is_short and found != known.content and not (unclear and known.content.kind != "text")


def _stream(raw: bytes, settings: Settings, verify: bool, progress: Progress) -> bytes | None:
    """Return an input of less than a block as a stream, a short one where that can be; None where a short one should
    have a language model, and its block has none."""
    parts = list(_parts(raw, io.BytesIO(), len(raw), settings))
    if len(raw) <= container.MAX_SHORT and not (settings.language and _needs_blocks(parts, settings)):
        return _short(raw, settings, verify, progress)
    coded = list(_coded(parts, settings, verify, progress))
    if settings.language and not settings.bound and not any(b and b.kind in container.BY_LANGUAGE for _, b in coded):
        settings = _without_model(settings)  # whose blocks these are
    sink = io.BytesIO()
    _write(sink, settings, coded)
    return sink.getvalue()


def _needs_blocks(parts: list[tuple[np.ndarray, Content]], settings: Settings) -> bool:
    """Whether parts are not one text that the exact language model codes: a short stream has one block of one kind."""
    return settings.bound or len(parts) > 1 or any(content.kind != "text" for _, content in parts)


def _write(sink: BinaryIO, settings: Settings, coded: Iterable[tuple[np.ndarray, Coded | None]]) -> Totals:
    """Write a stream of blocks, with an index."""
    writer = Writer(sink, to_header(settings))
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
        return block_memory(settings, kind, part[0].size, part[0].size)

    return ordered_map(encode, chain(first, parts), settings.allotment.blocks, cost, Limits().allows_memory)


def coded_blocks(
    source: BinaryIO, settings: Settings, size: int, verify: bool, progress: Progress = None
) -> Iterator[tuple[np.ndarray, Coded | None]]:
    """The blocks that `compress_stream` cuts a source into, unless it is a short one, with their coded form; None
    where they are stored. In a file of which only a part is read that begins at a multiple of `size`."""
    return _coded(_parts(_read_full(source, size), source, size, settings), settings, verify, progress)


def _short(raw: bytes, settings: Settings, verify: bool, progress: Progress) -> bytes | None:
    """Return a short stream, which has no index and one block; None as in `_stream`."""
    data, dictionary, model = np.frombuffer(raw, np.uint8), settings.dictionary, None
    content = dictionary.content if dictionary else settings.content or blocks.content(data)
    coded = encode_block(data, content, replace(settings, short=True, alone=True), verify, progress)
    if settings.language:
        if coded is None or coded.kind != container.TOKENWISE:
            return None
        model = settings.language.model.identity
    assert settings.level
    header = container.short_header_bytes(
        settings.level.number, settings.level.bare, dictionary.identity if dictionary else None, model
    )
    return container.short_stream_bytes(header, raw, coded.payload if coded else None)


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
