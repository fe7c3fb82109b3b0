"""Packed files in the interface of safetensors give what safetensors gives for the original."""

from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from safetensors.torch import save_file

import squeeze
from squeeze.packing import container
from squeeze.packing.record import Record
from squeeze.packing.safe_open import OpenError
from squeeze.packing.tensors import floats
from tests.makers.checkpoints import model_folder, tensors, write
from tests.makers.remote import Store

pytestmark = pytest.mark.usefixtures("in_folder")

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
]
SHAPES = {"matrix": (130, 300), "vector": (70_000,), "cube": (5, 40, 60), "scalar": (), "none": (0, 4), "one": (1,)}
INDICES = [
    *(slice(None), slice(0, 2), slice(3, 90), slice(-2, None), slice(0, 100_000), slice(1, 60, 7), slice(4, 2)),
    *(0, 3, -1, np.int64(1), Ellipsis, (), None, (Ellipsis, 0), (slice(2, 4), slice(1, 3)), (1, 2), (slice(None), 1)),
    *((slice(0, 3, 2),), (0, slice(5, 9)), True, 100_000, -100_000, (0, 0, 0, 0), slice(None, None, -1), "a", 1.5),
]


def values(dtype: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.randn(shape, generator=generator) * 3 for name, shape in SHAPES.items()}
    kind = getattr(torch, dtype)
    is_unsigned = dtype.startswith("u") or dtype == "float8_e8m0fnu"
    return {name: (value.abs() if is_unsigned else value).to(kind) for name, value in drawn.items()}


def outcome(take):
    """Return what a call returns as bytes, or the kind of error."""
    try:
        found = take()
    except (safetensors.SafetensorError, IndexError, TypeError, ValueError) as error:
        return next(kind for kind in (safetensors.SafetensorError, Exception) if isinstance(error, kind)), None
    if isinstance(found, torch.Tensor):
        return str(found.dtype), tuple(found.shape), bytes_of(found)
    return str(found.dtype), found.shape, found.tobytes()


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


def check_alike(ours, plain):
    """Two open files say the same, and give the same for every tensor and index."""
    assert ours.keys() == plain.keys() and ours.offset_keys() == plain.offset_keys()
    assert ours.metadata() == plain.metadata() == {"made": "here"}
    for name in plain.keys():  # noqa: SIM118 - it is no mapping
        mine, theirs = ours.get_slice(name), plain.get_slice(name)
        assert (mine.get_shape(), mine.get_dtype()) == (theirs.get_shape(), theirs.get_dtype())
        assert outcome(lambda name=name: ours.get_tensor(name)) == outcome(lambda n=name: plain.get_tensor(n))
        for index in INDICES:
            found = outcome(lambda index=index, part=mine: part[index])
            assert found == outcome(lambda index=index, part=theirs: part[index]), (name, index)
    assert list(ours.get_tensors()) == ours.offset_keys()


@pytest.mark.parametrize(
    ("dtype", "coding"),
    [*((dtype, "runtime") for dtype in DTYPES), ("bfloat16", "archive"), ("bfloat16", "delta"), ("int32", "delta")],
)
def test_every_dtype_opens_as_in_safetensors(dtype, coding):
    weights = values(dtype)
    save_file(weights, "plain.safetensors", {"made": "here"})
    base = None
    if coding == "delta":
        base = "packed-base.safetensors"
        save_file(weights | {"vector": weights["vector"][torch.arange(70_000) ^ 1]}, "base.safetensors")
        squeeze.pack("base.safetensors", base)
    level = "archive" if coding == "archive" else "runtime"
    squeeze.pack("plain.safetensors", "packed.safetensors", level=level, base=base)
    with (
        squeeze.safe_open("packed.safetensors", framework="pt") as packed,
        safetensors.safe_open("plain.safetensors", framework="pt") as plain,
    ):
        check_alike(packed, plain)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unpacked_file_at_a_url_opens(dtype):
    Store.reset()
    save_file(values(dtype), "plain.safetensors", {"made": "here"})
    Store.put("bucket/plain.safetensors", Path("plain.safetensors").read_bytes())
    with (
        squeeze.safe_open("fake://bucket/plain.safetensors", framework="pt") as there,
        safetensors.safe_open("plain.safetensors", framework="pt") as plain,
    ):
        check_alike(there, plain)
        mine = there.get_slice("vector")
        for take in (lambda: there.get_tensor("x"), lambda: there.get_slice("x")):
            with pytest.raises(safetensors.SafetensorError, match="File does not contain tensor 'x'"):
                take()
    with pytest.raises(safetensors.SafetensorError, match="File is closed"):
        mine[0]


