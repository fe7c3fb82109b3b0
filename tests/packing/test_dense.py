"""Dense tensors for other programs' loaders: from packed and plain folders, chains and stores, only those wanted."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.errors import DamagedError, FormatError, OptionError, SqueezeError
from squeeze.packing import container
from squeeze.packing.dense import dense
from squeeze.packing.store import Store
from tests.makers.command import fails, run

pytestmark = pytest.mark.usefixtures("in_folder")


def made(change: float = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "embed.weight": torch.randn(300, 64).mul(0.02).add(change).bfloat16(),
        "layers.0.weight": torch.randn(64, 64).half(),
        "layers.1.weight": torch.randn(64, 64).to(torch.float8_e4m3fn),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 4),
    }


def model(name: str, change: float = 0, shards: int = 1) -> dict[str, torch.Tensor]:
    """Write a model's folder."""
    folder, tensors = Path(name), made(change)
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors
    places = {key: f"model-{n % shards}.safetensors" for n, key in enumerate(tensors)}
    for place in set(places.values()):
        save_file({key: tensors[key] for key, where in places.items() if where == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    save_file({"embed.weight": torch.ones(2)}, folder / "consolidated.safetensors")  # what the index does not name
    return tensors


def same(found, expected) -> None:
    assert dict(found).keys() == expected.keys()
    for name, tensor in dict(found).items():
        assert (tensor.dtype, tensor.shape) == (expected[name].dtype, expected[name].shape)
        assert torch.equal(tensor.contiguous().view(-1).view(torch.uint8), expected[name].view(-1).view(torch.uint8))


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", ["runtime", "fast", "archive", None])
def test_tensors_are_those_of_the_original(shards, threads, level):
    expected = model("model", shards=shards)
    if level:
        squeeze.pack("model", "packed", level=level)
    tensors = dense("packed" if level else "model", threads=threads)
    same(tensors.stream(), expected)
    same(tensors, expected)
    assert tensors.nbytes == sum(tensor.nbytes for tensor in expected.values())
    assert {name: tensors.shape(name) for name in tensors} == {name: one.shape for name, one in expected.items()}
    assert all(tensors.dtype(name) == tensor.dtype for name, tensor in expected.items())
    dict(tensors.stream())["embed.weight"].zero_()  # belongs to the caller
    same(tensors.stream(), expected)


def test_only_wanted_tensors_are_decoded():
    expected = model("model")
    squeeze.pack("model", "packed")
    path = Path("packed/model.safetensors")
    tensors = container.read(path).file.by_name["embed.weight"]
    data = bytearray(path.read_bytes())
    data[(tensors.begin + tensors.end) // 2] ^= 255
    path.write_bytes(data)
    same(dense("packed").stream(lambda name: name.startswith("layers")), {k: expected[k] for k in list(expected)[1:3]})
    with pytest.raises(DamagedError, match=r"tensor 'embed\.weight'"):
        list(dense("packed").stream())


def test_chains_find_their_bases_or_are_told():
    model("model")
    second, third = model("second", 0.001), model("third", 0.002)
    Path("run").mkdir()
    squeeze.pack("model", "run/1")
    squeeze.pack("second", "run/2", base="run/1")
    squeeze.pack("third", "run/3", base="run/2")
    same(dense("run/2").stream(), second)
    same(dense("run/3", threads=2).stream(), third)
    Path("elsewhere").mkdir()
    Path("run/2").rename("elsewhere/2")
    with pytest.raises(SqueezeError, match="its base"):
        dense("run/3")
    Path("run/1").rename("elsewhere/1")
    same(dense("run/3", base="elsewhere/2").stream(), third)
    with pytest.raises(SqueezeError, match="is no difference from a base"):
        dense("elsewhere/1", base="elsewhere/2")


def test_models_of_a_store():
    first, second = model("model"), model("second", 0.001)
    store = Store("store")
    store.add("model")
    store.add("second", base="model")
    for threads in 1, 2:
        same(dense("store", model="model", threads=threads).stream(), first)
        same(dense("store", model="second", threads=threads).stream(), second)
    same(squeeze.load("store", model="second"), second)
    same(squeeze.load("store", model="second", resident="1G"), second)
    with pytest.raises(OptionError, match=r"store: is a store: name one of its models .*model, second"):
        squeeze.load("store")
    with pytest.raises(OptionError, match="name a model"):
        dense("store")
    with pytest.raises(OptionError, match="leave out base"):
        squeeze.load("store", model="second", base="model")
    with pytest.raises(SqueezeError, match="has no model 'third'"):
        squeeze.load("store", model="third")
    with pytest.raises(FormatError, match="not a store"):
        squeeze.load("model", model="second")
    object_of_it = store.objects.place(store.tensor("model", "embed.weight")[0].key)
    object_of_it.chmod(0o644)
    data = bytearray(object_of_it.read_bytes())
    data[len(data) // 2] ^= 255
    object_of_it.write_bytes(data)
    with pytest.raises(DamagedError, match=r"tensor 'embed\.weight'"):
        list(dense("store", model="model").stream())


def test_a_store_gives_the_other_files_alone():
    model("model")
    run("store", "add", "-q", "store", "model")
    run("store", "get", "--without-weights", "store", "model", "files")
    assert [path.name for path in Path("files").iterdir()] == ["config.json"]
    save_file(made(), "alone.safetensors")
    run("store", "add", "-q", "store", "alone.safetensors")
    assert "has only weights" in fails("store", "get", "--without-weights", "store", "alone.safetensors", "other")


def test_what_has_no_weights_is_refused_in_one_line():
    Path("empty").mkdir()
    with pytest.raises(FormatError, match="without files of safetensors"):
        dense("empty")
    Path("model.pt").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"expected a \.safetensors file"):
        dense("model.pt")
    Path("index").mkdir()
    Path("index/model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    with pytest.raises(FormatError, match="not in the folder"):
        dense("index")
    save_file({"a": torch.ones(2)}, "empty/one.safetensors")
    save_file({"a": torch.zeros(2)}, "empty/two.safetensors")
    with pytest.raises(FormatError, match="no index says which counts"):
        dense("empty")
    assert load_file("empty/one.safetensors")["a"].sum() == 2
