"""Training a dictionary on sample files.

Some samples become the dictionary's text, which is read before every block. The others are coded one by one, as files
that are compressed with that text, and train mixers and adaptive maps. So these learn how far to trust a text that has
not seen the file; coding the text itself would teach them to trust it always.
"""

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from squeeze.codecs.content import Content
from squeeze.codecs.deep import coder as deep, initial_state
from squeeze.codecs.deep.arrays import DeepModel
from squeeze.codecs.deep.initial_state import Learned, Start, initial_model
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent import change as changes
from squeeze.codecs.recurrent.change import Change
from squeeze.codecs.stream import blocks, levels, sampling
from squeeze.codecs.stream.dictionary import Dictionary, built_in
from squeeze.codecs.stream.dictionary_file import MAX_TEXT, to_bytes
from squeeze.errors import DictionaryError, LevelError
from squeeze.numerics.bitmodels import coder as arithmetic, mixer
from squeeze.system import files
from squeeze.system.storage import path_of

LEVEL = 5
TEXT_SIZE = 112 << 10
LEARN_SIZE = 512 << 10
_PIECE = 1 << 14  # bytes: a longer sample is cut
_PIECES = 16  # fewest pieces that samples are cut into
_LEAST = 1 << 10  # fewest bytes of samples
_MOST = 1 << 26  # most bytes of samples; more are sampled evenly
_ROWS, _APM_ROWS = 4096, 4096  # the most that a dictionary keeps
_REPEATED = 1 << 17  # bytes below which samples are coded more than once

Progress = Callable[[int], None] | None


def train(
    samples: Iterable[bytes | str | os.PathLike[str]],
    out: str | os.PathLike[str] | None = None,
    *,
    level: int = LEVEL,
    text_size: int = TEXT_SIZE,
    learn_size: int = LEARN_SIZE,
    overwrite: bool = False,
    progress: Progress = None,
) -> Dictionary:
    """Train a dictionary, for `compress(..., dictionary=...)`, on samples of the files to compress.

    The same samples give the same dictionary on every machine.

    Args:
        samples: bytes, or paths or URLs of files.
        out: path of the dictionary's file, or None.
        level: 4, 5 or 6.
        text_size: most bytes of samples in its text.
        learn_size: most bytes of samples that are coded; both are taken evenly from all samples.
        overwrite: replace an existing file.
        progress: is called with the number of bytes coded since its last call.

    Raises:
        LevelError: if the level takes no dictionary.
        DictionaryError: if samples are too few, or already compressed.
    """
    check(level, text_size, learn_size)
    samples = list(samples)
    if out is not None:
        files.check_target(path_of(out), [path_of(one) for one in samples if not isinstance(one, bytes)], overwrite)
    coded = train_on_pieces(level, *sample_pieces(samples), text_size, learn_size, progress)
    if out is not None:
        with files.replacing(path_of(out), overwrite=overwrite) as file:
            file.write(coded)
    return Dictionary.from_bytes(coded)


def check(level: int, text_size: int, learn_size: int) -> None:
    """Check the options of `train`.

    Args:
        level: 4, 5 or 6.
        text_size: most bytes of samples in the text.
        learn_size: most bytes of samples that are coded.

    Raises:
        LevelError: if the level takes no dictionary.
        DictionaryError: if a size is out of range.
    """
    if level not in levels.LEVELS or not levels.LEVELS[level].takes_dictionary:
        raise LevelError(f"a dictionary needs one of the levels 4 to 6, got {level}")
    if not 0 <= text_size <= MAX_TEXT:
        raise DictionaryError(f"a dictionary's text must have from 0 to {MAX_TEXT} bytes, got {text_size}")
    if learn_size < 1:
        raise DictionaryError(f"a dictionary needs at least 1 byte to learn from, got {learn_size}")


