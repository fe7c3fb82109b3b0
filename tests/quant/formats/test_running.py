"""Test what compressed-tensors does as a network runs: rotations of what is multiplied, and a KV cache in FP8."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import Recorder
from squeeze.engine.network import Network, run_block
from squeeze.errors import FormatError, ModelError
from squeeze.integrations import compressed_tensors, quantised
from squeeze.integrations.load_model import load_model
from squeeze.kv.contract import CACHE
from squeeze.quant.formats import read
from squeeze.quant.kv_scales import attentions
from squeeze.quant.rotate import RotatedCheckpoint
from tests.makers import gguf_models

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")

TOKENS = torch.randint(3, 390, (11, 48), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return gguf_models.save("llama", tmp_path_factory.mktemp("running") / "model", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def turned(original, tmp_path_factory):
    """In 8 bits, inputs as they are."""
    out = tmp_path_factory.mktemp("turned") / "out"
    squeeze.quantize(original, "rtn", out=out, scheme="w8a16", group_size=32, rotate="full")
    return out


@pytest.fixture(scope="module")
def scaled(original, tmp_path_factory):
    out = tmp_path_factory.mktemp("scaled") / "out"
    squeeze.quantize(original, "rtn", out=out, scheme="w8a8", kv_scheme="fp8", calibration=TOKENS)
    return out


def sylvester(size):
    """Signs by the parity of the bits that two indices share."""
    shared, parity = torch.arange(size)[:, None] & torch.arange(size), 0
    for bit in range(size.bit_length()):
        parity = parity ^ (shared >> bit & 1)
    return (1 - 2 * parity).double() / size**0.5


def described(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def logits(model, tokens=TOKENS, **options):
    with torch.no_grad():
        return model(tokens, **options).logits


pytestmark = pytest.mark.filterwarnings("ignore")


def test_rotations_at_run_time_leave_the_function(original, turned):
    wanted, found = logits(load_model(original)), logits(load_model(turned))
    assert float((found - wanted).norm()) < 0.02 * float(wanted.norm())


def test_the_package_turns_inputs_and_keys_as_described(original, turned):
    """Outputs are those of a plain network with the stored weights, whose matrices are rotated back in float64."""
    groups = described(turned)["transform_config"]["config_groups"]
    assert {name: group["head_dim"] for name, group in groups.items()} == {"R3": 64, "R4": 512}
    model, plain = load_model(turned), load_model(original)
    stored = {f"{name}.weight": weight.dequantize(torch.float32) for name, weight in read(turned).weights()}
    whole = load_file(turned / "model.safetensors") | stored
    for name, parameter in plain.named_parameters():
        value = whole[name].double()
        parameter.data = (value @ sylvester(512) if "down_proj" in name else value).float()
    plain.lm_head.weight = torch.nn.Parameter(whole["lm_head.weight"].float())
    torch.testing.assert_close(logits(model), logits(plain), rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        theirs, ours = (one(TOKENS[:2], use_cache=True)[CACHE] for one in (model, plain))
    for layer, other in zip(theirs.layers, ours.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys @ sylvester(64).float(), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(layer.values, other.values, rtol=1e-3, atol=1e-3)


def test_the_calibration_sees_turned_inputs(original):
    """And what a block gives, also by way of inputs that were kept, is what it gives without rotations."""
    checkpoint, name, seen = Checkpoint.open(original), "mlp.down_proj", {}
    for online in (False, True):
        network = Network(RotatedCheckpoint.of(checkpoint, online=online))
        call, hidden = network.calls(TOKENS)[0], next(network.first_inputs(TOKENS))
        block = network.load(network.blocks[0])
        with torch.no_grad(), Recorder(block, [name], lambda _, x, online=online: seen.update({online: x})):
            seen[f"output {online}"] = run_block(block, hidden, call)
    torch.testing.assert_close(seen[True].double(), seen[False].double() @ sylvester(512), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(seen["output True"], seen["output False"], rtol=0.05, atol=0.05)  # bf16 weights


def test_kept_inputs_are_not_turned_twice(original, tmp_path):
    """Two blocks, of which the second is calibrated on what comes out of the first's kept inputs."""
    report = squeeze.quantize(original, "gptq", out=tmp_path / "out", scheme="w8a16", calibration=TOKENS, rotate="full")
    assert all(layer.error < 1e-3 for layer in report.layers)
    lost = {}
    wanted = logits(load_model(original))
    for method in ("rtn", "gptq"):
        out = tmp_path / method
        squeeze.quantize(
            original, method, out=out, scheme="w4a16", group_size=32, calibration=TOKENS, rotate="full", samples=11
        )
        lost[method] = float((logits(load_model(out)) - wanted).norm())
    assert lost["gptq"] < 0.9 * lost["rtn"]


