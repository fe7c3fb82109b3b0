"""Descriptions of packed files that no writer wrote: each has an error of one line, and none is believed."""

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, LimitError
from squeeze.packing import container
from squeeze.system.limits import Limits
from tests.checkpoint.test_safetensors import header
from tests.fuzz import tensorfiles
from tests.makers.checkpoints import write

RAW = {"a": ("F32", (8, 16), np.arange(128, dtype=np.float32).tobytes()), "b": ("U8", (3,), b"abc")}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    write(folder / "a.safetensors", RAW)
    squeeze.pack(folder / "a.safetensors", folder / "b.safetensors")
    return folder / "b.safetensors"


def changed(packed, path, change):
    """A copy of a packed file whose description is another, or another text where `change` returns one."""
    file = tensorfiles.parsed(packed.read_bytes())
    described = json.loads(file.header["__metadata__"]["squeeze"])
    text = change(described)
    path.write_bytes(file.described("squeeze", text if isinstance(text, str) else described).to_bytes())
    return path


def zipped(data):
    return base64.b64encode(zlib.compress(data)).decode()


def put(key, value):
    return lambda described: described.update({key: value})


def put_in_tensor(place, value):
    return lambda described: described["tensors"][0].__setitem__(place, value)


HUGE = "9" * 400
CHANGES = {
    "size infinite": put("size", float("inf")),
    "size not a number": put("size", float("nan")),
    "size negative": put("size", -1),
    "size of 64 bits": put("size", 1 << 63),
    "size a text": put("size", "12"),
    "size a truth": put("size", True),
    "size a fraction": put("size", 1.5),
    "size huge": lambda described: json.dumps(described).replace(f'"size": {described["size"]}', f'"size": {HUGE}'),
    "hash in capitals": lambda described: described.update(sha256=described["sha256"].upper()),
    "hash short": put("sha256", "ab"),
    "level unknown": put("level", "best"),
    "header no base64": put("header", "*"),
    "header no text": put("header", 5),
    "header no zlib": put("header", base64.b64encode(b"something").decode()),
    "header cut": lambda described: described.update(header=described["header"][:8]),
    "header of another length": put("header", zipped(b"\0" * 8 + b"{}")),
    "header not JSON": put("header", zipped(header(b"nonsense"))),
    "tensors no list": put("tensors", {}),
    "tensors none": put("tensors", []),
    "tensor of three parts": lambda described: described["tensors"][0].pop(),
    "tensor a number": lambda described: described["tensors"].__setitem__(0, 7),
    "dtype unknown": put_in_tensor(0, "F33"),
    "dtype a list": put_in_tensor(0, [[]]),
    "shape infinite": put_in_tensor(1, [float("inf"), 16]),
    "shape negative": put_in_tensor(1, [-8, -16]),
    "shape of truths": put_in_tensor(1, [True, 128]),
    "shape of fractions": put_in_tensor(1, [8.0, 16]),
    "shape another": put_in_tensor(1, [16, 8]),
    "shape huge": put_in_tensor(1, [1 << 62, 1 << 62]),
    "coding unknown": put_in_tensor(2, "gzip"),
    "coding impossible": put_in_tensor(2, "bytes+rans"),
    "coding without a base": put_in_tensor(2, "delta+rans"),
    "checksum short": put_in_tensor(3, "00"),
    "checksum negative": put_in_tensor(3, "-00000000000001f"),
    "checksum with a prefix": put_in_tensor(3, "0x000000000000ff"),
    "base no list": put("base", "ab" * 32),
    "base no hash": put("base", ["ab"]),
    "format missing": lambda described: described.pop("format") and None,
    "format a truth": put("format", True),
    "format a fraction": put("format", 1.0),
    "word unknown": put("more", 1),
    "word twice": lambda described: json.dumps(described).replace("{", '{"level": "archive", ', 1),
    "no JSON": lambda described: "nonsense",
    "no object": lambda described: "[]",
    "nested": lambda described: "[" * 100_000,
    "a lone surrogate": put_in_tensor(0, "\ud800"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refuses_a_description_that_no_writer_makes(name, packed, tmp_path):
    path = changed(packed, tmp_path / "c.safetensors", CHANGES[name])
    for read in (container.read, squeeze.verify):
        with pytest.raises(FormatError) as caught:
            read(path)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 400
        assert "the description of the packed checkpoint is damaged" in str(caught.value)


@pytest.mark.parametrize("number", [0, 2, 1 << 62])
def test_refuses_another_format_number(packed, tmp_path, number):
    path = changed(packed, tmp_path / "c.safetensors", put("format", number))
    with pytest.raises(FormatError, match=f"packed format {number} is unknown: use a newer squeeze"):
        container.read(path)


def test_refuses_a_header_that_unpacks_too_large_before_parsing(packed, tmp_path):
    unfolding = header(b"[" + b"[]," * 3_000_000 + b"[]]")
    path = changed(packed, tmp_path / "c.safetensors", put("header", zipped(unfolding)))
    assert path.stat().st_size < 20_000
    with pytest.raises(LimitError, match=r"needs [\d,]+ bytes of memory, and the limit is 67,108,864"):
        container.read(path, Limits(memory=1 << 26))


def test_reads_a_header_whose_size_is_a_multiple_of_the_buffer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = len(write("a.safetensors", RAW).read_bytes()) - 515
    write("a.safetensors", RAW, pad=(1 << 20) - 8 - text)
    size = len(tensorfile.read(Path("a.safetensors")).header)
    write("a.safetensors", RAW, pad=(1 << 20) - 8 - text + (1 << 20) - size)
    assert len(tensorfile.read(Path("a.safetensors")).header) == 1 << 20
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.verify("b.safetensors")


def many(path, count):
    """Write a file of `count` tensors of 100 numbers."""
    numbers = np.random.default_rng(0).normal(0, 1, (count, 100)).astype(np.float16).astype(np.float32)
    write(path, {f"layers.{k}.norm.weight": ("F32", (100,), row.tobytes()) for k, row in enumerate(numbers)})
    return path


def test_many_small_tensors_do_not_make_a_file_larger(tmp_path):
    source, packed, back = (tmp_path / f"{name}.safetensors" for name in "abc")
    many(source, 1000)
    squeeze.pack(source, packed)
    assert packed.stat().st_size < source.stat().st_size
    assert not tensorfile.read(packed).metadata["squeeze"].startswith("{")
    squeeze.unpack(packed, back)
    assert back.read_bytes() == source.read_bytes()


def test_a_description_that_unpacks_too_large_is_refused(tmp_path):
    packed = tmp_path / "b.safetensors"
    squeeze.pack(many(tmp_path / "a.safetensors", 1000), packed)
    file = tensorfiles.parsed(packed.read_bytes())
    for text in (zipped(b" " * (1 << 24)), zipped(b"{}")[:-8], "Y", "Y@", zipped(b"[]")):
        (tmp_path / "d.safetensors").write_bytes(file.described("squeeze", text).to_bytes())
        with pytest.raises((DamagedError, LimitError)):
            container.read(tmp_path / "d.safetensors", Limits(memory=1 << 24))
