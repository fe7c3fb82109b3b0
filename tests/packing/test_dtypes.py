"""Every dtype of safetensors is packed, and one that nobody knows yet: only its bytes count."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.safetensors import ELEMENT_BITS
from squeeze.errors import DamagedError, FormatError
from squeeze.packing import container
from squeeze.packing.description import Description
from squeeze.recipes.measure.inspect import inspect
from squeeze.system.limits import Limits
from tests.makers.checkpoints import same, write
from tests.makers.command import call

pytestmark = pytest.mark.usefixtures("in_folder")

FUTURE = "F5_E2M2X"
DTYPES = [*ELEMENT_BITS, FUTURE]
IN_TORCH = {
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,
}


def file_of(dtype: str, name: str = "plain.safetensors", seed: int = 1):
    """A file of a matrix that shrinks, a row, and nothing."""
    bits = ELEMENT_BITS.get(dtype, 5)
    random, tensors = np.random.default_rng(seed), {}
    for key, shape in {"matrix": (96, 64), "row": (8,), "none": (0, 8)}.items():
        tensors[key] = dtype, shape, random.binomial(4, 0.5, prod(shape) * bits // 8).astype(np.uint8).tobytes()
    return write(name, tensors)


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_restored(dtype, level):
    plain = file_of(dtype)
    totals = squeeze.pack(plain, "packed.safetensors", level=level)
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert same("back.safetensors", plain) and totals.coded < totals.raw + 1000
    records = container.read(Path("packed.safetensors")).description.records
    assert {record.dtype for record in records} == {dtype} and not records[0].coding.is_stored


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_may_be_a_difference(dtype):
    plain, base = file_of(dtype), file_of(dtype, "base.safetensors")
    data = bytearray(base.read_bytes())
    data[-9] ^= 1
    base.write_bytes(bytes(data))
    squeeze.pack(base, "packed-base.safetensors")
    squeeze.pack(plain, "packed.safetensors", base="packed-base.safetensors")
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert same("back.safetensors", plain)


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
@pytest.mark.parametrize("dtype", IN_TORCH)
def test_load_gives_the_tensors_of_safetensors(dtype, level):
    plain = file_of(dtype)
    squeeze.pack(plain, "packed.safetensors", level=level)
    weights = squeeze.load("packed.safetensors")
    with safetensors.safe_open(plain, "pt") as theirs, squeeze.safe_open("packed.safetensors", "pt") as ours:
        for name in theirs.keys():  # noqa: SIM118 - it is no mapping
            wanted = theirs.get_tensor(name)
            assert wanted.dtype == IN_TORCH[dtype]
            for found in (ours.get_tensor(name), weights[name], ours.get_slice(name)[:]):
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
                assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
        part, whole = ours.get_slice("matrix")[3:5], theirs.get_tensor("matrix")
        assert torch.equal(part.view(torch.uint8), whole.view(torch.uint8)[3:5])


@pytest.mark.parametrize("dtype", ["F6_E2M3", FUTURE])
def test_a_dtype_that_torch_lacks_is_named_on_access(dtype):
    known = "BF16", (8,), bytes(range(16))
    plain = file_of(dtype)
    with_both = write("both.safetensors", {"a": known, "b": (dtype, (8,), bytes(6 if dtype != FUTURE else 5))})
    for name in (plain.name, with_both.name):
        squeeze.pack(name, f"packed-{name}")
    weights = squeeze.load("packed-both.safetensors")
    assert weights["a"].view(torch.uint8).tolist() == list(range(16))
    message = f"tensor 'b': torch has no type for {dtype}"
    with pytest.raises(FormatError, match=message):
        weights["b"]
    with squeeze.safe_open("packed-both.safetensors", "pt") as file:
        assert file.get_slice("b").get_dtype() == dtype and torch.equal(file.get_tensor("a"), weights["a"])
        with pytest.raises(safetensors.SafetensorError, match=message):
            file.get_tensor("b")


def test_refuses_a_row_of_f4_with_half_a_byte():
    write("odd.safetensors", {"a": ("F4", (2, 3), bytes(3))})
    squeeze.pack("odd.safetensors", "packed.safetensors")
    with pytest.raises(FormatError, match=r"F4 with the shape \[2, 3\] cannot be loaded"):
        squeeze.load("packed.safetensors")["a"]


@pytest.mark.parametrize("dtype", ["F8_E4M3FNUZ", "F4", FUTURE])
def test_inspect_shows_rare_dtypes_packed_or_not(dtype):
    entries = list(inspect(file_of(dtype)))
    squeeze.pack("plain.safetensors", "packed.safetensors")
    packed = list(inspect("packed.safetensors"))
    assert [(entry.dtype, entry.raw) for entry in entries] == [(entry.dtype, entry.raw) for entry in packed]
    assert entries[0].dtype == dtype and entries[0].bound > 0


def test_torch_files_with_rare_dtypes_are_restored():
    drawn = torch.randn(64, 64).to(torch.float8_e4m3fnuz)
    torch.save({"a": drawn}, "a.pt")
    squeeze.pack("a.pt", "packed.pt")
    squeeze.unpack("packed.pt", "back.pt")
    assert same("a.pt", "back.pt")
    assert {entry.dtype for entry in inspect("packed.pt")} >= {"F8_E4M3FNUZ"}


def test_an_unknown_dtype_is_not_loaded_into_a_network(tmp_path):
    write("model.safetensors", {"a.weight": (FUTURE, (8, 8), bytes(40))})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FormatError, match=f"tensor 'a.weight': dtype '{FUTURE}' is unknown to this version"):
        Checkpoint.open(tmp_path)
    assert "unknown to this version" in call("quantize", ".", "../out", "--method", "rtn").stderr


@pytest.mark.parametrize("dtype", ["", "F 8", "F" * 33, "Ä"])
def test_refuses_an_invalid_name_of_a_dtype(dtype):
    write("plain.safetensors", {"a": (dtype, (1,), b"a")})
    with pytest.raises(FormatError, match="is not the name of a dtype"):
        squeeze.pack("plain.safetensors", "packed.safetensors")


@pytest.mark.parametrize(("dtype", "length"), [("BF16", [8]), (FUTURE, []), (FUTURE, [-1]), (FUTURE, [5, 5])])
def test_only_an_unknown_dtype_has_a_length(dtype, length):
    text = Description(10, "0" * 64, b"", "runtime", ()).to_text()
    entry = f'[["{dtype}",[4],"stored","{"0" * 16}"{"".join(f",{n}" for n in length)}]]'
    with pytest.raises(DamagedError, match="it cannot be read"):
        Description.from_text(text.replace('"tensors":[]', f'"tensors":{entry}'), Limits())


def test_an_unknown_dtype_of_another_size_is_not_a_base():
    write("base.safetensors", {"a": (FUTURE, (8,), bytes(4000)), "b": ("U8", (4000,), bytes(4000))})
    write("plain.safetensors", {"a": (FUTURE, (8,), bytes(5000)), "b": ("U8", (4000,), b"\1" * 4000)})
    squeeze.pack("plain.safetensors", "packed.safetensors", base="base.safetensors")
    squeeze.unpack("packed.safetensors", "back.safetensors", base=None)
    assert same("back.safetensors", "plain.safetensors")