def test_plain_transformers_with_our_loader_runs_them(turned):
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    import squeeze.integrations.transformers  # noqa: F401  it registers the loader

    model = AutoModelForCausalLM.from_pretrained(turned, dtype=torch.float32).eval()
    assert torch.equal(logits(model), logits(load_model(turned)))
    assert "transform_config" in model.config.quantization_config.to_dict()
    dense = CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(turned, dtype=torch.float32, quantization_config=dense).eval()
    # The package makes weights dense in the folder's bf16; unturned inputs are off by more than 1.
    torch.testing.assert_close(logits(model), logits(load_model(turned)), rtol=0, atol=0.05)


def test_who_cannot_turn_says_so(turned, tmp_path):
    told = r": what its weights are given is rotated at run time \(R3, R4\), by transformers with the package "
    message = f"^{re.escape(str(turned))}{told}compressed-tensors"
    with pytest.raises(FormatError, match=message):
        quantised.load(turned)
    with pytest.raises(FormatError, match=message):
        squeeze.quantize(turned, "rtn", out=tmp_path / "out")


@pytest.mark.parametrize("format", ["gguf", "gptq", "awq", "squeeze", "dense"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotate": "full"}, "has no rotations at run time: rotate full needs compressed-tensors"),
        ({"kv_scheme": "fp8"}, "has no scales of a KV cache: kv_scheme needs compressed-tensors"),
    ],
)
def test_formats_without_rotations_or_kv_scales_refuse_them(tmp_path, original, format, options, message):
    with pytest.raises(FormatError, match=f"the format {format} {message}"):
        squeeze.quantize(original, "rtn", out=tmp_path / "out", format=format, **options)
    assert not (tmp_path / "out").exists()


def test_widths_that_no_power_of_two_divides(tmp_path):
    source = gguf_models.save("llama", tmp_path / "model", intermediate_size=255)
    with pytest.raises(
        ModelError, match=r"expected an even number of inputs of mlp\.down_proj, to rotate at run time, got 255"
    ):
        squeeze.quantize(source, "rtn", out=tmp_path / "out", rotate="full")


def test_the_package_rounds_the_cache_as_we_do(scaled):
    scheme = described(scaled)["kv_cache_scheme"]
    assert scheme["num_bits"] == 8 and scheme["strategy"] == "tensor"
    theirs, ours = load_model(scaled), quantised.load(scaled, torch.float32)
    seen = {}
    with torch.no_grad():
        for name, model in (("theirs", theirs), ("ours", ours)):
            seen[name] = model(TOKENS, use_cache=True)
    # A sum in another order may round an input of a later layer to the next integer, as in test_schemes.py.
    assert float((seen["ours"].logits - seen["theirs"].logits).norm() / seen["theirs"].logits.norm()) < 1e-2
    first, other = (seen[name][CACHE].layers[0] for name in ("theirs", "ours"))
    attention = dict(attentions(theirs))["model.layers.0.self_attn"]
    for part, scale in (("keys", attention.k_scale), ("values", attention.v_scale)):
        kept = getattr(first, part)
        codes = kept / scale
        assert torch.equal(codes.to(torch.float8_e4m3fn).float() * scale, kept)
        assert float((getattr(other, part) - kept).abs().max()) <= 0.07 * float(kept.abs().max())
        assert float((getattr(other, part) != kept).float().mean()) < 0.01


def test_a_cache_that_would_not_be_quantised_is_refused(scaled, monkeypatch):
    from compressed_tensors.quantization.lifecycle import apply, initialize

    for place in (apply, initialize):
        monkeypatch.setattr(place, "is_cached_attention_module", lambda module: False)
    monkeypatch.setattr(compressed_tensors, "CACHE", "past_key_values")
    with pytest.raises(FormatError, match="finds no attention layer whose KV cache it could quantise"):
        load_model(scaled)


