"""Sections 3 to 7 of docs/format.md are enough to decode what section 7 codes: a decoder written from them alone."""

import io

import numpy as np
import pytest

import squeeze
from squeeze.codecs.deep import coder as deep
from squeeze.codecs.recurrent import weights
from squeeze.codecs.stream import built_in, container, integers, levels
from squeeze.codecs.stream.index import read_index
from tests.golden import samples
from tests.makers import inputs
from tests.references import naive_dictionary, naive_recurrent
from tests.references.naive_deep import FORMAT, Decoder

# Streams to decode.

TEXT = (
    b'<p class="a">The first Word of a line, and (more) words {in [it]} = 12.5;</p>\n'
    b'<p class="b">The first Word of a line, and (some) more: ((((((((((((((((((</p>\n'
    b'<p class="b">The first Word caf\xc3\xa9 of a line, and (some) words {in [it]}</p>\n'
)
BINARY = (
    bytes(20) + b"\xe8\x10\x00\x00\x00\x89\xe5\x0f\x85\x20\x00\x00\x00\xff\xfe\x80" * 9 + bytes(range(100, 130)) * 2
)


def is_written_as_specified(raw, level, kind):
    """Whether a file of one bytewise block decodes as it is specified."""
    coded = squeeze.compress(raw, level, verify=False)
    (stream,) = read_index(io.BytesIO(coded))
    (block,) = stream.blocks
    payload = coded[block.coded_offset + block.coded_length - block.payload_length :][: block.payload_length]
    content, begin = container.read_content(io.BytesIO(payload))
    assert (block.kind, block.raw_length) == (container.BYTEWISE, len(raw))
    assert content.kind == kind
    decoder = Decoder(stream.header["level"], stream.header["numerics"], content.kind, content.record, len(raw))
    return decoder.decode(payload[begin:]) == raw


def is_read_as_specified(raw, level, numerics, kind, record):
    """Whether what the models of a level write decodes as they are specified."""
    preset = levels.of_file(level, numerics).models(kind)
    start = built_in.start(preset) if preset.taught else None
    coded = deep.encode(np.frombuffer(raw, np.uint8), preset, record, start=start)
    return Decoder(level, numerics, kind, record, len(raw)).decode(coded) == raw


@pytest.mark.parametrize("level", [4, 5, 6])
@pytest.mark.parametrize(("raw", "kind"), [(TEXT, "text"), (BINARY, "other")], ids=["text", "binary"])
def test_files_decode_as_they_are_specified(raw, kind, level):
    assert is_written_as_specified(raw, level, kind)


@pytest.mark.parametrize("level", [4, 5, 6])
def test_tables_decode_as_they_are_specified(level):
    assert is_read_as_specified(inputs.records(6), level, levels.LEVELS[level].numerics, "table", 24)


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
    fresh = Decoder(5, 7, "text", 0, len(raw))
    logits = -(-(fresh.sets + 1) // 16) * 16
    maps = [256 * fresh.n, 512 * fresh.n, 512 * len(fresh.matches), 32 * 192]
    known, added = naive_dictionary.read(file, fresh.weights[0, 0].size, logits, maps, matrix)
    decoder = Decoder(5, 7, "text", 0, len(raw), (known, naive_recurrent.changed(added)))
    assert decoder.decode(coded[-block.payload_length :]) == raw


@pytest.mark.parametrize("level", [5, 6])
@pytest.mark.parametrize(
    ("raw", "kind", "record"),
    [(TEXT[:170], "text", 0), (BINARY, "other", 0), (inputs.records(4), "table", 24)],
    ids=["text", "binary", "table"],
)
def test_numerics_version_1_decodes_as_it_is_specified(raw, kind, record, level):
    assert is_read_as_specified(raw, level, 1, kind, record)


@pytest.mark.parametrize(("raw", "kind"), [(TEXT, "text"), (BINARY, "other")], ids=["text", "binary"])
@pytest.mark.parametrize("numerics", [2, 4, 7])
def test_blocks_that_are_not_tokenwise_decode_as_they_are_specified(raw, kind, numerics):
    """By the models of level 6."""
    assert is_read_as_specified(raw[:90], 8, numerics, kind, 0)


@pytest.mark.parametrize(("level", "numerics"), [(4, 1), (5, 2), (6, 2), (5, 3), (6, 3)])
def test_earlier_numerics_versions_decode_as_they_are_specified(level, numerics):
    assert is_read_as_specified(TEXT[:170], level, numerics, "text", 0)


@pytest.mark.parametrize(("level", "numerics"), [(4, 7), (5, 7), (6, 7), (5, 3)])
def test_executables_decode_as_they_are_specified(level, numerics):
    """At level 5 without a network, and beside one in version 3."""
    assert is_read_as_specified(BINARY, level, numerics, "executable", 0)


@pytest.mark.parametrize("level", [5, 6, 7])
def test_what_is_written_today_has_the_latest_network(level):
    assert levels.level(level).models("text").network == levels.level(level).models("other").network == weights.LATEST


@pytest.mark.parametrize("number", weights.CHECKSUMS)
def test_the_networks_are_those_that_are_specified(number):
    assert f"`{weights.file_of(number).name}` | `0x{weights.CHECKSUMS[number]:016x}` |" in FORMAT.read_text()