def train_on_pieces(
    level: int,
    content: Content,
    pieces: list[np.ndarray],
    text_size: int,
    learn_size: int,
    progress: Progress = None,
) -> bytes:
    """Return the file of a dictionary that is trained on pieces of samples.

    Args:
        level: 4, 5 or 6.
        content: kind of content of the samples.
        pieces: uint8 arrays.
        text_size: most bytes of samples in the text.
        learn_size: most bytes of samples that are coded.
        progress: is called with the number of bytes coded since its last call.
    """
    text, others = split_pieces(pieces, text_size)
    whole = sum(piece.size for piece in pieces) <= text_size
    return make(level, content, TrainingPieces(text, others, pieces if whole else text), learn_size, None, progress)


class TrainingPieces(NamedTuple):
    """Pieces of samples for a dictionary."""

    text: list[np.ndarray]  # read before the others are coded
    lessons: list[np.ndarray]  # coded, to train on
    dictionary_text: list[np.ndarray]  # the text of the dictionary


def make(
    level: int,
    content: Content,
    lessons: TrainingPieces,
    learn_size: int,
    change: Change | None,
    progress: Progress = None,
) -> bytes:
    """Return a dictionary's file.

    Args:
        level: 4, 5 or 6.
        content: kind of content of the samples.
        lessons: pieces of samples.
        learn_size: most bytes that are coded.
        change: fine-tuned weights of the byte network, or None.
        progress: is called with the number of bytes coded since its last call.
    """
    preset = levels.LEVELS[level].models(content.kind)
    assert isinstance(preset, DeepPreset)
    memory = initial_state.read(_joined(lessons.text), preset, content.record) if lessons.text else None
    start = Start(memory, built_in(preset), changes.network(change))
    known = learn(lessons.lessons, learn_size, preset, content.record, start, progress)
    return to_bytes(level, content, _joined(lessons.dictionary_text), known, change)


def sample_pieces(samples: Iterable[bytes | str | os.PathLike[str]]) -> tuple[Content, list[np.ndarray]]:
    """Return the kind of content of samples, and pieces of them as models see them; many bytes are sampled evenly.

    Raises:
        DictionaryError: if they are too few, or already compressed.
    """
    data = _sampled([sample if isinstance(sample, bytes) else path_of(sample) for sample in samples])
    content = _content(data)
    return content, _pieces(data, content)


def _sampled(samples: list[bytes | Path]) -> list[bytes]:
    """Return all samples, or evenly chosen pieces if they are too many bytes to hold. Short samples stay whole."""
    sizes = [len(sample) if isinstance(sample, bytes) else sample.stat().st_size for sample in samples]
    whole = sum(sizes)
    if whole <= _MOST:
        return [sample if isinstance(sample, bytes) else sample.read_bytes() for sample in samples]
    seen, taken, found = 0, 0, []
    for sample, size in zip(samples, sizes, strict=True):
        starts = []
        for start in range(0, size, _PIECE):
            length = min(_PIECE, size - start)
            seen += length
            if (taken + length) * whole <= _MOST * seen:
                taken += length
                starts.append(start)
        found += _pieces_at(sample, starts) if starts else []
    return found


def _pieces_at(sample: bytes | Path, starts: list[int]) -> list[bytes]:
    """Read the pieces of a sample that begin at some offsets."""
    with io.BytesIO(sample) if isinstance(sample, bytes) else sample.open("rb") as file:
        pieces = []
        for start in starts:
            file.seek(start)
            pieces.append(file.read(_PIECE))
    return pieces


def _content(data: list[bytes]) -> Content:
    joined = np.frombuffer(b"".join(data), np.uint8)
    if joined.size < _LEAST:
        raise DictionaryError(f"a dictionary needs at least {_LEAST} bytes of samples")
    sizes: dict[Content, int] = {}
    for start, end, content in blocks.regions(joined):
        sizes[content] = sizes.get(content, 0) + end - start
    content = max(sizes, key=lambda content: sizes[content])
    if blocks.is_packed(content):
        raise DictionaryError("the samples are compressed or encrypted already: there is nothing to learn from them")
    if content.record > max(map(len, data)):  # a distance between samples, of which none holds a record
        return min((Content("text"), sampling.OTHER), key=lambda one: sampling.coded_size(joined[:_PIECE], one))
    return content


