"""GGUF files: the places of their tensors, and every fault in one sentence."""

import struct

import gguf
import numpy as np
import pytest

from squeeze import pack, unpack
from squeeze.checkpoint import gguf_file
from squeeze.checkpoint.ggml_types import BLOCKS, PLAIN, TYPES
from squeeze.errors import FormatError, TruncatedError
from squeeze.packing import container


@pytest.fixture
def model(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_string("general.name", "a name")
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_array("numbers", [1, 2, 3])
    values = np.random.default_rng(1).normal(size=(64, 256)).astype(np.float32)
    writer.add_tensor("plain.weight", values)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        writer.add_tensor(f"{kind.name}.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "model.gguf"


def test_types_are_those_of_the_package_gguf():
    for number, (name, values, size) in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (name, (values, size))
    assert all(gguf.GGMLQuantizationType(number).name == name for number, name in PLAIN.items())


def test_tensors_are_where_the_package_gguf_finds_them(model):
    found = {tensor.name: tensor for tensor in gguf_file.read(model).tensors}
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(model).tensors}
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].begin, found[name].size) == (tensor.data_offset, tensor.n_bytes)
        assert found[name].dtype == tensor.tensor_type.name
        assert found[name].shape == tuple(tensor.shape.tolist()[::-1])


@pytest.mark.parametrize("level", ["runtime", "archive"])
def test_a_file_is_packed_and_restored(model, tmp_path, level):
    pack(model, tmp_path / "packed.gguf", level=level)
    unpack(tmp_path / "packed.gguf", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == model.read_bytes()
    packed = container.read(tmp_path / "packed.gguf")
    kinds = {record.dtype: record.coding.name.partition("+")[0] for record in packed.description.records}
    assert kinds["Q8_0"] == kinds["Q4_0"] == "blocks"
    assert (tmp_path / "packed.gguf").stat().st_size < 0.97 * model.stat().st_size


def test_a_folder_with_a_file_is_packed_and_restored(model, tmp_path):
    (tmp_path / "folder").mkdir()
    content = model.read_bytes()
    model.rename(tmp_path / "folder" / "model.gguf")
    pack(tmp_path / "folder", tmp_path / "packed")
    unpack(tmp_path / "packed", tmp_path / "back")
    assert (tmp_path / "back" / "model.gguf").read_bytes() == content


def test_tensors_of_unknown_types_are_bytes(model, tmp_path):
    content = bytearray(model.read_bytes())
    at = content.index(b"Q8_0.weight") + len(b"Q8_0.weight") + 4 + 16
    content[at : at + 4] = struct.pack("<I", 99)
    model.write_bytes(content)
    assert "Q8_0.weight" not in {tensor.name for tensor in gguf_file.read(model).tensors}
    pack(model, tmp_path / "packed.gguf")
    unpack(tmp_path / "packed.gguf", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == content


HEAD = b"GGUF" + struct.pack("<I", 3)


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (b"", FormatError, "not a GGUF file"),
        (b"GGML" + bytes(40), FormatError, "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 9) + bytes(40), FormatError, "version 9"),
        (HEAD + struct.pack("<QQ", 1 << 60, 0), TruncatedError, "cut off"),
        (HEAD + struct.pack("<QQ", 0, 1), TruncatedError, "cut off"),
        (HEAD + struct.pack("<QQQ", 0, 1, 1 << 50) + bytes(9), FormatError, "a name would have"),
        (HEAD + struct.pack("<QQQ1sII", 0, 1, 1, b"k", 77, 0), FormatError, "of type 77"),
        (HEAD + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 4, 1 << 61), TruncatedError, "cut off"),
        (HEAD + struct.pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 8, 1 << 61), TruncatedError, "cut off"),
        (HEAD + struct.pack("<QQQ1sIIQIQ", 0, 1, 1, b"k", 9, 9, 1 << 61, 9, 1) + bytes(12), TruncatedError, "cut off"),
        (HEAD + struct.pack("<QQQ1sI", 1, 0, 1, b"t", 99) + bytes(24), FormatError, "99 dimensions"),
        (HEAD + struct.pack("<QQQ17sII", 0, 1, 17, b"general.alignment", 4, 0), FormatError, "alignment is 0"),
    ],
)
def test_faults_are_named(tmp_path, content, error, words):
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(error, match=words):
        gguf_file.read(tmp_path / "a.gguf")


def test_sizes_of_tensors_past_the_end_are_no_tensors(model, tmp_path):
    whole = model.read_bytes()
    model.write_bytes(whole[:-100])
    assert len(gguf_file.read(model).tensors) == 2
    assert "Q8_0" in BLOCKS
