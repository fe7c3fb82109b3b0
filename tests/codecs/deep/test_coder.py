"""Levels 4 to 6 as a whole: the same bytes on older processors, the fixed order of sums, hashed hashed."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.codecs.bitmodels import slots as hashed
from squeeze.codecs.deep import coder as deep, presets as deeplevels
from squeeze.codecs.deep.presets import DeepPreset
from squeeze.codecs.stream import levels
from squeeze.numerics import vectors
from squeeze.numerics.jit import kernel
from tests.makers import inputs

DEEP = [n for n, row in levels.LEVELS.items() if isinstance(row.models("text"), DeepPreset)]

CODE = """
import hashlib, squeeze
from tests.makers import inputs
print(hashlib.sha256(squeeze.compress(inputs.words(1500), 5, verify=False)).hexdigest())
"""


@kernel
def products(a, b, out):
    out[0] = vectors.dot(a, 0, b, 0, a.size)


@kernel
def matrix(y, w, x):
    vectors.accumulate(y, 0, w, 0, w.shape[1], x, 0, 1, w.shape[0], w.shape[1])


@kernel
def slot_of(slots, counters, h, buckets):
    return hashed.find_slot(slots, counters, h, buckets)


@pytest.mark.parametrize("level", DEEP)
def test_command(tmp_path, level):
    note, text = tmp_path / "note.txt", inputs.words(1500)
    note.write_bytes(text)
    for command in (["compress", f"-{level}", "--rm", str(note)], ["decompress", f"{note}.sqz"]):
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, done.stderr) == (0, "")
    assert note.read_bytes() == text


@pytest.mark.parametrize("size", [16, 48, 160])
def test_sums_have_the_order_that_is_written_down(size):
    a, b = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32)
    total = np.zeros(16, np.float32)
    for i in range(0, size, 16):
        total = total + a[i : i + 16] * b[i : i + 16]
    while total.size > 1:
        total = total[: total.size // 2] + total[total.size // 2 :]
    found = np.zeros(1, np.float32)
    products(a, b, found)
    assert found[0] == total[0]


@pytest.mark.parametrize("shape", [(3, 16), (5, 64), (7, 208)])
def test_a_product_with_a_matrix_adds_rows_in_order(shape):
    generator = np.random.default_rng(1)
    w, x = generator.standard_normal(shape).astype(np.float32), generator.standard_normal(shape[0]).astype(np.float32)
    expected = np.ones(shape[1], np.float32)
    for r in range(shape[0]):
        expected = expected + x[r] * w[r]
    y = np.ones(shape[1], np.float32)
    matrix(y, w, x)
    assert np.array_equal(y, expected)


def test_slots_are_found_again_and_the_weakest_makes_room():
    slots = np.zeros(hashed.BUCKET, np.uint8)
    counters = slots.view(np.uint16)
    hashes = [np.uint64(k * 0x1010101) for k in range(1, 6)]
    found = []
    for h, history in zip(hashes, (9, 3, 9, 9), strict=False):
        found.append(slot_of(slots, counters, h, 1))
        slots[hashed.histories_at(found[-1]) + 1] = history
    assert sorted(found) == [0, 1, 2, 3]
    assert [slot_of(slots, counters, h, 1) for h in hashes[:4]] == found
    assert slot_of(slots, counters, hashes[4], 1) == found[1]


def test_every_kind_of_content_has_distinct_contexts_at_every_level():
    for level in DEEP:
        for kind in deeplevels.CONTEXTS:
            contexts = deeplevels.preset(level, kind).contexts
            assert len(contexts) == len(set(contexts)) >= 11


@pytest.mark.parametrize("kind", deeplevels.CONTEXTS)
def test_each_preset_restores_what_it_codes(kind):
    data = np.frombuffer(inputs.records(60) + inputs.machine_code(50), np.uint8)
    preset = deeplevels.preset(5, kind)
    coded = deep.encode(data, preset, 24)
    assert coded is not None
    assert np.array_equal(deep.decode(coded, data.size, preset, 24), data)


@pytest.mark.parametrize("record", [1, 2, 65_535])
def test_tables_of_any_record_length(record):
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