def _pieces(data: list[bytes], content: Content) -> list[np.ndarray]:
    """Cut long samples, and apply the filter of executables."""
    size = min(max(sum(map(len, data)) // _PIECES, 64), _PIECE)
    size = -(-size // max(content.record, 1)) * max(content.record, 1)
    pieces = []
    for sample in data:
        for start in range(0, len(sample), size):
            piece = np.frombuffer(bytearray(sample[start : start + size]), np.uint8)
            if content.kind == "executable":
                blocks.calls_to_absolute(piece)
            if content.record:
                piece = piece[: piece.size // content.record * content.record]
            if piece.size:
                pieces.append(piece)
    return pieces


def split_pieces(pieces: list[np.ndarray], text_size: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Divide pieces into those of the text and the others, interleaved in the ratio of `text_size`."""
    total = sum(piece.size for piece in pieces)
    share = min(text_size / total, 0.5)
    text, others, seen_size, taken_size = [], [], 0, 0
    for piece in pieces:
        seen_size += piece.size
        if taken_size + piece.size <= share * seen_size:
            text.append(piece)
            taken_size += piece.size
        else:
            others.append(piece)
    return text, others


def _joined(pieces: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.uint8), *pieces])


def learn(
    pieces: list[np.ndarray],
    size: int,
    preset: DeepPreset,
    record: int,
    start: Start,
    progress: Progress = None,
    apm_rows: int = _APM_ROWS,
) -> Learned:
    """Code about `size` bytes of pieces, taken evenly, and return the trained weights and maps.

    Args:
        pieces: uint8 arrays.
        size: bytes to code.
        preset: the models.
        record: length of a record in bytes for tables, or 0.
        start: what models start with.
        progress: is called with the number of bytes coded since its last call.
        apm_rows: most rows of APMs to keep.
    """
    every = max(round(sum(piece.size for piece in pieces) / size), 1)
    chosen = pieces[every // 2 :: every] or pieces[:1]
    total = max(sum(piece.size for piece in chosen), 1)
    passes = min(max(_REPEATED // total, 1), 3)
    model = initial_model(start.text, preset, record, start)
    visits, apms = model.visits.copy(), model.apms.copy()
    for piece in chosen * passes:
        job = deep.prepare(piece, np.zeros(2 * piece.size + 256, np.uint8), preset, record, start)
        model = initial_state.sharing(job.model, model)
        arithmetic.start_encoder(job.coder)
        deep.code(job._replace(model=model), job.begin, model.data.size, False, deep.UNKNOWN, None)
        if progress:
            progress(piece.size)
    return _gathered(model, visits, apms, apm_rows)


def _gathered(model: DeepModel, visits: np.ndarray, apms: np.ndarray, apm_count: int) -> Learned:
    """Return a model's weights and maps, with the rows that were used or moved most since it had these visits and
    maps."""
    width = model.inputs.size
    used = model.visits - visits
    used[0] += 1  # other rows start as copies of it, so it is always kept
    rows = _first(used, _ROWS)
    before, apms = apms ^ mixer.IDENTITY, model.apms ^ mixer.IDENTITY
    apm_rows = _first(np.abs(apms.astype(np.int64) - before).sum(1), apm_count)
    return Learned(
        rows=rows,
        visits=model.visits[rows],
        weights=model.weights.reshape(-1, width)[rows],
        apm_rows=apm_rows,
        apms=apms[apm_rows],
        maps=initial_state.maps_of(model),
        finals=model.finals,
    )


def _first(sizes: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest sizes that are not 0, ascending; of equals the first."""
    order = np.argsort(-sizes.astype(np.int64), kind="stable")[:count]
    return np.sort(order[sizes[order] > 0])
