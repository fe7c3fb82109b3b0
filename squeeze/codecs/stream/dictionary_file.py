"""The file of a dictionary: reading and writing it. docs/format.md specifies it.

Trained numbers are stored as differences from the untrained ones, in steps of fixed size, and coded by integers.py. So
numbers that did not change cost next to nothing.
"""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

from squeeze.codecs.bytewise import coder as bytewise, presets
from squeeze.codecs.content import Content
from squeeze.codecs.deep import initial_state
from squeeze.codecs.deep.arrays import DeepModel, build_model
from squeeze.codecs.deep.initial_state import Learned
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.recurrent import change as changes, weights
from squeeze.codecs.recurrent.change import Change
from squeeze.codecs.stream import container, integers, levels
from squeeze.errors import DictionaryError, SqueezeError
from squeeze.numerics.bitmodels import mixer
from squeeze.system.binary import read_exactly, read_varint, varint
from squeeze.system.documents import parse_object

MAGIC = b"\xf5SP"
VERSION = 1
SUFFIX = ".sqzp"
MAX_FILE = 1 << 24
MAX_TEXT = 1 << 20
Take = Callable[[int, int], np.ndarray]  # returns the next int64 matrix of these rows and columns
_TEXT_MODELS = presets.SMALL  # models that code the text
_FIELDS = {"level", "numerics", "content", "record", "text", "rows", "apm_rows", "changes_network", "parts"}
_COUNT = 1023  # mask of an adaptive map's count; the 22 bits above are its probability, of which 12 are kept
_STEP = np.float32(1 / 64)  # quantisation step of weights
_FINAL_STEP = np.float32(1 / 1024)  # quantisation step of the second layer's weights
_MOST_VISITS = 255


def preset_of(level: int, content: Content) -> DeepPreset:
    """Return the models of a level that takes a dictionary."""
    preset = levels.level(level).models(content.kind)
    assert isinstance(preset, DeepPreset)
    return preset


class Parsed(NamedTuple):
    """A dictionary's file after its header was checked."""

    header: dict[str, Any]
    parts: list[bytes]  # coded text and matrices

    @property
    def content(self) -> Content:
        return Content(self.header["content"], self.header["record"])

    @property
    def changes_network(self) -> bool:
        """True if the last parts change the byte network."""
        return bool(self.header["changes_network"])


