"""Every coding of the table: what it writes comes back whole and in parts, in memory and in a file."""

import re
from pathlib import Path

import numpy as np
import pytest

from squeeze.checkpoint.safetensors import Tensor
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import coders, codings, wrappers
from squeeze.packing.coding import Subject
from squeeze.packing.codings import CODINGS, LEVELS
from squeeze.packing.record import Record
from squeeze.packing.shared import LITERAL, Run, Table
from squeeze.packing.tensors.content import InMemory, Section
from squeeze.packing.tensors.float_writer import FileWriter, MemoryWriter
from squeeze.system.binary import Positional
from tests.makers.floats import as_bf16, bytes_of, weights

COUNT, WORDS = 9_000, 90 * 105
FORMAT = Path(__file__).parents[2] / "docs" / "format.md"


def words_of(width):
    """WORDS words of codes of so many bits, one after the other: of each number in the middle more than at the ends."""
    drawn = np.random.default_rng(2).normal(1 << (width - 1), (1 << width) / 10, 32 * WORDS // width)
    codes = np.clip(drawn, 0, (1 << width) - 1).astype(np.uint8)
    return np.packbits((codes[:, None] >> np.arange(width) & 1).astype(np.uint8).reshape(-1), bitorder="little")


def across(words, rows):
    """The matrix [rows, columns] of which these words are the columns."""
    return np.ascontiguousarray(words.view(np.uint32).reshape(-1, rows).T).view(np.uint8).reshape(-1)


FLOATS = bytes_of(as_bf16(weights(COUNT)))
SPARSE = bytes_of(as_bf16(np.where(np.arange(COUNT) % 3, weights(COUNT), 0)))
GRID = bytes_of(as_bf16(np.round(weights(COUNT) * 300) / 64))
QUANTISED = np.clip(weights(90 * 105 * 34) * 300 + 128, 0, 255).astype(np.uint8)
STEP = bytes_of((FLOATS.view(np.uint16) + np.arange(COUNT) % 3).astype(np.uint16))
HALF = bytes_of(as_bf16(weights(1 << 16)))  # of which the first half is in another tensor
TEXT = np.frombuffer(b"".join(b"token %d of the vocabulary\n" % (k * k) for k in range(40_000)), np.uint8)
BF16, I32 = Tensor("t", "BF16", (90, 100), 0, 2 * COUNT), Tensor("t", "I32", (90, 105), 0, 4 * WORDS)
# By the part of a coding's name that says what it is for: a tensor, its bytes, and those of the base.
CASES = {
    "stored": (BF16, np.random.default_rng(0).integers(0, 256, 2 * COUNT, np.uint8), None),
    "fixed": (BF16, FLOATS, None),
    "rans": (BF16, FLOATS, None),
    "archive": (BF16, FLOATS, None),
    "ulps": (BF16, STEP, FLOATS),
    "delta": (BF16, STEP, FLOATS),
    "zeros": (BF16, SPARSE, None),
    "grid": (BF16, GRID, None),
    "blocks": (Tensor("t", "Q8_0", (90, 105, 32), 0, QUANTISED.size), QUANTISED, None),
    "bytes": (I32, words_of(4), None),
    "threes": (I32, words_of(3), None),
    "threes-down": (I32, across(words_of(3), 90), None),
    "fives": (I32, words_of(5), None),
    "sevens": (I32, words_of(7), None),
    "text": (Tensor("t", "U8", (TEXT.size,), 0, TEXT.size), TEXT, None),
    "shared": (Tensor("t", "BF16", (256, 256), 0, HALF.size), HALF, HALF[: HALF.size // 2]),
}
TABLES = {"shared": Table((("", "u"),), (Run(0, 0, HALF.size // 2), Run(LITERAL, 0, HALF.size // 2)))}


def case_of(coding):
    return CASES[coding.name.partition("+")[0]]


def coded(coding, writer, threads=1):
    tensor, data, base = case_of(coding)
    table = TABLES.get(coding.name.partition("+")[0])
    return coding.encode(Subject.of(tensor, data, base, threads, table), writer)


def payload_of(coding):
    writer = MemoryWriter()
    writer.reserve(4 * WORDS)  # of what is stored
    return writer.payload(coded(coding, writer)).copy()


every = pytest.mark.parametrize("coding", CODINGS.values(), ids=list(CODINGS))


def test_every_class_is_in_the_table():
    classes = {getattr(module, name) for module in (coders, wrappers) for name in module.__all__}
    assert {type(coding) for coding in CODINGS.values()} == classes - {wrappers.Wrapper}


def test_every_coding_is_in_the_format_specification():
    rows = FORMAT.read_text().partition("| Coding | Payload |")[2].partition("\n\n")[0].splitlines()
    names = [name for row in rows if row.startswith("| `") for name in re.findall("`([a-z+-]+)`", row.split("|")[1])]
    assert sorted(names) == sorted(CODINGS)
    assert all(coding.name == name for name, coding in CODINGS.items())


@every
def test_every_coding_restores_whole_and_in_parts(coding):
    tensor, data, base = case_of(coding)
    payload, record = payload_of(coding), Record.of(tensor, coding)
    assert payload.size < data.size or coding.is_stored
    assert np.array_equal(record.decode(payload.copy(), base, 2), data)
    content = record.decode_parts(InMemory(payload), None if base is None else InMemory(base), 2)
    assert content.size == data.size
    for begin, end in ((0, data.size), (4, 8), (data.size - 400, data.size)):
        out = np.empty(end - begin, np.uint8)
        content.fill(begin, out)
        assert np.array_equal(out, data[begin:end])


@every
def test_every_coding_writes_the_same_bytes_to_a_file(coding, tmp_path):
    with (tmp_path / "payload").open("w+b") as file:
        size = coded(coding, FileWriter(Positional(file), 5), threads=3)
    assert (tmp_path / "payload").read_bytes()[5 : 5 + size] == payload_of(coding).tobytes()


@every
def test_a_truncated_payload_is_damaged(coding):
    tensor, _, base = case_of(coding)
    payload, record = payload_of(coding), Record.of(tensor, coding)
    if coding.is_stored:
        return  # the description tells its size
    whole, part = payload[:8].copy(), Section(InMemory(payload), 0, 8)
    with pytest.raises(DamagedError):
        record.decode(whole, base, 1)
    with pytest.raises(DamagedError):
        record.decode_parts(part, None if base is None else InMemory(base), 1).fill(0, np.empty(8, np.uint8))


@pytest.mark.parametrize("coding", [one for one in CODINGS.values() if one.is_difference], ids=lambda one: one.name)
def test_a_difference_needs_a_base_of_its_size(coding):
    tensor, data, _ = case_of(coding)
    record = Record.of(tensor, coding)
    for other in (None, data[:-2]):
        with pytest.raises(FormatError, match="the base has no such tensor"):
            record.decode(payload_of(coding), other, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_a_level_takes_the_first_coding_that_pays(level, name):
    tensor, data, base = CASES[name]
    found, payload = codings.encode_in_memory(Subject.of(tensor, data, base, 1, TABLES.get(name)), level)
    entropy = "archive" if level == "archive" else "rans"
    wanted = {"stored": "stored", "text": "text", "ulps": "delta+rans" if level == "fast" else "ulps"}
    wanted |= dict.fromkeys(("fixed", "rans", "archive"), "fixed" if level == "fast" else entropy)
    wanted |= {"delta": wanted["ulps"], "shared": f"shared+{wanted['rans']}"}
    assert found.name == wanted.get(name, f"{name}+{entropy}")
    assert np.array_equal(Record.of(tensor, found).decode(payload, base, 1), data)
