"""The main path of compression, from bytes to .sqz: read this first.

`compress_stream` cuts its input into blocks of one kind of content, and codes them in threads, always to the same
bytes. It decodes each block again to verify it, and writes the smallest result. decompressor.py is the inverse.

- settings.py decides how blocks are coded.
- encoding.py codes a block.
- container.py writes headers and blocks.
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Unpack

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.stream import blocks, container, levels, media, opened, sampling, split
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.cutting import Part, after_noise, closed_parts, find_wrappers, parts as cut
from squeeze.codecs.stream.decoding import Progress
from squeeze.codecs.stream.dictionary import Dictionary
from squeeze.codecs.stream.encoding import SMALL, encode_block, encode_repeats, is_unpredicted
from squeeze.codecs.stream.estimates import block_memory
from squeeze.codecs.stream.matcher import pays_alone
from squeeze.codecs.stream.resources import (
    DictionarySource,
    LanguageOptions,
    StreamKeywords,
    Totals,
)
from squeeze.codecs.stream.settings import Settings, resolve_settings, to_header
from squeeze.codecs.stream.shares import Share, shares
from squeeze.codecs.stream.writer import Writer
from squeeze.system.binary import read_some, write_all
from squeeze.system.limits import Limits
from squeeze.system.parallel import ordered_map
from squeeze.system.sparse import reading

_MIB = 1 << 20
_SEARCHED = 1 << 22  # bytes from which an input shorter than a block is searched for repeats


def compress(
    data: bytes, level: int | None = None, *, threads: int | None = None, verify: bool = True, **options: Any
) -> bytes:
    """Compress bytes to a .sqz file in memory.

    Args:
        data: the bytes to compress.
        level: 1 to 9, or None for the default.
        threads: number of threads, see `compress_stream`.
        verify: decode every block again and compare.
        options: others of `compress_stream`.

    Raises:
        LevelError: if the level does not exist.
        ModelError: if the language model is missing.
        DeviceError: if the device is missing.
        VerifyError: if the result does not decode to `data`, which is a fault of the machine.

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
    **others: Unpack[StreamKeywords],
) -> Totals:
    """Compress a binary file or pipe of any length into `sink`. Holes of a sparse file are not read.

    Args:
        source: the file to compress.
        sink: the file to write.
        level: 1 to 9; None: that of the dictionary, or the default.
        threads: number of threads; None: one, and one per core at levels 7 to 9.
        verify: decode every block again and compare.
        block_size: most raw bytes of a block.
        dictionary: a Dictionary or the path of one, which is needed again to decompress; or the name of built-in
            weights: "auto" (None) uses those for each block's kind of content, "text" those of text (levels 1 to 6),
            "none" no built-in weights.
        progress: is called with the number of raw bytes coded or verified since its last call.
        others: `parse` False leaves wrappers, such as zip archives, closed; a dictionary does, too. `long` is the
            window of repeats in bytes (None: 256 MiB if blocks have 1 MiB or more), or False. For levels 7 to 9 the
            language model's. `model` is the path of a language model (None: the bundled one). `adapter` is a file of
            `squeeze train --adapter` (None: that of the bundled model; "none": no adapter). A text is cut into
            `lanes`, and each token is predicted from the `window` of tokens before it. `backend` "llamacpp" runs any
            GGUF model: the file opens only on machines like this one, and is always verified. `device` is "auto" (all
            GPUs, if any), "cpu", "cuda" (all GPUs) or "cuda:N"; it does not change the file.

    Returns:
        raw and coded bytes.
    """
    parse, long = others.pop("parse", True), others.pop("long", None)
    language = LanguageOptions(**others)  # type: ignore[misc]  # without these two
    settings, size = resolve_settings(level, threads, block_size, dictionary, language, parse, long)
    return _compress(source, sink, settings, size, verify, progress)


