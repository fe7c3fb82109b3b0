"""Safetensors files that are none: each has a named error."""

import json
from pathlib import Path

import pytest

import squeeze
from squeeze.errors import FormatError, TruncatedError
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
    (header({"a": entry(0, 8, "F99")}) + bytes(8)).hex(): (FormatError, "dtype 'F99' is unknown"),
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
