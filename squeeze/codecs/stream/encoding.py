"""Coding a block: the plans to try, the smallest result, and its verification."""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from squeeze.codecs.bytewise import coder as bytewise
from squeeze.codecs.bytewise.presets import LARGE, Preset
from squeeze.codecs.content import Content, Medium
from squeeze.codecs.parse.tree import Node
from squeeze.codecs.proving import FAULTY
from squeeze.codecs.stream import blocks, container, levels, lines, media, opened, repeats, runs, sampling, split
from squeeze.codecs.stream.container import Coded
from squeeze.codecs.stream.copies import Copies
from squeeze.codecs.stream.cutting import Part
from squeeze.codecs.stream.decoding import Progress, decode_block, deep, report, scaled
from squeeze.codecs.stream.estimates import block_memory
from squeeze.codecs.stream.settings import Settings
from squeeze.errors import DamagedError, VerifyError
from squeeze.system.limits import Limits

SMALL = 1 << 12  # raw bytes below which a dictionary is used for any kind of content
_HEADER_COST = 80  # bytes that a coded block must save to pay for its header and index entry
_SHORT_COST = 2  # the same in a short stream, for the length of its payload
_SAMPLE = 1 << 16  # raw bytes of a sample that is coded by two plans, to choose one
_SLACK = 64  # bytes that a medium may lose on a sample, which may be nearly empty
_SAMPLE_OF_TABLE = 1 << 14  # the same of a larger table, which the network slows down, or of a larger image
_USUAL_CELL = 14  # bytes of most cells of a spreadsheet, for data without a record length
# From _LARGE raw bytes of text on, the language model's result is final if it is below this share of level 3's:
# level 6 made 0.69 of that, or more, of the large texts and sources of bench public.
_LARGE, _FAR_SMALLER = 1 << 19, 0.55


@dataclass(frozen=True)
class Plan:
    """A way to code a block. `of_text`: bool [bytes] of a split block, the bytes that the language model codes."""

    kind: int  # container.BYTEWISE, TOKENWISE or SPLIT
    content: Content
    of_text: np.ndarray | None = None


def encode_block(
    data: np.ndarray, content: Content | Node, settings: Settings, verify: bool = True, progress: Progress = None
) -> Coded | None:
    """Return a coded block, or None if storing it is no larger.

    Args:
        data: uint8 [n], the block.
        content: its kind of content, or the tree of its wrappers.
        settings: those of the stream.
        verify: decode the block again and compare.
        progress: is called with the number of raw bytes done since its last call.

    Raises:
        VerifyError: if the block does not decode to `data`.
    """
    if isinstance(content, Node):
        return _opened(data, content, settings, verify, progress)
    done, total = 0, data.size * (1 + verify)

    def tick(count: int) -> None:
        nonlocal done
        count = min(count, total - done)  # a plan that was verified at once may have lost to one that was not
        done += count
        report(progress, count)

    at_once = verify and settings.per_block > 1 and not settings.language and _pays_at_once(data.size, settings)
    coded = _encode_content(data, content, settings, tick, at_once)
    if coded and (verify or settings.bound) and not coded.is_verified:
        _verify(coded, data, settings, tick)
    tick(total)
    if coded is None:
        return None
    return coded if len(coded.payload) + (_SHORT_COST if settings.short else _HEADER_COST) <= data.size else None


def _pays_at_once(size: int, settings: Settings) -> bool:
    """Return whether a block is worth a thread that verifies it meanwhile, and there is memory for two models."""
    return size >= _SAMPLE and Limits().allows_memory(2 * block_memory(settings, container.BYTEWISE, size, size))