def _compress(
    source: BinaryIO, sink: BinaryIO, settings: Settings, size: int, verify: bool, progress: Progress
) -> Totals:
    """Compress in blocks of at most `size` raw bytes; input shorter than a block is coded by each plan of
    `candidates`."""
    known, source = _remaining(source), reading(source)
    first = _read_full(source, size)
    if len(first) == size or (settings.window and len(first) >= _SEARCHED and pays_alone(first, settings.window)):
        if known and settings.window:
            settings = replace(settings, window=min(settings.window, -(-known // _MIB) * _MIB))
        found = cut(first, partial(_read_full, source), size, settings, known)
        return _write(sink, settings, _coded(found, settings, verify, progress))
    settings = replace(settings, window=0)
    root = find_wrappers(np.frombuffer(first, np.uint8), settings)
    requested, *others = candidates(first, settings, root)
    tried = [(plan, root) for plan in (requested, *others)]
    if root:
        closed = () if opened.surely_pays(root, np.frombuffer(first, np.uint8)) else (requested, *others)
        tried += [(plan, None) for plan in closed]
    elif len(first) <= container.MAX_SHORT and _has_media(closed_parts(np.frombuffer(first, np.uint8), settings)):
        tried += [(replace(plan, parse=False), None) for plan in (requested, *others)]
    streams = []
    for (plan, tree), tick in zip(tried, _shared(progress, len(first), verify, tried), strict=True):
        streams.append(_stream(first, plan, tree, verify, tick))
        tick.finish()
    if not root and (parts := after_noise(np.frombuffer(first, np.uint8), requested)):
        streams.append(_long(_coded(parts, requested, verify, None), requested))
    stream, totals = min(filter(None, streams), key=lambda found: len(found[0]))
    write_all(sink, stream)
    return totals


def _shared(progress: Progress, size: int, verify: bool, tried: list[tuple[Settings, Node | None]]) -> list[Share]:
    """Return the shares of plans in the progress of `size` raw bytes, by their estimated time."""
    seconds = [
        levels.estimate_seconds(plan.level.number, opened.size_of(root) if root else size)
        for plan, root in tried
        if plan.level
    ]
    return shares(progress, size * (2 if verify else 1), seconds)


def candidates(raw: bytes, settings: Settings, root: Node | None = None) -> list[Settings]:
    """Return the settings to try for an input shorter than a block; the first of the smallest results is written.

    These are the level and its fallback levels. If there is text, they are tried with and without the language model.
    If the input looks like another kind of content than the dictionary's, it is tried without the dictionary, too.
    """
    data, level = np.frombuffer(raw, np.uint8), settings.level
    assert level
    if settings.language:
        plans = candidates(raw, _without_model(settings))
        if not (settings.bound or any(_has_text(part, settings) for part in _own_bytes(data, root))):
            return plans
        return [settings, *plans[len(raw) > container.MAX_SHORT :]]  # each long block is coded without the model, too
    if settings.dictionary:
        alone = Settings(levels.level(level.number), settings.threads)
        return [settings, *(candidates(raw, alone) if _is_foreign(data, settings.dictionary) else [])]
    unpredicted, repetitive = partial(is_unpredicted, data, settings), partial(sampling.mostly_repeats, data)
    looks = levels.Looks(lambda: blocks.content(data).kind, unpredicted, repetitive)
    rows = levels.candidate_levels(level, len(raw), looks)
    return [settings, *(replace(settings, level=row) for row in rows[1:])]


def _without_model(settings: Settings) -> Settings:
    """Return the settings of the highest level without a language model, with as many threads."""
    return Settings(levels.without_language_model(), settings.allotment.per_text, parse=settings.parse)


def _own_bytes(data: np.ndarray, root: Node | None) -> list[np.ndarray]:
    """Return uint8 `data`, or what is in its wrappers and around them."""
    return [node.own for node in root.nodes()] if root else [data]


def _has_text(data: np.ndarray, settings: Settings) -> bool:
    parts = closed_parts(data, settings) if data.size else ()
    return any(part.content == Content("text") or split.find(part.data) is not None for part in parts)


def _is_foreign(data: np.ndarray, known: Dictionary) -> bool:
    """Return whether a short input looks like another kind of content than the dictionary's, so that it may do harm."""
    found = blocks.content(data)
    unclear = found.kind == "other" and data.size < SMALL  # a table, or a program, of so few bytes looks like nothing
    is_short = data.size <= container.MAX_SHORT
    return is_short and found != known.content and not (unclear and known.content.kind != "text")


def _stream(
    raw: bytes, settings: Settings, root: Node | None, verify: bool, progress: Progress
) -> tuple[bytes, Totals] | None:
    """Return an input shorter than a block as a stream, with its wrappers `root` opened, or a short one if possible.

    It comes with its totals, and is None if a short stream needs a language model, and its block does not use one.
    """
    data = np.frombuffer(raw, np.uint8)
    parts = [Part.plain(data, root)] if root else list(closed_parts(data, settings)) if raw else []
    is_short = len(raw) <= container.MAX_SHORT and root is None and not _has_media(parts)
    if is_short and not (settings.language and _needs_blocks(parts, settings)):
        short = _short(raw, settings, verify, progress)
        return None if short is None else (short, Totals(len(raw), len(short)))
    coded = list(_coded(parts, settings, verify, progress))
    if settings.language and not settings.bound and not any(_by_language(data, block) for data, block in coded):
        settings = _without_model(settings)  # whose blocks these are
    stream, totals = _long(coded, settings)
    if len(raw) <= container.MAX_SHORT and len(coded) == 1 and not (settings.bound or settings.dictionary):
        short = _short_of(raw, settings, coded[0][1])
        return short, replace(totals, coded=len(short))
    return stream, totals


def _long(coded: Iterable[tuple[np.ndarray, Coded | None]], settings: Settings) -> tuple[bytes, Totals]:
    """Return a stream of blocks with an index, and its totals."""
    sink = io.BytesIO()
    totals = _write(sink, settings, coded)
    return sink.getvalue(), totals


def _has_media(parts: Iterable[Part]) -> bool:
    return any(isinstance(part.content, Content) and media.of_content(part.content) for part in parts)


def _by_language(data: np.ndarray, block: Coded | None) -> bool:
    """Return whether a block, or one in it, is coded by the language model."""
    if block is None or block.kind != container.OPENED:
        return block is not None and block.kind in container.BY_LANGUAGE
    return any(part.kind in container.BY_LANGUAGE for part in opened.read(block.payload, data.size).blocks())


def _needs_blocks(parts: list[Part], settings: Settings) -> bool:
    """Return whether parts are more than one text for the exact language model: a short stream has a single block."""
    return settings.bound or len(parts) > 1 or any(part.content != Content("text") for part in parts)


def _write(sink: BinaryIO, settings: Settings, coded: Iterable[tuple[np.ndarray, Coded | None]]) -> Totals:
    """Write a stream of blocks with an index."""
    writer = Writer(sink, to_header(settings))
    for data, block in coded:
        writer.write_block(data, block)
    return writer.finish()


def _coded(
    parts: Iterable[Part], settings: Settings, verify: bool, progress: Progress
) -> Iterator[tuple[np.ndarray, Coded | None]]:
    """Yield blocks with their coded form, or None if stored. Fewer are coded at once if memory is short."""
    parts = iter(parts)
    first = list(islice(parts, 2 if settings.allotment.blocks > 1 else 0))
    if len(first) == 1:
        settings = replace(settings, alone=True)

    def encode(part: Part) -> tuple[np.ndarray, Coded | None]:
        if part.copies:
            return part.data, encode_repeats(part, settings, verify, progress)
        return part.data, encode_block(part.data, part.content, settings, verify, progress)

    def cost(part: Part) -> int:
        kind, size, content = container.BYTEWISE, part.rest.size, part.content
        apart = part.data.size + size if part.copies else 0
        if isinstance(content, Node):
            size = opened.size_of(content)
            kinds = kind, *(medium.block for medium in media.MEDIA)
            return max(block_memory(settings, one, size, size) for one in kinds) + opened.MEMORY * size + apart
        if medium := media.of_content(content):
            return max(block_memory(settings, one, size, size) for one in (kind, medium.block)) + apart
        if settings.language:
            kind = container.TOKENWISE if content.kind == "text" else container.SPLIT
        return block_memory(settings, kind, size, size) + apart

    return ordered_map(encode, chain(first, parts), settings.allotment.blocks, cost, Limits().allows_memory)


def coded_blocks(
    source: BinaryIO, settings: Settings, size: int, verify: bool, progress: Progress = None
) -> Iterator[tuple[np.ndarray, Coded | None]]:
    """Yield the blocks that `compress_stream` cuts a long source into, with their coded form, or None if stored.

    Args:
        source: a file, or a part of one that starts at a multiple of `size`.
        settings: how to code.
        size: most raw bytes of a block.
        verify: decode every block again and compare.
        progress: is called with the number of raw bytes done since its last call.
    """
    read = partial(_read_full, source)
    return _coded(cut(read(size), read, size, settings, None), settings, verify, progress)


def _short(raw: bytes, settings: Settings, verify: bool, progress: Progress) -> bytes | None:
    """Return a short stream, which has one block and no index; None as in `_stream`."""
    data, dictionary = np.frombuffer(raw, np.uint8), settings.dictionary
    content = dictionary.content if dictionary else settings.content or blocks.content(data)
    coded = encode_block(data, content, replace(settings, short=True, alone=True), verify, progress)
    if settings.language and (coded is None or coded.kind != container.TOKENWISE):
        return None
    return _short_of(raw, settings, coded)


def _short_of(raw: bytes, settings: Settings, coded: Coded | None) -> bytes:
    """Return the short stream of a block, or of raw bytes."""
    level, dictionary, model = settings.level, settings.dictionary, settings.language
    assert level
    header = container.short_header_bytes(
        level.number,
        level.bare,
        dictionary.identity if dictionary else None,
        model.model.identity if model else None,
        coded.kind if coded else None,
    )
    return container.short_stream_bytes(header, raw, coded.payload if coded else None)


def _remaining(source: BinaryIO) -> int | None:
    """Return the bytes from the current position of a source to its end, or None if it is no regular file."""
    try:
        if not source.seekable():
            return None
        place = source.tell()
        end = source.seek(0, io.SEEK_END)
        source.seek(place)
    except (OSError, ValueError, AttributeError):
        return None
    return max(end - place, 0)


def _read_full(source: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, or fewer at the end of the source; pipes may return them in pieces."""
    pieces = []
    while size:
        piece = read_some(source, size)
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
