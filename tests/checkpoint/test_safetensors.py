"""Safetensors files that are none: each has a named error of one line."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, LimitError, TruncatedError
from squeeze.system.limits import Limits
from tests.makers.command import names

pytestmark = pytest.mark.usefixtures("in_folder")


def header(entries):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(begin, end, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


BAD = {
    "": (TruncatedError, "within the first 8 bytes"),
    "ff" * 8: (FormatError, "header would be"),
    (1000).to_bytes(8, "little").hex(): (TruncatedError, "within its header"),
    header(b"nonsense").hex(): (FormatError, "not JSON"),
    header(b"\xff\xfe{}").hex(): (FormatError, "not JSON"),
    header(b"[" * 200_000).hex(): (FormatError, "not JSON"),
    header(b"[]").hex(): (FormatError, "not a JSON object"),
    header({"__metadata__": {"a": 1}}).hex(): (FormatError, "not a table of strings"),
    header(b'{"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}, "a": 2}').hex(): (FormatError, "twice"),
    header({"a": 7}).hex(): (FormatError, "not one of dtype"),
    (header({"a": entry(0, 8)}) + bytes(3)).hex(): (TruncatedError, "5 bytes too early"),
    (header({"a": entry(0, 8)}) + bytes(9)).hex(): (FormatError, "1 bytes follow the last tensor"),
    (header({"a": entry(0, 8), "b": entry(4, 12)}) + bytes(12)).hex(): (FormatError, "overlaps the one before"),
    (header({"a": entry(0, 8), "b": entry(9, 12)}) + bytes(12)).hex(): (FormatError, "leaves a hole"),
    (header({"a": entry(0, 8, "F32")}) + bytes(8)).hex(): (FormatError, "do not fit F32"),
    (header({"a": entry(0, 8, "F 9")}) + bytes(8)).hex(): (FormatError, "'F 9' is not the name of a dtype"),
    header({"a": entry(0, 8, shape=[1 << 70])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 8, shape=[-8])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 8, shape=[True])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 1 << 62, shape=[1 << 62])}).hex(): (TruncatedError, "too early"),
    header({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0]}}).hex(): (FormatError, "offsets"),
    header({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}}).hex(): (FormatError, "do not fit"),
}


@pytest.mark.parametrize("bad", list(BAD), ids=range(len(BAD)))
def test_bad_files_have_named_errors(bad):
    error, words = BAD[bad]
    Path("bad.safetensors").write_bytes(bytes.fromhex(bad))
    with pytest.raises(error, match=words) as caught:
        squeeze.pack("bad.safetensors", "b.safetensors")
    assert type(caught.value) is error
    assert "bad.safetensors" in str(caught.value)
    assert names() == ["bad.safetensors"]


SURROGATE = b'{"a\\ud800": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}'
HOSTILE = {
    "a lone surrogate": (header(SURROGATE) + b"x", FormatError, r"tensor 'a\\ud800': its name is"),
    "escapes": (header({"\x1b[2J\n": 7}), FormatError, r"tensor '\\x1b\[2J\\n': the header's entry is not one of"),
    "a long name": (header({"a" * 9999: 7}), FormatError, r"tensor 'a{197}\.\.\.': the header's entry"),
    "a long shape": (header({"a": entry(0, 1, shape=[-1] * 9999)}), FormatError, r"the shape \[-1, .{180,}\.\.\. is"),
    "a dtype that is none": (header({"a": entry(0, 1, dtype=["U8"])}), FormatError, "is not the name of a dtype"),
    "a shape beyond torch": (header({"a": entry(0, 0, shape=[0, 1 << 62, 4])}), FormatError, "is impossible"),
    "infinite offsets": (header({"a": entry(0, float("inf"), shape=[1])}), FormatError, "offsets"),
    "twice": (header(b'{"a": {}, "a": {}}'), FormatError, "its header has 'a' twice"),
    "a number of many digits": (header(b'{"a": ' + b"9" * 5000 + b"}"), FormatError, "its header is not JSON"),
    "a header beyond the file": ((1 << 20).to_bytes(8, "little") + b"{}", TruncatedError, "within its header"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_header_is_named(name, tmp_path):
    data, error, words = HOSTILE[name]
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(error, match=words) as caught:
        tensorfile.read(tmp_path / "a")
    assert type(caught.value) is error and str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_nested_lists_are_no_dtype(tmp_path):
    for depth in range(100, 1000, 50):
        nested = b"[" * depth + b"]" * depth
        (tmp_path / "a").write_bytes(header(b'{"a": {"dtype": ' + nested + b', "shape": [], "data_offsets": [0, 1]}}'))
        with pytest.raises(FormatError):
            tensorfile.read(tmp_path / "a")


def test_a_header_that_is_not_as_long_as_it_says(tmp_path):
    data = header({"a": entry(0, 1)})
    with pytest.raises(FormatError, match="its header is not as long as it says"):
        tensorfile.parse(tmp_path / "a", len(data) + 1, b"\0" * 8 + data[8:])


def test_memory_is_asked_for_before_a_header_is_parsed(tmp_path):
    (tmp_path / "a").write_bytes(header(b'{"a": [' + b"{}," * 100_000 + b"{}]}"))
    with pytest.raises(LimitError, match=r"the header needs [\d,]+ bytes of memory, and the limit is 1,048,576"):
        tensorfile.read(tmp_path / "a", Limits(memory=1 << 20))


def test_a_damaged_file_is_not_loaded(tmp_path):
    data = safetensors.numpy.save({"a": np.ones(4, np.float32)})
    (tmp_path / "a").write_bytes(data[:-1])
    with pytest.raises(DamagedError, match=f"^{tmp_path}/a: "):
        tensorfile.load(tmp_path / "a")