def _encode_content(
    data: np.ndarray, content: Content, settings: Settings, progress: Progress, verify: bool = False
) -> Coded | None:
    """Code data of one kind of content, with its runs apart, or return None if it is not shorter.

    `verify` lets models that can do so verify the block at the same time.
    """
    if medium := media.of_content(content):
        by_medium, is_smallest = _by_medium(data, content, medium, settings, progress)
        if by_medium and not is_smallest:
            usual = _encode_content(data, blocks.content(data), settings, None)
            return min(filter(None, (by_medium, usual)), key=lambda coded: len(coded.payload))
        if by_medium:
            return by_medium
        content = blocks.content(data)
    if settings.dictionary and data.size < SMALL and not blocks.is_packed(content):
        content = settings.dictionary.content
    found = None if settings.names_content else runs.find(data, content.record)
    if found:
        return _without_runs(data, found, content, settings, progress)
    return _smallest(candidates(data, content, settings), data, settings, progress, verify)


def encode_repeats(part: Part, settings: Settings, verify: bool = True, progress: Progress = None) -> Coded | None:
    """Return the coded block of a part with copies, or None if storing it is no larger; see `encode_block`."""
    assert part.copies
    tick = scaled(progress, part.data.size, max(part.rest.size, 1))
    coded = encode_block(part.rest, part.content, settings, verify, tick)
    if not part.rest.size:
        report(progress, part.data.size * (1 + verify))
    payload = repeats.to_bytes(part.copies, part.rest, coded)
    if verify:
        _verify_copies(payload, part.copies)
    if len(payload) + _HEADER_COST > part.data.size:
        return None
    if isinstance(coded, opened.OpenedBlock):
        return opened.OpenedBlock(container.REPEATS, payload, wrappers=coded.wrappers)
    return Coded(container.REPEATS, payload)


def _verify_copies(payload: bytes, copies: Copies) -> None:
    """Read the copies of a block again and compare."""
    try:
        same = copies.equals(repeats.read(payload, copies.size).copies)
    except DamagedError:
        same = False
    if not same:
        raise VerifyError(FAULTY)


def _opened(data: np.ndarray, root: Node, settings: Settings, verify: bool, progress: Progress) -> Coded | None:
    """Return a block with opened wrappers, or None if it is larger than the data."""
    tick = scaled(progress, data.size, opened.size_of(root))
    inner = replace(settings, short=False)

    def encode_plan(plan: np.ndarray) -> Coded | None:  # not by a language model, so that all can list it
        return _smallest(_without_language(plan, sampling.OTHER, settings), plan, settings, None)

    coded = opened.encode(root, encode_plan, lambda part, content: _encode_content(part, content, inner, tick))
    if len(coded.payload) > data.size:
        report(progress, data.size if verify else 0)
        return None
    if verify:
        _verify(coded, data, settings, progress, np.concatenate([node.own for node in root.nodes()]))
    return coded


def _by_medium(
    data: np.ndarray, content: Content, medium: Medium, settings: Settings, progress: Progress
) -> tuple[Coded | None, bool]:
    """Code a block by the model of its medium, unless other models make a sample, or all of it, smaller.

    Returns:
        the coded block, if any, and whether it surely is the smallest: a larger one than its sample promised is not.
    """
    assert settings.level
    region, level = medium.sample(data.size, content, _SAMPLE_OF_TABLE), settings.level.number
    sample = data[region[0] : region[1]]
    usual = _smallest(_without_language(sample, blocks.content(sample), settings), sample, settings, None)
    least = _length(usual, sample.size)
    is_sampled = sample.size < data.size
    if is_sampled and medium.coded_size(data, region, level) >= least + _SLACK:
        return None, True
    payload = medium.encode(data, content, level, progress if is_sampled else None)
    if payload is None or not (is_sampled or len(payload) < least):
        return None, True
    report(progress, 0 if is_sampled else data.size)
    return Coded(medium.block, payload), len(payload) * sample.size <= (least + _SLACK) * data.size


def candidates(data: np.ndarray, content: Content, settings: Settings) -> Iterator[Plan]:
    """Yield the plans for a block, the slowest first; none if it is stored.

    Args:
        data: uint8 [n], the block.
        content: its kind of content.
        settings: those of the stream.
    """
    texts = split.find(data) if settings.language and not settings.short else None
    if texts is not None:
        yield Plan(container.SPLIT, content, texts)
    elif settings.language and content.kind == "text":
        yield Plan(container.TOKENWISE, content)
        if settings.short:
            return  # a stream without the language model is a candidate of its own (compressor.py)
    yield from _without_language(data, content, settings)


