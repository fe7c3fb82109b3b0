"""The weights that models of levels 1 to 3 start with: files of the package, their gain, and the format."""

import numpy as np
import pytest

from squeeze.codecs import package_data
from squeeze.codecs.bytewise import coder, presets, state
from squeeze.numerics.bitmodels import contexts, fields, records
from tests.makers import inputs
from tests.references.naive_levels import FORMAT, Decoder

SAMPLES = {
    "text": b'<p class="b">The first Word caf\xc3\xa9 of a line,\nand (some) words {in [it]} = 12.5;</p>\n' * 2,
    "lines": b"2026-11-09 10:59:58 GET /a/b?c=1 200 99\n2026-11-09 10:59:59 GET /a/cc?c=2 200 102\n" * 2 + b"k: 7\n",
    "executable": b"\xe8\x10\x00\x00\x00\x89\xe5\x0f\x85\x20\x00\x00\x00\xff\xfe\x80" * 5 + bytes(range(90, 130)),
    "other": bytes(40) + bytes(range(200, 256)) * 2,
    "table": inputs.records(6),
}


@pytest.mark.parametrize("name", state.CHECKSUMS)
def test_the_files_are_those_of_the_format(name):
    assert f"| `{name}{state.SUFFIX}` | `0x{state.CHECKSUMS[name]:016x}` |" in FORMAT.read_text()
    assert package_data.tensors(state.FOLDER / f"{name}{state.SUFFIX}", state.CHECKSUMS[name])


def test_there_is_a_file_for_each_level_and_kind():
    assert set(state.CHECKSUMS) == {
        f"{kind}.{level}" for kind in presets.WARM_START_KINDS for level in presets.BY_LEVEL
    }


@pytest.mark.parametrize("level", presets.BY_LEVEL)
@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("bare", [False, True])
def test_blocks_decode_as_they_are_specified(kind, level, bare):
    preset = presets.preset(level, kind, bare)
    raw, record = SAMPLES[kind], 24 if kind == "table" else 0
    coded = coder.encode(np.frombuffer(raw, np.uint8), preset, record)
    assert coded is not None
    assert Decoder(level, kind, record, len(raw), bare).decode(coded) == raw


@pytest.mark.parametrize("level", presets.BY_LEVEL)
@pytest.mark.parametrize(("kind", "share"), [("text", 0.9), ("executable", 0.98)])
def test_small_files_are_smaller(level, kind, share):
    data = np.frombuffer(inputs.python_text(6_000) if kind == "text" else inputs.program(1 << 14), np.uint8)
    plain = coder.encode(data, presets.preset(level, kind, bare=True))
    known = coder.encode(data, presets.preset(level, kind))
    assert len(known) < share * len(plain)
    assert np.array_equal(coder.decode(known, data.size, presets.preset(level, kind)), data)


def test_registers_of_records_have_their_numbers():
    read = [records.COUNT, records.CHANGES, records.LINEAR]
    assert [contexts.RECORDS + number for number in read] == [presets.COUNT, presets.CHANGES, presets.LINEAR]


def test_registers_of_lines_have_their_numbers():
    first = contexts.FIELDS
    named = [presets.ABOVE, presets.ALIKE, presets.MARKS, presets.CELL_KEY, presets.CELL_PLACE, presets.NUMBER]
    read = [fields.ABOVE, fields.ALIKE, fields.MARKS, fields.CELL_KEY, fields.CELL_PLACE, fields.NUMBER]
    assert named == [first + number for number in read]
