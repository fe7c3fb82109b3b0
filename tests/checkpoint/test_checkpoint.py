"""Folders of tensors: names that can be written, and a disk that is full is one line."""

import errno
import json
import struct

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from squeeze.checkpoint.checkpoint import TORCH_DTYPES, Checkpoint, disk_errors
from squeeze.checkpoint.parts import Parts
from squeeze.cli import main
from squeeze.errors import DamagedError, FormatError
from tests.makers import hostile, tiny_models


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_models.byte_level()


def write_names(folder, *names):
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    entries = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(names)}
    header = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4 * len(names)))
    return folder


def test_names_that_cannot_be_written(tmp_path):
    for i, name in enumerate(("\ud800", "a\x1b[31m", "a\nb", "", "x" * 5000)):
        with pytest.raises(FormatError, match=r"is not a valid name of a tensor|is not valid Unicode") as found:
            Checkpoint.open(write_names(tmp_path / str(i), "fine", name))
        assert str(found.value).isprintable() and len(str(found.value)) < 400
    with pytest.raises(FormatError, match="expected weights, found no tensors"):
        Checkpoint.open(write_names(tmp_path / "none"))
    assert set(Checkpoint.open(write_names(tmp_path / "good", "a.b", "c")).files) == {"a.b", "c"}


def test_a_full_disk_is_told_by_the_system(tmp_path):
    with hostile.largest_file(1000), pytest.raises(OSError) as found:
        Parts(tmp_path).put("x", {"x": torch.zeros(10_000)})
    assert found.value.errno == errno.EFBIG
    with hostile.largest_file(1000), pytest.raises(OSError), disk_errors(tmp_path / "y"):
        torch.save(torch.zeros(10_000), tmp_path / "y")
    with pytest.raises(RuntimeError, match="something else"), disk_errors(tmp_path):
        raise RuntimeError("something else")


@pytest.mark.parametrize("command", [["quantize", "--method", "rtn", "-q"], ["prune", "--method", "magnitude", "-q"]])
def test_commands_on_a_full_disk_end_in_one_line(tmp_path, tokenizer, command):
    pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tiny_models.write_folder(tmp_path / "model", tokenizer, vocab_size=400)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for size in (2_000, 30_000):
        with hostile.largest_file(size):
            done = CliRunner().invoke(main, [command[0], str(folder), str(tmp_path / "out"), *command[1:]])
        assert (done.exit_code, done.output.count("\n")) == (1, 1), (done.output, done.exception)
        assert "File too large" in done.output and not (tmp_path / "out").exists()
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    done = CliRunner().invoke(main, [command[0], str(folder), str(tmp_path / "out"), *command[1:]])
    assert done.exit_code == 0, done.output
    for size in (2_000, 30_000):
        with hostile.largest_file(size):
            done = CliRunner().invoke(main, ["densify", str(tmp_path / "out"), str(tmp_path / "dense")])
        assert (done.exit_code, done.output.count("\n")) == (1, 1), (done.output, done.exception)
        assert "File too large" in done.output and not (tmp_path / "dense").exists()


def test_finished_parts_come_back_as_they_were_put(tmp_path):
    floats = {name: torch.ones(2, 4).to(getattr(torch, name)) for name in ("bfloat16", "float8_e4m3fn", "int32")}
    whole = {**floats, "bool": torch.tensor([True, False]), "number": torch.tensor(3.0), "none": torch.zeros(0, 3)}
    parts = Parts(tmp_path)
    parts.put("a", whole)
    parts.put("b", {"turned": torch.arange(6.0).view(2, 3).T})
    (tmp_path / "out").mkdir()
    parts.join(["a", "b"], tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(found[name].float(), tensor.float()) for name, tensor in whole.items())
    assert torch.equal(found["turned"], torch.arange(6.0).view(2, 3).T)
    assert torch.equal(parts.load("b")["turned"], found["turned"])


@pytest.mark.parametrize("dtype", TORCH_DTYPES.values(), ids=str)
def test_parts_hold_every_dtype(tmp_path, dtype):
    parts, tensors = Parts(tmp_path), {"one": torch.arange(48, dtype=torch.uint8).view(3, 16).view(dtype)}
    tensors |= {"none": tensors["one"][:0].clone(), "number": tensors["one"][0, 0].clone()}
    if dtype == torch.float4_e2m1fn_x2:
        del tensors["number"]  # two numbers in an element are no scalar
    parts.put("a", tensors)
    found = parts.load("a")
    assert parts.join(["a"], tmp_path) == sum(tensor.nbytes for tensor in tensors.values())
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (dtype, tensor.shape)
        assert found[name].reshape(-1).view(torch.uint8).tolist() == tensor.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\0\0\xa0@", b"\0\0\xa1@"),  # its last number
        (b"[2,3]", b"[3,2]"),
        (b'"F32"', b'"I32"'),
        (b'"turned":{', b'"burned":{'),
        (b"checksums", b"Checksums"),
    ],
)
def test_parts_with_other_tensors_than_were_put_are_damaged(tmp_path, before, after):
    parts = Parts(tmp_path)
    parts.put("b", {"turned": torch.arange(6.0).view(2, 3)})
    path, kept = parts.path("b"), parts.path("b").read_bytes()
    assert kept.count(before) == 1
    path.write_bytes(kept.replace(before, after))
    for use in (lambda: parts.load("b"), lambda: parts.join(["b"], tmp_path)):
        with pytest.raises(DamagedError, match=r"b\.part: finished work is damaged: repeat the command"):
            use()


def test_a_part_under_the_name_of_another_one_is_damaged(tmp_path):
    parts = Parts(tmp_path)
    parts.put("a", {"one": torch.arange(6.0)})
    parts.path("a").rename(parts.path("b"))
    with pytest.raises(DamagedError, match=r"b\.part: finished work is damaged"):
        parts.join(["b"], tmp_path)
