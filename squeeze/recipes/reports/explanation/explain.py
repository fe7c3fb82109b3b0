"""`explain`: compress, decode with a meter, and put together what it measured."""

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from squeeze.codecs.stream import container, levels
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.measuring import MeasuredBlock, measure, restored
from squeeze.codecs.stream.resources import DictionarySource, LanguageKeywords, Resources
from squeeze.errors import LevelError, OptionError
from squeeze.recipes.reports.explanation.explanation import BlockCost, Explanation
from squeeze.recipes.reports.explanation.units import gather
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
    **language: Unpack[LanguageKeywords],
) -> Explanation:
    """Measure what every byte of a file costs at a level, at levels 7 to 9 every token of a text, and why.

    `source` is bytes, or a file's path or URL; what is a .sqz file is explained as it was written, and takes no level.
    The costs are those of the coder that decodes the file: their sum is the size of the coded blocks, but for a few
    bytes of each. `span` is the first byte that is shown and the one after the last; all before it is coded all the
    same. `against` is a level to compare with, `against_model` a language model, at that level or the same one.
    `threads`, `dictionary`, `limits` and the options of a language model are those of `compress_stream` and
    `decompress_stream`.
    `progress(n)` is told of n more bytes coded or measured, `passes` times each.

    A decision of which nothing is known costs one bit. What the mixed prediction saves of that is shared among its
    inputs in proportion to what each adds to the logit (integrated gradients: Sundararajan, Taly and Yan 2017,
    arXiv:1703.01365). `saved` and `units.shares` are such bits; negative ones were wasted.

    The result has `units`, arrays of what was measured, `bits_of_bytes`, the totals `blocks`, `by_content`, `by_class`,
    `lines` and `saved`, and gives itself away by `as_json()`, `to_html()` and `table()`.

    Raises LevelError, OptionError for a span that is none and for a language model at a level without one, and what
    compressing and decompressing raise.

    >>> explanation = squeeze.explain(b"Kind words are worth much and cost little. " * 9, level=1)
    >>> round(explanation.bits / 8) <= explanation.coded_size
    True
    """
    name, data = _read(source)
    compressed = is_compressed(data)
    if compressed and (level is not None or any(language.get(name) for name in _WRITTEN)):
        raise LevelError("a .sqz file says how it was written: leave out the level, lanes, window and backend")
    compares = against is not None or against_model is not None
    beside = against if against is not None or compressed else level or levels.DEFAULT  # None: that of the file
    if compares and beside is not None:
        _language_beside(beside, against_model, language)
    if not compressed:
        _checked(span, len(data))
    coded = data if compressed else _compressed(data, level, threads, dictionary, progress, language)
    resources = Resources(threads, language.get("model"), dictionary, limits or Limits(), language.get("adapter"))
    blocks = list(measure(io.BytesIO(coded), resources, None if compressed else data, progress))
    raw = restored(blocks) if compressed else data
    begin, end = _checked(span, len(raw))
    other = None
    if compares:
        beside = _highest(blocks) if beside is None else beside
        rest = _language_beside(beside, against_model, language)
        other = explain(raw, beside, span=span, threads=threads, limits=limits, progress=progress, **rest)
    return _explanation(
        blocks, raw, (begin, end), name=name, model=language.get("model"), coded_size=len(coded), against=other
    )


def _read(source: bytes | str | os.PathLike[str]) -> tuple[str, bytes]:
    """Return the name and the content of a file, or bytes without a name."""
    if isinstance(source, bytes):
        return "", source
    path = path_of(source)
    return path.name, path.read_bytes()


def _explanation(
    blocks: Sequence[MeasuredBlock],
    raw: bytes,
    span: tuple[int, int],
    *,
    name: str,
    model: Model,
    coded_size: int,
    against: Explanation | None,
) -> Explanation:
    """Put together what was measured of the blocks that `raw` is of."""
    units, names = gather(blocks)
    return Explanation(
        name=name,
        level=_highest(blocks),
        model=_name_of(model, blocks),
        data=raw,
        span=span,
        coded_size=coded_size,
        blocks=tuple(map(_cost, blocks)),
        units=units.within(*span),
        names=names,
        saved=_saved(blocks),
        against=against,
    )


def _highest(blocks: Sequence[MeasuredBlock]) -> int:
    """Return the level of blocks; 0 where all are stored."""
    return max((block.level or 0 for block in blocks), default=0)


def _language_beside(level: int, model: Model, language: LanguageKeywords) -> LanguageKeywords:
    """The options of a language model at the level that is compared. Raises LevelError, and OptionError where a model
    is named and the level uses none."""
    if not levels.level(level).needs_language_model:
        if model is not None:
            raise OptionError(f"level {level} uses no language model: compare models at levels 7 to 9")
        return LanguageKeywords()
    return language if model is None else LanguageKeywords(**{**language, "model": Path(model), "adapter": None})


def _name_of(model: Model, blocks: Sequence[MeasuredBlock]) -> str:
    """The name of a language model that was named, and that has coded a block."""
    return Path(model).name if model and any(block.block.codec == "tokenwise" for block in blocks) else ""


def is_compressed(data: bytes) -> bool:
    """Whether it begins as a .sqz file does."""
    return data.startswith(container.MAGIC)


def passes(compressed: bool, compares: bool) -> int:
    """How often `progress` is told of each raw byte."""
    return 2 - compressed + 2 * compares


def _compressed(
    data: bytes,
    level: int | None,
    threads: int | None,
    dictionary: DictionarySource,
    progress: Progress,
    language: LanguageKeywords,
) -> bytes:
    sink = io.BytesIO()
    options = {"threads": threads, "dictionary": dictionary, "progress": progress, **language}
    compress_stream(io.BytesIO(data), sink, level=level, verify=False, **options)  # type: ignore[arg-type]
    return sink.getvalue()


def _checked(span: tuple[int, int | None], size: int) -> tuple[int, int]:
    begin, end = span[0], size if span[1] is None else min(span[1], size)
    if not 0 <= begin <= end:
        raise OptionError(f"the range begins at byte {begin}, and there are {size} bytes: choose one within")
    return begin, end


def _cost(measured: MeasuredBlock) -> BlockCost:
    block, meter = measured.block, measured.recorder.meter
    return BlockCost(
        start=int(measured.places[0]) if measured.places.size else block.raw_offset,
        end=int(measured.places[-1]) + 1 if measured.places.size else block.raw_offset,
        size=measured.places.size,
        codec=block.codec,
        content=str(measured.content) if meter else "stored",
        payload=block.payload_length,
        overhead=block.coded_length - block.payload_length,
        bits=float(meter.bits.sum(dtype=float)) if meter else 8.0 * block.raw_length,
    )


def _saved(blocks: Sequence[MeasuredBlock]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for block in blocks:
        if block.recorder.meter is not None:
            for name, bits in zip(block.recorder.parts, block.recorder.meter.saved.tolist(), strict=True):
                sums[name] = sums.get(name, 0.0) + bits
    return dict(sorted(((name, bits) for name, bits in sums.items() if bits), key=lambda item: -item[1]))
