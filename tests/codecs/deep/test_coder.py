"""Levels 4 to 6: every kind of content comes back, all processors write the same bytes, and badly predicted data is
found."""

import base64
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.codecs.deep import coder as deep, presets as deeplevels
from tests.makers import inputs

CODE = """
import hashlib, squeeze
from tests.makers import inputs
print(hashlib.sha256(squeeze.compress(inputs.words(1500), 5, verify=False)).hexdigest())
"""


@pytest.mark.parametrize("level", [4, 5, 6])
def test_commands_restore_what_they_compress(tmp_path, level):
    note, text = tmp_path / "note.txt", inputs.words(1500)
    note.write_bytes(text)
    for command in (["compress", f"-{level}", "--rm", str(note)], ["decompress", f"{note}.sqz"]):
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, done.stderr) == (0, "")
    assert note.read_bytes() == text


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("kind", deeplevels.CONTEXTS)
def test_each_preset_restores_what_it_codes(kind, bare):
    data = np.frombuffer(inputs.records(60) + inputs.machine_code(50), np.uint8)
    preset = deeplevels.preset(5, kind, bare)
    coded = deep.encode(data, preset, 24)
    assert coded is not None
    assert np.array_equal(deep.decode(coded, data.size, preset, 24), data)


@pytest.mark.parametrize("record", [1, 2, 65_535])
def test_tables_of_any_record_length_come_back(record):
    data = np.frombuffer(inputs.records(60), np.uint8)
    preset = deeplevels.preset(6, "table")
    coded = deep.encode(data, preset, record)
    assert coded is not None
    assert np.array_equal(deep.decode(coded, data.size, preset, record), data)


def test_what_cannot_be_shortened_is_given_up():
    data = np.frombuffer(inputs.random_bytes(2_000), np.uint8)
    assert deep.encode(data, deeplevels.preset(4, "other")) is None


@pytest.mark.slow
@pytest.mark.parametrize("processor", ["generic", "haswell"])
def test_older_processors_write_the_same_bytes(processor):
    here = hashlib.sha256(squeeze.compress(inputs.words(1500), 5, verify=False)).hexdigest()
    environment = {**os.environ, "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here


def reads(data):
    return deep.network_predicts(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("size", [300, 1500, 40_000])
def test_the_network_predicts_sources_well(size):
    assert reads(inputs.python_text(size))


@pytest.mark.parametrize(
    "encode",
    [bytes.hex, base64.encodebytes, lambda data: inputs.python_text(9000).decode("latin1").encode("cp037")],
    ids=["hexadecimal", "base64", "EBCDIC"],
)
def test_the_network_predicts_encoded_data_badly(encode):
    data = encode(inputs.random_bytes(3000))
    assert not reads(data.encode() if isinstance(data, str) else data)


def test_a_sample_is_of_four_pieces_at_equal_distances():
    data = np.arange(4000, dtype=np.int16)
    assert np.array_equal(deep._sample(data[:1024]), data[:1024])
    assert np.array_equal(deep._sample(data), [n for at in range(500, 4000, 1000) for n in range(at - 128, at + 128)])


def test_the_network_predicts_a_single_byte_and_one_run_badly():
    assert not reads(b"a")
    assert not reads(b"a" * 3000)