def _without_language(data: np.ndarray, content: Content, settings: Settings) -> Iterator[Plan]:
    """Yield plans without a language model.

    Text that the byte network predicts badly may be smaller as `other`, and so may a table, since `other` has the
    network. A sample of a larger block decides. Another sample has decided before whether it is coded as cells.
    """
    if data.size == 0 or blocks.is_packed(content):
        return
    content = _as_cells(data, content, settings)
    kinds: tuple[Content, ...] = (content,)
    size = _SAMPLE
    if content.kind == "text" and is_unpredicted(data, settings):
        kinds = (content, Content("other"))
    elif content.kind == "table" and not settings.dictionary and levels.has_network(settings.level, "other"):
        kinds, size = (content, Content("other")), _SAMPLE if data.size <= _SAMPLE else _SAMPLE_OF_TABLE
    if len(kinds) > 1 and data.size > size:
        begin = (data.size - size) // 2
        sample = data[begin : begin + size]
        kinds = (min(kinds, key=lambda kind: _length(_bytewise(sample, kind, settings, None), size)),)
    for kind in kinds:
        yield Plan(container.BYTEWISE, kind)


def _as_cells(data: np.ndarray, content: Content, settings: Settings) -> Content:
    """Return cells in place of a table or other data, if it may be a spreadsheet and that makes a sample smaller."""
    if content.kind not in ("table", "other") or settings.dictionary or settings.names_content:
        return content
    if not levels.has_network(settings.level, "other") or not sampling.are_cells(data, content.record):
        return content
    begin = max(data.size - _SAMPLE_OF_TABLE, 0) // 2
    sample = data[begin : begin + _SAMPLE_OF_TABLE]
    kinds = (content, Content("cells", content.record or _USUAL_CELL))
    return min(kinds, key=lambda kind: _length(_bytewise(sample, kind, settings, None), sample.size))


def is_unpredicted(data: np.ndarray, settings: Settings) -> bool:
    """Return whether text would be coded with the byte network, which predicts `data` badly."""
    if settings.dictionary or settings.content or not levels.has_network(settings.level, "text"):
        return False

    return not deep().network_predicts(data)


def _without_runs(
    data: np.ndarray, found: runs.Runs, content: Content, settings: Settings, progress: Progress
) -> Coded:
    """Code a block without its runs, which are listed before it."""
    rest = found.rest(data)
    if found.removed > rest.size:
        content = blocks.content(rest)
    coded = _smallest(candidates(rest, content, settings), rest, settings, progress)
    report(progress, found.removed)
    begin = container.RUNS + found.to_bytes()
    if coded is None or len(coded.payload) > rest.size:
        return Coded(container.BYTEWISE, begin + container.RAW + rest.tobytes())
    return Coded(coded.kind, begin + coded.payload)


def _verify(
    coded: Coded, data: np.ndarray, settings: Settings, progress: Progress, guessed: np.ndarray | None = None
) -> None:
    """Decode a block again and compare; `guessed` are the opened bytes of one with opened wrappers."""
    known = data if guessed is None else guessed
    try:
        same = np.array_equal(decode_block(coded, data.size, settings, progress, known), data)
    except DamagedError:
        same = False
    if not same and settings.bound:
        raise VerifyError("llama.cpp did not compute the same numbers twice: use the backend exact, or other lanes")
    if not same:
        raise VerifyError(FAULTY)


def _smallest(
    plans: Iterable[Plan], data: np.ndarray, settings: Settings, progress: Progress, verify: bool = False
) -> Coded | None:
    """Return the smallest result of all plans, or None if none is shorter than the data; of equals one without a
    language model."""
    best, reported = None, False
    for plan in plans:
        if best and best.kind == container.TOKENWISE and _beats_level_3(best, data):
            break
        coded = _encode(plan, data, settings, None if reported else progress, verify)
        reported = True
        if coded and (best is None or _size_and_kind(coded) < _size_and_kind(best)):
            best = coded
    if not reported:
        report(progress, data.size)
    return best


