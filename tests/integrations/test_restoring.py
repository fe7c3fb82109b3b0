"""Packed folders in quantised forms of others compute what they do unpacked, in transformers and by our own code."""

import json

import pytest
import torch

import squeeze
from squeeze.errors import DamagedError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.packing import container
from squeeze.quant.formats import read
from squeeze.quant.rtn import RTN
from tests.makers import gguf_models
from tests.makers.cases import every

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
integration = pytest.importorskip("squeeze.integrations.transformers")
restoring = pytest.importorskip("squeeze.integrations.restoring")

pytestmark = pytest.mark.filterwarnings("ignore")
TOKENS = torch.randint(3, 390, (2, 24), generator=torch.Generator().manual_seed(2))
ALONE = {"gptq": "gptq", "awq": "awq", "bitsandbytes": "bitsandbytes"}
NAMED = {"w4a16": "pack-quantized", "w8a8": "int-quantized", "fp8": "float-quantized", "nvfp4": "nvfp4-pack-quantized"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes a folder in a form or scheme, and the same folder packed."""
    root, known = tmp_path_factory.mktemp("quantised"), {}
    source = gguf_models.save("llama", root / "model", dtype=torch.bfloat16)

    def make(name):
        if name not in known:
            options = {"method": "rtn", "scheme": name, "calibration": TOKENS}
            if name in ALONE:
                grid = {"grid": "nf4-nested"} if name == "bitsandbytes" else {"symmetric": name == "gptq"}
                options = {"method": RTN(bits=4, group_size=64, **grid), "format": name, "calibration": TOKENS}
            squeeze.quantize(source, options.pop("method"), out=root / name, **options)
            squeeze.pack(root / name, root / f"{name}-packed")
            known[name] = root / name, root / f"{name}-packed"
        return known[name]

    return make


def logits(model):
    with torch.no_grad():
        return model(TOKENS).logits


def without_a_type(folder):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name in ("dtype", "torch_dtype"):
        config.pop(name, None)
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("name", every(2, [*NAMED, *ALONE]))
def test_our_own_code_computes_what_it_does_unpacked(made, name):
    plain, packed = made(name)
    described = json.loads((packed / "config.json").read_text())["quantization_config"]
    assert described.get("format") == NAMED.get(name) or name in ALONE
    assert torch.equal(logits(load_model(packed)), logits(load_model(plain)))


@pytest.mark.parametrize("name", NAMED)
def test_transformers_computes_what_it_does_unpacked(made, name):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    plain, packed = made(name)
    models = [transformers.AutoModelForCausalLM.from_pretrained(folder) for folder in (plain, packed)]
    assert models[0].dtype == models[1].dtype
    assert torch.equal(*map(logits, models))


def test_transformers_without_a_type_in_the_configuration(made, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    squeeze.unpack(made("w4a16")[1], tmp_path / "plain")
    without_a_type(tmp_path / "plain")
    squeeze.pack(tmp_path / "plain", tmp_path / "packed")
    auto = transformers.AutoModelForCausalLM
    models = [auto.from_pretrained(tmp_path / name, dtype="auto") for name in ("plain", "packed")]
    assert models[0].dtype == models[1].dtype
    assert torch.equal(*map(logits, models))


def test_nothing_stays_of_what_was_restored(made, monkeypatch, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = [transformers.AutoModelForCausalLM.from_pretrained(made("w4a16")[1]), load_model(made("gptq")[1])]
    assert kept and not list(tmp_path.iterdir())


def test_a_flipped_bit_is_told(made, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    packed = tmp_path / "packed"
    squeeze.pack(made("w4a16")[0], packed)
    path = packed / "model.safetensors"
    tensor = max(container.read(path).file.tensors, key=lambda tensor: tensor.size)
    hurt = bytearray(path.read_bytes())
    hurt[tensor.begin + tensor.size // 2] ^= 1
    path.write_bytes(hurt)
    for load in (transformers.AutoModelForCausalLM.from_pretrained, load_model):
        with pytest.raises(DamagedError) as told:
            load(packed)
        assert str(path) in str(told.value) and tensor.name in str(told.value) and "\n" not in str(told.value)


def test_a_difference_is_unpacked_first(made, tmp_path):
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    plain, packed = made("w4a16")
    squeeze.pack(plain, tmp_path / "packed", base=packed)
    with pytest.raises(SqueezeError, match=r"is packed as a difference: use `squeeze unpack` first$"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "packed")


def test_refuses_resident_weights_and_products_of_restored_folders(made):
    for options in ({"resident": 1 << 20}, {"product": "fused"}):
        with pytest.raises(
            SqueezeError,
            match=r"is packed and quantised as gptq, so all of it is decoded at once: leave out `resident`",
        ):
            load_model(made("gptq")[1], **options)


def test_errors_name_the_packed_folder(made, tmp_path):
    packed = tmp_path / "packed"
    squeeze.pack(made("gptq")[0], packed)
    with pytest.raises(SqueezeError, match=r"packed: no$"), restoring.restored(packed) as plain:
        assert read(plain).modules
        raise SqueezeError(f"{plain}: no")