@pytest.mark.parametrize("dtype", [name for name in DTYPES if "float8" not in name])
def test_numpy_gets_the_arrays_of_safetensors(dtype):
    weights = values(dtype)
    save_file(weights, "plain.safetensors")
    squeeze.pack("plain.safetensors", "packed.safetensors")
    with (
        squeeze.safe_open("packed.safetensors", framework="np") as packed,
        safetensors.safe_open("plain.safetensors", framework="np") as plain,
    ):
        if dtype == "bfloat16":
            with pytest.raises(OpenError, match="numpy has no type for BF16: open the file with framework pt"):
                packed.get_tensor("matrix")
            return
        for name, weight in weights.items():
            assert outcome(lambda name=name: packed.get_tensor(name)) == outcome(lambda n=name: plain.get_tensor(n))
            for index in INDICES[:4] + INDICES[6:15]:
                try:
                    expected = weight.numpy()[index]
                except IndexError:
                    with pytest.raises(OpenError):
                        packed.get_slice(name)[index]
                else:
                    assert np.array_equal(packed.get_slice(name)[index], expected)


def test_a_slice_decodes_what_it_needs(monkeypatch):
    weights = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    save_file({"w": weights}, "plain.safetensors")
    squeeze.pack("plain.safetensors", "packed.safetensors")
    decoded, original = [], floats.decode_with

    def decode(coded, *rest):
        decoded.append(coded.segments)
        return original(coded, *rest)

    monkeypatch.setattr(floats, "decode_with", decode)
    with squeeze.safe_open("packed.safetensors", framework="pt") as file:
        part = file.get_slice("w")
        assert torch.equal(part[600:1000], weights[600:1000]) and torch.equal(part[7, :3], weights[7, :3])
        assert part[9:9].shape == (0, 64)
    assert decoded == [1, 1]  # of eight


def test_a_coding_without_segments_decodes_once_for_slices(monkeypatch):
    save_file({"w": torch.randn(64, 64)}, "plain.safetensors")
    squeeze.pack("plain.safetensors", "packed.safetensors", level="archive")
    calls, original = [], Record.decode
    monkeypatch.setattr(Record, "decode", lambda *rest: calls.append(1) or original(*rest))
    with squeeze.safe_open("packed.safetensors", framework="pt") as file:
        part = file.get_slice("w")
        assert torch.equal(torch.cat([part[:30], part[30:]]), file.get_tensor("w"))
    assert len(calls) == 2  # and one for the whole


def test_returned_tensors_own_their_memory():
    write("plain.safetensors", {"noise": ("U8", (999,), bytes(np.random.default_rng(0).bytes(999)))})
    squeeze.pack("plain.safetensors", "packed.safetensors")
    with squeeze.safe_open("packed.safetensors", framework="pt") as file:
        first = file.get_tensor("noise")
        kept = first.clone()
        file.get_slice("noise")[:10].zero_()
        first.zero_()
        assert torch.equal(file.get_tensor("noise"), kept)


def test_unpacked_files_are_opened_by_safetensors():
    write("plain.safetensors", tensors())
    with squeeze.safe_open("plain.safetensors", framework="pt") as file:
        assert isinstance(file, safetensors.safe_open)
    with squeeze.safe_open(f"file://{Path.cwd()}/plain.safetensors", framework="pt") as file:
        assert isinstance(file, safetensors.safe_open)
    Path("text.safetensors").write_text("no checkpoint at all")
    for name, error in {"text.safetensors": safetensors.SafetensorError, "missing": FileNotFoundError}.items():
        with pytest.raises(error):
            squeeze.safe_open(name, framework="pt")


def test_a_packed_file_at_a_local_url(packed):
    with squeeze.safe_open(f"file://{Path.cwd()}/{packed}", framework="pt") as file:
        assert file.get_tensor("half").shape == (64, 100)


@pytest.fixture
def packed():
    write("plain.safetensors", tensors())
    squeeze.pack("plain.safetensors", "packed.safetensors")
    return Path("packed.safetensors")


