"""`squeeze.explain`: compresses a file, decodes it with a meter, and collects what that measured."""

import io
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, cast

from squeeze.codecs.parse.finding import candidates
from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.decompressor import decompress_stream
from squeeze.codecs.stream.measuring import MeasuredBlock, measure, restored
from squeeze.codecs.stream.resources import DictionarySource, Keywords, LanguageKeywords, Resources
from squeeze.errors import LevelError, OptionError
from squeeze.recipes.reports.explanation.explanation import BlockCost, Explanation
from squeeze.recipes.reports.explanation.sums import Section
from squeeze.recipes.reports.explanation.units import gather, pieces_of
from squeeze.system.limits import Limits
from squeeze.system.storage import path_of

__all__ = ["explain", "is_compressed", "passes"]

Progress = Callable[[int], None] | None
Model = str | os.PathLike[str] | None
_WRITTEN = ("lanes", "window", "backend")  # what a file says of itself


def explain(  # noqa: PLR0913
    source: bytes | str | os.PathLike[str],
    level: int | None = None,
    *,
    span: tuple[int, int | None] = (0, None),
    against: int | None = None,
    against_model: Model = None,
    threads: int | None = None,
    dictionary: DictionarySource = None,
    limits: Limits | None = None,
    progress: Progress = None,
    **others: Unpack[Keywords],
) -> Explanation:
    """Measure the bits of every byte of a file, or of every token of a text at levels 7 to 9.

    The costs are the decoder's, so their sum is the size of the coded blocks, except for a few bytes each. Wrappers
    such as zip members are shown opened, since their contents are what is coded.

    Args:
        source: Bytes, or a path or URL of a file. A .sqz file is explained as it was written, and takes no level.
        level: Level of compression.
        span: First byte of what is shown, and the one after the last, None for the end. All bytes are coded.
        against: Level to compare with.
        against_model: Language model to compare with, at that level or the same one.
        threads: Threads, as in `compress_stream`.
        dictionary: Dictionary, as in `compress_stream`.
        limits: Limits of decompression.
        progress: Called with numbers of bytes, which add up to `passes` times the file.
        others: `parse` and options of the language model, as in `compress_stream`.

    Raises:
        LevelError: If the level does not exist, or a .sqz file is given one.
        OptionError: If the span is outside the file, or the levels or language models cannot be compared.

    >>> explanation = squeeze.explain(b"Kind words are worth much and cost little. " * 9, level=1)
    >>> round(explanation.bits / 8) <= explanation.coded_size
    True
    """
    name, data = _read(source)
    compressed, parse = is_compressed(data), others.get("parse", True)
    language = _language(others)
    if compressed and (level is not None or not parse or any(language.get(name) for name in _WRITTEN)):
        raise LevelError("a .sqz file says how it was written: leave out the level, lanes, window, backend and parse")
    compares = against is not None or against_model is not None
    compared_level = against if against is not None or compressed else level or levels.DEFAULT  # None: that of the file
    if compares and compared_level is not None:
        _language_of_compared(compared_level, against_model, language)  # raises before anything is coded
    if not (compressed or (parse and candidates(data))):
        _checked(span, len(data))
    coded = data if compressed else _compressed(data, level, threads, dictionary, progress, others)
    resources = Resources(threads, language.get("model"), dictionary, limits or Limits(), language.get("adapter"))
    blocks = list(measure(io.BytesIO(coded), resources, None if compressed else data, progress))
    found = _explanation(blocks, span, language.get("model"), len(coded))
    if compares:
        compared_level = found.level if compared_level is None else compared_level
        raw = _decompressed(data, resources) if compressed else data
        model = _language_of_compared(compared_level, against_model, language)
        options = {"span": span, "threads": threads, "limits": limits, "progress": progress, **model}
        found = replace(found, against=_against(found, raw, compared_level, options))
    return replace(found, name=name)


def _against(found: Explanation, raw: bytes, level: int, options: dict[str, Any]) -> Explanation:
    """Explain the same bytes at another level, or by another model.

    Raises OptionError if this opens other wrappers.
    """
    other = explain(raw, level, parse=bool(found.wrappers), **options)
    if other.data != found.data:
        raise OptionError("the compared levels open different wrappers: leave wrappers closed (`parse=False`)")
    return other


def _language(others: Keywords) -> LanguageKeywords:
    """Return the options of the language model alone."""
    options = {name: value for name, value in others.items() if name != "parse"}
    return cast(LanguageKeywords, options)