def parse(data: bytes) -> Parsed:
    """Split a dictionary's file into its header and coded parts.

    Raises:
        DictionaryError: if it is not a dictionary of this version, or damaged.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise DictionaryError(f"not a dictionary: it does not begin with the mark of {SUFFIX} files")
    if len(data) < len(MAGIC) + 10 or len(data) > MAX_FILE:
        raise DictionaryError("the dictionary is damaged: its length is impossible")
    version = data[len(MAGIC)]
    if version != VERSION:
        raise DictionaryError(f"the dictionary's version {version} is unknown: use a newer squeeze, or train it again")
    if xxhash.xxh3_64_intdigest(data[:-8]) != int.from_bytes(data[-8:], "little"):
        raise DictionaryError("the dictionary is damaged: its checksum differs")
    file = io.BytesIO(data[:-8])
    file.seek(len(MAGIC) + 1)
    try:
        length, _ = read_varint(file)
        header = parse_object(read_exactly(file, min(length, container.MAX_HEADER)))
        _check(header)
        parts = [read_exactly(file, size) for size in header["parts"]]
        if file.read(1):
            raise ValueError("bytes after the last part")
    except (SqueezeError, ValueError, TypeError) as error:
        raise DictionaryError("not a dictionary that this version can use: train it again") from error
    return Parsed(header, parts)


def _check(header: Any) -> None:
    """Check the values of a header.

    Raises:
        ValueError: if a value is impossible.
    """
    right = (
        isinstance(header, dict)
        and set(header) == _FIELDS
        and all(
            type(header[name]) is int and 0 <= header[name] < 1 << 40 for name in set(header) - {"content", "parts"}
        )
        and header["numerics"] == container.NUMERICS
        and header["level"] in levels.LEVELS
        and levels.level(header["level"]).takes_dictionary
        and header["content"] in container.KINDS_OF_CONTENT
        and (header["content"] in container.WITH_RECORDS) == (1 <= header["record"] < container.MAX_RECORD)
        and header["text"] <= MAX_TEXT
        and header["changes_network"] in (0, 1)
        and (not header["changes_network"] or _has_network(header))
        and all(type(size) is int and 0 <= size <= MAX_FILE for size in header["parts"])
    )
    if not right:
        raise ValueError("impossible header")


def _has_network(header: dict[str, Any]) -> bool:
    return preset_of(header["level"], Content(header["content"], header["record"])).network


def to_bytes(level: int, content: Content, text: np.ndarray, known: Learned, change: Change | None = None) -> bytes:
    """Return a dictionary's file. Its numbers are rounded: use what `Dictionary.from_bytes` reads from it.

    Args:
        level: 4, 5 or 6.
        content: the kind of content.
        text: uint8 [n], which is read before each block.
        known: trained weights and maps.
        change: fine-tuned weights of the byte network, or None.
    """
    preset = preset_of(level, content)
    coded = bytewise.encode(text, _TEXT_MODELS[content.kind], content.record)
    parts = [coded or text.tobytes()]
    parts += [integers.encode(matrix) for matrix in matrices(known, preset)]
    parts += [integers.encode(matrix) for matrix in changes.matrices(change)] if change is not None else []
    header = {
        "level": level,
        "numerics": container.NUMERICS,
        "content": content.kind,
        "record": content.record,
        "text": text.size,
        "rows": known.rows.size,
        "apm_rows": known.apm_rows.size,
        "changes_network": int(change is not None),
        "parts": [len(part) for part in parts],
    }
    described = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    body = MAGIC + bytes([VERSION]) + varint(len(described)) + described + b"".join(parts)
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def _gaps(rows: np.ndarray) -> np.ndarray:
    return np.diff(rows, prepend=-1)[None]


def _rows(gaps: np.ndarray, count: int) -> np.ndarray:
    rows = np.cumsum(gaps[0]) - 1
    if rows.size and (gaps.min() < 1 or rows[-1] >= count):
        raise ValueError("impossible row")
    return rows


def matrices(known: Learned, preset: DeepPreset) -> Iterator[np.ndarray]:
    """Yield trained weights and maps as integer matrices, in the order of the file."""
    fresh = build_model(np.zeros(1, np.uint8), preset)
    yield _gaps(known.rows)
    yield known.visits.clip(0, _MOST_VISITS)[None]
    weights = np.rint((known.weights - fresh.weights[0]) / _STEP).astype(np.int64)
    weights[1:] -= weights[0]
    yield weights
    yield _gaps(known.apm_rows)
    yield (known.apms >> 20).astype(np.int64) - (mixer.IDENTITY >> 20)
    for fresh_map, trained in zip(initial_state.maps_of(fresh), known.maps, strict=True):
        before, after = fresh_map.reshape(-1, 256), trained.reshape(-1, 256)
        yield (after >> 20).astype(np.int64) - (before >> 20)
        yield (after & _COUNT).astype(np.int64) - (before & _COUNT)
    yield np.rint((known.finals - fresh.finals) / _FINAL_STEP).reshape(-1, fresh.logits.size)


def _unpack_maps(fresh: DeepModel, take: Take) -> list[np.ndarray]:
    """Return adaptive maps from their differences to untrained ones."""
    maps = []
    for before in (fresh_map.astype(np.int64) for fresh_map in initial_state.maps_of(fresh)):
        probability = (take(before.size // 256, 256).ravel() << 20) + (before & ~_COUNT)
        count = take(before.size // 256, 256).ravel() + (before & _COUNT)
        maps.append((probability.clip(0, (1 << 32) - 1) & ~_COUNT | count.clip(0, _COUNT)).astype(np.uint32))
    return maps


def unpack(
    file: Parsed, preset: DeepPreset, text: np.ndarray | None = None
) -> tuple[np.ndarray, Learned, Change | None]:
    """Decode a dictionary's parts.

    Args:
        file: header and parts.
        preset: the models.
        text: the text if it is known, which saves decoding it.

    Returns:
        the text uint8, trained weights, and the change of the byte network or None.

    Raises:
        ValueError: if the parts are invalid.
        SqueezeError: if they are damaged.
    """
    header, (coded, *matrices) = file.header, file.parts
    if text is None:
        text = np.frombuffer(bytearray(coded), np.uint8)
    if text.size != header["text"]:
        text = bytewise.decode(coded, header["text"], _TEXT_MODELS[header["content"]], header["record"])
    remaining = iter(matrices)

    def take(rows: int, columns: int) -> np.ndarray:
        return integers.decode(next(remaining), (rows, columns))

    known = assemble(header["rows"], header["apm_rows"], preset, take)
    change = _unpack_change(take) if file.changes_network else None
    if next(remaining, None) is not None:
        raise ValueError("too many parts")
    return text, known, change


def _unpack_change(take: Take) -> Change:
    return {name: take(*shape) for name, shape in changes.shapes(weights.pretrained_tensors()).items()}


def assemble(count: int, apm_count: int, preset: DeepPreset, take: Take) -> Learned:
    """Return trained weights and maps from integer matrices in the order of `matrices`.

    Args:
        count: rows of weight sets.
        apm_count: rows of APMs.
        preset: the models.
        take: returns the next matrix, by its rows and columns.

    Raises:
        ValueError: if the matrices are invalid.
    """
    fresh = build_model(np.zeros(1, np.uint8), preset)
    if not 1 <= count <= fresh.visits.size or apm_count > fresh.apms.shape[0]:
        raise ValueError("impossible number of rows")
    rows = _rows(take(1, count), fresh.visits.size)
    visits = take(1, rows.size)[0].clip(0, _MOST_VISITS).astype(np.int32)
    weights = take(rows.size, fresh.inputs.size)
    weights[1:] += weights[0]
    apm_rows = _rows(take(1, apm_count), fresh.apms.shape[0])
    apms = (take(apm_rows.size, mixer.APM_STEPS) << 20) + mixer.IDENTITY
    maps = _unpack_maps(fresh, take)
    finals = take(fresh.finals.size // fresh.logits.size, fresh.logits.size).ravel().astype(np.float32)
    return Learned(
        rows=rows,
        visits=visits,
        weights=fresh.weights[0] + weights.astype(np.float32) * _STEP,
        apm_rows=apm_rows,
        apms=apms.clip(0, (1 << 32) - 1).astype(np.uint32),
        maps=maps,
        finals=fresh.finals + finals * _FINAL_STEP,
    )
