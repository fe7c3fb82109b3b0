"""Sections 3 to 7 of docs/format.md are enough to decode what section 7 codes: a decoder written from them alone."""

import io
import itertools

import numpy as np
import pytest

import squeeze
from squeeze.codecs.content import CODES
from squeeze.codecs.deep import coder as deep
from squeeze.codecs.recurrent import weights
from squeeze.codecs.stream import container, dictionary, integers, levels
from squeeze.codecs.stream.index import read_index
from tests.golden import samples
from tests.makers import inputs, objects, programs, sheets
from tests.makers.cases import all_slow_but
from tests.references import naive_dictionary, naive_recurrent
from tests.references.naive_deep import FORMAT, Decoder

# Streams to decode.

TEXT = (
    b'<p class="a">The first Word of a line, and (more) words {in [it]} = 12.5;</p>\n'
    b'<p class="b">The first Word of a line, and (some) more: ((((((((((((((((((</p>\n'
    b'<p class="b">The first Word caf\xc3\xa9 of a line, and (some) words {in [it]}</p>\n'
)
LOG = (
    b"2026-11-09 10:59:58 GET /a/b?c=1 200 99 caf\xc3\xa9\n2026-11-09 10:59:59 GET /a/cc?c=2 200 102\n\n"
    b"2026-11-09 11:00:00 GET /a/cc?c=3; 200 105\nkey: 1, 999\nkey: 2, 1998\nkey: 3, 12345678901234567890\nkey: 4, 1\n"
    b"12:01 unpacks lib-one:all 1.2-3\n12:01 has lib-one:all 1.2-3\n"
    b"12:02 unpacks lib-two 4.5\n12:02 has lib-two 4.5\n12:02 unpacks x 6\n"
    b"12:03 has x 6\n12:03 unpacks y 7\n12:04 has y 7\n12:04 has z 8\n"
)
JSON = (
    b'{"user": {"id": 1, "name": "a \\"b: c"}, "x": [[[[[[[[[[[[[[[[[{7: 1}]]]]]]]]]]]]]]]]]]}, "y": 2\n'
    b'{"user": {"id": 2, "name": "a \\"b: d"}}, "z = 0\na = 1 0 2 3 4 5 6 7 8 9 a b c d e f g h\na = 2 0 2 3\n'
)
BINARY = (
    bytes(20) + b"\xe8\x10\x00\x00\x00\x89\xe5\x0f\x85\x20\x00\x00\x00\xff\xfe\x80" * 12 + bytes(range(100, 130)) * 2
)


def is_written_as_specified(raw, level, kind):
    """Decode a file of one bytewise block by the specification, and compare."""
    coded = squeeze.compress(raw, level, verify=False)
    (stream,) = read_index(io.BytesIO(coded))
    (block,) = stream.blocks
    payload = coded[block.coded_offset + block.coded_length - block.payload_length :][: block.payload_length]
    content, begin = container.read_content(io.BytesIO(payload))
    assert (block.kind, block.raw_length) == (container.BYTEWISE, len(raw))
    assert content.kind == kind
    decoder = Decoder(stream.header["level"], content.kind, content.record, len(raw))
    return decoder.decode(payload[begin:]) == raw


def is_read_as_specified(raw, level, kind, record=0, bare=False):
    """Write a block by the models of a level, decode it by the specification, and compare."""
    row = levels.bare(levels.level(level)) if bare else levels.level(level)
    preset = row.models(kind)
    start = dictionary.built_in_start(preset) if preset.warm_start else None
    coded = deep.encode(np.frombuffer(raw, np.uint8), preset, record, start=start)
    return Decoder(level, kind, record, len(raw), bare=bare).decode(coded) == raw


@pytest.mark.parametrize(
    ("kind", "level"),
    all_slow_but([("text", 4), ("other", 5), ("text", 6)], itertools.product(["text", "other"], [4, 5, 6])),
)
def test_files_decode_as_they_are_specified(kind, level):
    assert is_written_as_specified(TEXT if kind == "text" else BINARY, level, kind)


@pytest.mark.parametrize("level", all_slow_but([4, 6], [4, 5, 6]))
@pytest.mark.parametrize("raw", [LOG, JSON], ids=["log", "json"])
def test_lines_decode_as_they_are_specified(raw, level):
    assert is_read_as_specified(raw, level, "lines")


@pytest.mark.parametrize("level", [4, 5, 6])
def test_tables_decode_as_they_are_specified(level):
    assert is_read_as_specified(inputs.records(6), level, "table", 24)


@pytest.mark.parametrize("level", [4, 5, 6])
def test_cells_decode_as_they_are_specified(level):
    assert is_read_as_specified(sheets.sheet(2, 1, columns=16), level, "cells", 13)


@pytest.mark.parametrize(
    "matrix",
    [
        lambda part, *shape: integers.decode(part, shape),
        pytest.param(naive_dictionary.matrix, marks=pytest.mark.slow),
    ],
    ids=["quick", "naive"],
)
def test_files_of_a_dictionary_that_changes_the_network_decode_as_they_are_specified(matrix):
    file = samples.tuned_dictionary()
    coded = squeeze.compress(raw := samples.PAGE % 77, dictionary=squeeze.Dictionary.from_bytes(file))
    block = read_index(io.BytesIO(coded))[0].blocks[0]
    fresh = Decoder(5, "text", 0, len(raw))
    logits = -(-(fresh.sets + 1) // 16) * 16
    maps = [256 * fresh.n, 512 * fresh.n, 512 * len(fresh.matches), 32 * 192]
    known, added = naive_dictionary.read(file, fresh.weights[0, 0].size, logits, maps, matrix)
    decoder = Decoder(5, "text", 0, len(raw), (known, naive_recurrent.changed(added)))
    assert decoder.decode(coded[-block.payload_length :]) == raw


@pytest.mark.parametrize(
    ("kind", "level"),
    all_slow_but([("other", 4), ("text", 5), ("other", 6)], itertools.product(["text", "other"], [4, 5, 6])),
)
def test_bare_blocks_decode_as_they_are_specified(kind, level):
    assert is_read_as_specified(TEXT[:90] if kind == "text" else BINARY[:110], level, kind, bare=True)


@pytest.mark.parametrize(("raw", "kind"), [(TEXT, "text"), (BINARY, "other")], ids=["text", "binary"])
def test_blocks_that_are_not_tokenwise_decode_as_they_are_specified(raw, kind):
    """Use the models of level 6."""
    assert is_read_as_specified(raw[:90], 8, kind)


@pytest.mark.parametrize("level", [4, 5, 6])
def test_executables_decode_as_they_are_specified(level):
    """Use the models of level 5, without the network."""
    assert is_read_as_specified(BINARY[:110], level, "executable")


@pytest.mark.parametrize("kind", CODES)
def test_code_of_each_machine_decodes_as_it_is_specified(kind):
    machine = kind.removesuffix(" code")
    raw = programs.riscv_code(160, 0) if machine == "RISC-V" else objects.object_files()[f"ELF {machine}"][64:224]
    assert is_read_as_specified(raw, 4, kind, 2)


@pytest.mark.parametrize("level", [5, 6])
def test_code_decodes_as_it_is_specified(level):
    assert is_read_as_specified(objects.object_file(2, True, False)[52:150], level, "SPARC code", 4)


def test_the_network_is_the_specified_one():
    assert f"`{weights.FILE.name}`" in FORMAT.read_text() and f"`0x{weights.CHECKSUM:016x}`" in FORMAT.read_text()