def test_errors_are_those_of_both_libraries(packed):
    with squeeze.safe_open(packed, framework="pt") as file:
        for take in (file.get_tensor, file.get_slice):
            with pytest.raises(safetensors.SafetensorError, match=r"File does not contain tensor 'x\\n'"):
                take("x\n")
        part = file.get_slice("wide")
    for take in (lambda: file.get_tensor("wide"), lambda: part[0]):
        with pytest.raises(squeeze.SqueezeError, match="File is closed"):
            take()
    cases = {
        "framework must be pt or np for packed files, got tf": {"framework": "tf"},
        "device must be cpu for framework np, got cuda": {"framework": "np", "device": "cuda"},
    }
    for message, options in cases.items():
        with pytest.raises(OpenError, match=message):
            squeeze.safe_open(packed, **options)


@pytest.mark.parametrize("name", ["layer.weight", "noise"])
def test_a_damaged_tensor_is_named(packed, name):
    tensor, data = container.read(packed).file.by_name[name], bytearray(packed.read_bytes())
    data[tensor.begin + tensor.size // 2] ^= 16
    packed.write_bytes(data)
    with squeeze.safe_open(packed, framework="pt") as file:
        with pytest.raises(safetensors.SafetensorError, match=f"^tensor '{name}': .*"):
            file.get_tensor(name)
        assert file.get_tensor("half").shape == (64, 100)


def test_limits_and_a_damaged_description(packed):
    with pytest.raises(OpenError, match=r"needs .* bytes of memory"):
        squeeze.safe_open(packed, framework="pt", limits=squeeze.Limits(memory=1000))
    text = packed.read_bytes()
    packed.write_bytes(text.replace(b'\\"format\\":1', b'\\"format\\":7'))
    with pytest.raises(OpenError, match=r"^packed.safetensors: the description .* is damaged: its checksum differs$"):
        squeeze.safe_open(packed, framework="pt")


def test_a_difference_finds_its_base(packed):
    other = {name: (dtype, shape, bytes(data)) for name, (dtype, shape, data) in tensors(rows=64).items()}
    hurt = bytearray(other["layer.weight"][2])
    hurt[100] ^= 1
    write("tuned.safetensors", other | {"layer.weight": ("BF16", (64, 256), bytes(hurt))})
    squeeze.pack("tuned.safetensors", "difference.safetensors", base=packed)
    with (
        squeeze.safe_open("difference.safetensors", framework="pt") as file,
        safetensors.safe_open("tuned.safetensors", framework="pt") as plain,
    ):
        assert torch.equal(file.get_slice("layer.weight")[3:9], plain.get_tensor("layer.weight")[3:9])
    packed.unlink()
    with pytest.raises(OpenError, match=r"^difference.safetensors is stored as a difference, and its base is not"):
        squeeze.safe_open("difference.safetensors", framework="pt")


def test_a_loader_that_was_written_for_safetensors_takes_it(packed, monkeypatch):
    expected = safetensors.torch.load_file("plain.safetensors")
    monkeypatch.setattr(safetensors.torch, "safe_open", squeeze.safe_open)
    found = safetensors.torch.load_file(packed)
    assert found.keys() == expected.keys()
    assert all(bytes_of(found[name]) == bytes_of(tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_shard_of_a_difference_finds_the_base_beside_its_folder(is_there):
    """Also in a folder within the packed one, as pipelines have them."""
    for name in ("one", "two"):
        model_folder(name)
        write(f"{name}/sub/other.safetensors", tensors(3))
    Path("packed").mkdir()
    squeeze.pack("one", "packed/one")
    squeeze.pack("two", "packed/two", base="packed/one")
    if not is_there:
        Path("packed/one").rename("elsewhere")
        with pytest.raises(OpenError, match=r"^/.*packed/two is stored as a difference, and its base is not"):
            squeeze.safe_open("packed/two/sub/other.safetensors", framework="np")
        return
    for path in sorted(Path("two").rglob("*.safetensors")):
        with (
            squeeze.safe_open(Path("packed") / path, framework="pt") as packed,
            safetensors.safe_open(path, framework="pt") as plain,
        ):
            assert any(record.coding.is_difference for _, record in packed._records.values())
            for name in plain.keys():  # noqa: SIM118 - it is no mapping
                assert bytes_of(packed.get_tensor(name)) == bytes_of(plain.get_tensor(name))