def test_scales_are_those_of_the_largest_keys_and_values(original, scaled):
    with torch.no_grad():
        cache = load_model(original)(TOKENS, use_cache=True)[CACHE]
    tensors = read(scaled).tensors
    for number, layer in enumerate(cache.layers):
        for part, leaf in ((layer.keys, "k_scale"), (layer.values, "v_scale")):
            scale = tensors[f"model.layers.{number}.self_attn.{leaf}"]
            assert scale.shape == (1,) and scale.dtype == torch.bfloat16
            torch.testing.assert_close(scale.float(), part.abs().amax().reshape(1) / 448, rtol=0.01, atol=0)


def test_a_dense_copy_has_no_scales_of_a_cache(scaled, tmp_path):
    squeeze.densify(scaled, tmp_path / "dense")
    assert not [name for name in load_file(tmp_path / "dense" / "model.safetensors") if "_scale" in name]


def test_a_cache_without_scales_and_in_another_form(scaled, tmp_path):
    other = shutil.copytree(scaled, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    del tensors["model.layers.1.self_attn.v_scale"]
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(FormatError, match=r"1\.self_attn\.v_scale: expected one scale of the FP8 KV cache"):
        quantised.load(other)
    config = json.loads((other / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"]["num_bits"] = 4
    (other / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="expected a kv_cache_scheme of FP8 with one scale a layer"):
        quantised.load(other)


@pytest.mark.parametrize(("bits", "group_size"), [(3, -1), (4, 32)])
def test_zero_points_are_packed_along_outputs(original, tmp_path, bits, group_size):
    """Zero points are packed as the package packs them; transformers' own loader allocates other shapes."""
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    out = tmp_path / "out"
    squeeze.quantize(original, "rtn", out=out, bits=bits, group_size=group_size, symmetric=False)
    name, stored = "model.layers.1.self_attn.k_proj", load_file(out / "model.safetensors")
    zeros = read(out).weight(name).zeros.to(torch.int8) - 2 ** (bits - 1)
    assert torch.equal(stored[f"{name}.weight_zero_point"], pack_to_int32(zeros, bits, packed_dim=0))
    theirs, ours = load_model(out), quantised.load(out, torch.float32)
    assert hasattr(theirs.model.layers[1].self_attn.k_proj, "quantization_scheme")
    torch.testing.assert_close(logits(theirs), logits(ours), rtol=1e-4, atol=1e-4)


def test_zero_points_with_rotations_in_plain_transformers_with_our_loader(original, tmp_path):
    from transformers import AutoModelForCausalLM

    import squeeze.integrations.transformers  # it registers the loader

    squeeze.quantize(original, "rtn", out=tmp_path / "out", bits=8, symmetric=False, group_size=32, rotate="full")
    wanted, found = logits(load_model(original)), logits(load_model(tmp_path / "out"))
    assert float((found - wanted).norm()) < 0.02 * float(wanted.norm())
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()  # in bfloat16, expanded at the first run
    assert float((logits(plain).float() - found).norm()) < 0.05 * float(found.norm())


def test_a_cache_in_fp8_is_of_turned_keys_and_leaves_queries(original, turned, tmp_path):
    out = tmp_path / "out"
    options = {"scheme": "w8a16", "group_size": 32, "rotate": "full"}
    squeeze.quantize(original, "rtn", out=out, kv_scheme="fp8", calibration=TOKENS, **options)
    rounded, plain, seen = load_model(out), load_model(turned), {}
    for key, model in (("rounded", rounded), ("plain", plain)):

        def look(_, args, key=key):
            seen.setdefault(key, args[1])

        model.model.layers[0].self_attn.impl.register_forward_pre_hook(look)
    with torch.no_grad():
        caches = [model(TOKENS, use_cache=True) for model in (rounded, plain)]
    assert torch.equal(seen["rounded"], seen["plain"])
    ours, exact = (one[CACHE].layers[0] for one in caches)
    attention = dict(attentions(rounded))["model.layers.0.self_attn"]
    for part, scale in (("keys", attention.k_scale), ("values", attention.v_scale)):
        wanted = (getattr(exact, part) / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        torch.testing.assert_close(getattr(ours, part), wanted, rtol=1e-6, atol=0)
    assert 0 < float((caches[0].logits - caches[1].logits).norm()) < 0.05 * float(caches[1].logits.norm())