def _decompressed(data: bytes, resources: Resources) -> bytes:
    sink = io.BytesIO()
    options = {"model": resources.model, "adapter": resources.adapter, "dictionary": resources.dictionary}
    decompress_stream(
        io.BytesIO(data),
        sink,
        threads=resources.threads,
        limits=resources.limits,
        **options,  # type: ignore[arg-type]
    )
    return sink.getvalue()


def _read(source: bytes | str | os.PathLike[str]) -> tuple[str, bytes]:
    """Return the name and the content of a file, or bytes without a name."""
    if isinstance(source, bytes):
        return "", source
    path = path_of(source)
    return path.name, path.read_bytes()


def _explanation(
    blocks: Sequence[MeasuredBlock], span: tuple[int, int | None], model: Model, coded_size: int
) -> Explanation:
    """Collect what was measured of the blocks."""
    shown = restored(blocks)
    begin, end = _checked(span, len(shown))
    units, names = gather(blocks)
    wrappers = [block.wrappers for block in blocks if block.wrappers]
    counts = sum((Counter(found.counts) for found in wrappers), Counter[str]())
    segments = [segment for found in wrappers for segment in found.segments if segment.name]
    return Explanation(
        name="",
        level=_highest(blocks),
        model=_name_of(model, blocks),
        data=shown,
        span=(begin, end),
        raw_size=len(shown) - sum(found.growth for found in wrappers),
        coded_size=coded_size,
        blocks=tuple(map(_cost, blocks)),
        pieces=pieces_of(blocks, [place for segment in segments for place in segment[:2]]),
        units=units.within(begin, end),
        names=names,
        saved=_saved(blocks),
        wrappers=dict(counts.most_common()),
        segments=tuple(Section(segment.name, segment.start, segment.end) for segment in segments),
    )


def _highest(blocks: Sequence[MeasuredBlock]) -> int:
    """Return the highest level of the blocks, 0 if all are stored."""
    return max((block.level or 0 for block in blocks), default=0)


def _language_of_compared(level: int, model: Model, language: LanguageKeywords) -> LanguageKeywords:
    """Return the options of the language model for the compared level.

    Raises LevelError if the level does not exist, and OptionError if it uses no language model and one is named.
    """
    if not levels.level(level).needs_language_model:
        if model is not None:
            raise OptionError(f"level {level} uses no language model: compare models at levels 7 to 9")
        return LanguageKeywords()
    return language if model is None else LanguageKeywords(**{**language, "model": Path(model), "adapter": None})


def _name_of(model: Model, blocks: Sequence[MeasuredBlock]) -> str:
    """Return the name of the language model if one was named and coded a block."""
    return Path(model).name if model and any(block.block.codec == "tokenwise" for block in blocks) else ""


def is_compressed(data: bytes) -> bool:
    """Return whether data begin with the magic bytes of a .sqz file."""
    return data.startswith(container.MAGIC)


def passes(compressed: bool, compares: bool) -> int:
    """Return how often `progress` counts each raw byte."""
    return 2 - compressed + 2 * compares


def _compressed(
    data: bytes,
    level: int | None,
    threads: int | None,
    dictionary: DictionarySource,
    progress: Progress,
    others: Keywords,
) -> bytes:
    sink = io.BytesIO()
    options = {"threads": threads, "dictionary": dictionary, "progress": progress, **others}
    compress_stream(io.BytesIO(data), sink, level=level, verify=False, **options)  # type: ignore[arg-type]
    return sink.getvalue()


def _checked(span: tuple[int, int | None], size: int) -> tuple[int, int]:
    begin, end = span[0], size if span[1] is None else min(span[1], size)
    if not 0 <= begin <= end:
        raise OptionError(f"expected a range within {size} bytes, got one that begins at byte {begin}")
    return begin, end


def _cost(measured: MeasuredBlock) -> BlockCost:
    block, meter, places = measured.block, measured.recorder.meter, measured.places
    bits = float(meter.bits.sum(dtype=float)) if meter else 8.0 * block.raw_length
    return BlockCost(
        start=int(places[0]) if places.size else block.raw_offset,
        end=int(places[-1]) + 1 if places.size else block.raw_offset,
        size=places.size,
        codec=block.codec,
        content=str(measured.content) if meter or measured.wrappers else "stored",
        payload=block.payload_length,
        overhead=block.coded_length - block.payload_length,
        bits=8.0 * block.payload_length if measured.wrappers else bits,
    )


def _saved(blocks: Sequence[MeasuredBlock]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for block in blocks:
        if block.recorder.meter is not None:
            for name, bits in zip(block.recorder.parts, block.recorder.meter.saved.tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + bits
    return dict(sorted(((name, bits) for name, bits in sums.items() if bits), key=lambda item: -item[1]))