def _size_and_kind(coded: Coded) -> tuple[int, bool]:
    return len(coded.payload), coded.kind in container.BY_LANGUAGE


def _beats_level_3(coded: Coded, data: np.ndarray) -> bool:
    """Return whether a large text is so small by the language model that no other plan can be smaller."""
    if data.size < _LARGE:
        return False
    fast = bytewise.encode(data, LARGE["text"])
    return fast is not None and len(coded.payload) < _FAR_SMALLER * len(fast)


def _encode(plan: Plan, data: np.ndarray, settings: Settings, progress: Progress, verify: bool) -> Coded | None:
    """Code a block by a plan, or return None if that is no shorter."""
    if plan.kind == container.SPLIT:
        assert plan.of_text is not None
        return _split(data, plan.content, plan.of_text, settings, progress)
    if plan.kind == container.TOKENWISE:
        return by_language(data, plan.content, settings, progress)
    return _bytewise(data, plan.content, settings, progress, verify)


def _bytewise(
    data: np.ndarray, content: Content, settings: Settings, progress: Progress, verify: bool = False
) -> Coded | None:
    """Code a block by the level's models for its kind of content; see `_encode_content` for `verify`."""
    assert settings.level
    if content.kind == "text" and not (settings.dictionary or settings.content):
        deep_models = not isinstance(settings.level.models("lines"), Preset)
        content = Content("lines") if lines.are_alike(data, deep_models) else content
    if content.is_filtered:
        data = data.copy()
        blocks.calls_to_absolute(data)
    preset = settings.level.models(content.kind)
    has_network = not isinstance(preset, Preset) and preset.network  # which has a thread of its own
    verify = verify and not (content.is_filtered or has_network)
    if isinstance(preset, Preset):
        coded = bytewise.encode(data, preset, content.record, progress, verify)
    else:
        start = settings.start(content, preset)
        coded = deep().encode(data, preset, content.record, progress, start, settings.per_block, verify)
    if coded is None:
        return None
    named = b"" if settings.names_content else container.content_bytes(content)
    return Coded(container.BYTEWISE, named + coded, verify)


def by_language(data: np.ndarray, content: Content, settings: Settings, progress: Progress) -> Coded | None:
    """Code text by the language model, or return None if that is no shorter.

    Args:
        data: uint8 [n], the text.
        content: written before the coded bytes.
        settings: those of the stream.
        progress: is called with the number of raw bytes done since its last call.
    """
    assert settings.language
    coded = settings.language.encode(data, settings.allotment.per_text, progress)
    return None if coded is None else Coded(container.TOKENWISE, container.content_bytes(content) + coded)


def _split(
    data: np.ndarray, content: Content, of_text: np.ndarray, settings: Settings, progress: Progress
) -> Coded | None:
    """Code the texts of a block by the language model, and the rest without it."""
    rest = data[~of_text]
    text = by_language(data[of_text], Content("text"), settings, progress)
    if text is None:
        report(progress, rest.size)
        return None
    return Coded(container.SPLIT, join(of_text, text, rest, settings, progress))


def join(of_text: np.ndarray, text: Coded, rest: np.ndarray, settings: Settings, progress: Progress) -> bytes:
    """Return the payload of a split block.

    Args:
        of_text: bool [bytes], bytes of texts.
        text: the coded texts.
        rest: uint8, the other bytes.
        settings: those of the stream.
        progress: is called with the number of raw bytes done since its last call.
    """
    plans = _without_language(rest, blocks.content(rest), settings)
    coded, kind, payload = _smallest(plans, rest, settings, progress), Content("other"), rest.tobytes()
    if coded:
        stream = io.BytesIO(coded.payload)
        found, _ = container.read_content(stream)
        if (shorter := stream.read()) and len(shorter) < rest.size:
            kind, payload = found, shorter
    return container.content_bytes(kind) + split.join(of_text, text.payload, payload)


def _length(coded: Coded | None, size: int) -> int:
    return size if coded is None else len(coded.payload)
