"""AWQ's search: the function stays, what is rounded then errs less, and where values are shared, scales are, too."""

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.forward import input_squares
from squeeze.errors import ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.awq import AWQ, scaled
from squeeze.quant.formats import read
from squeeze.quant.rtn import RTN
from tests.makers import networks

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 100, (8, 32), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
SIZES |= {"intermediate_size": 96, "num_key_value_heads": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A network some of whose channels are large, with biases, in float32, whose heads share values."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)
    made = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in made.named_parameters():
        if "layernorm" in name:
            parameter.data[:3] = torch.tensor([30.0, -25.0, 0.0])
        elif name.endswith("bias"):
            parameter.data.normal_()
        elif name.endswith(("up_proj.weight", "v_proj.weight")):
            parameter.data[:4] *= 20
    made.save_pretrained(tmp_path_factory.mktemp("awq") / "model")
    return tmp_path_factory.getbasetemp() / "awq0" / "model"


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


def test_the_function_stays(tmp_path, model):
    made = {"calibration": TOKENS, "format": "dense", "overwrite": True}
    squeeze.quantize(model, AWQ(bits=8, group_size=-1), out=tmp_path / "out", **made)
    assert (logits(model) - logits(tmp_path / "out")).norm() < 0.01 * logits(model).norm()
    whole = scaled(Checkpoint.open(model), TOKENS, lambda name: AWQ(bits=3, group_size=32))
    network = load_model(model)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(whole.load([name])[name])
        torch.testing.assert_close(network(TOKENS).logits, logits(model), rtol=1e-3, atol=1e-3)
    v_proj = whole.rows["model.layers.0.self_attn.v_proj"]
    o_proj = whole.columns["model.layers.0.self_attn.o_proj"]
    assert v_proj.shape == (32,) and torch.equal(o_proj.reshape(2, 2, 16)[:, 1], v_proj.reshape(2, 16))
    assert len(whole.norms) == 4 and (v_proj > 1).any()


@pytest.mark.parametrize("leaf", ["self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj", "self_attn.o_proj"])
def test_rounding_errs_less(model, leaf):
    checkpoint, method = Checkpoint.open(model), AWQ(bits=3, group_size=32)
    name, plain = f"model.layers.1.{leaf}", RTN(bits=3, group_size=32, clip=False)
    changed = scaled(checkpoint, TOKENS, lambda name: method)
    squares = input_squares(checkpoint, TOKENS)[name]
    weight, larger = (one.load([f"{name}.weight"])[f"{name}.weight"] for one in (checkpoint, changed))
    factors = (larger / weight).nanmedian(0).values
    before = plain.apply(weight).dequantize() - weight
    after = plain.apply(larger).dequantize() / factors - weight
    assert (after.square() * squares).sum() < (before.square() * squares).sum()


def test_it_loses_less_than_rounding(tmp_path, model):
    wanted, lost = logits(model), {}
    methods = {
        "rtn": RTN(bits=3, group_size=32),
        "awq": AWQ(bits=3, group_size=32),
        "awq, gptq": AWQ(bits=3, group_size=32, sweep=True),
    }
    for name, method in methods.items():
        report = squeeze.quantize(model, method, out=tmp_path / name, calibration=TOKENS, format="dense")
        lost[name] = float((logits(tmp_path / name) - wanted).norm())
        assert "instead" not in str(report.fallbacks) and report.method == ("rtn" if name == "rtn" else "awq")
    assert lost["awq, gptq"] < lost["awq"] < lost["rtn"]


def test_its_own_format_is_read_back(tmp_path, model):
    """Also of a model in bfloat16 whose scales are too small for float16, which are larger then."""
    network = load_model(model).to(torch.bfloat16)
    network.model.layers[0].mlp.up_proj.weight.data *= 1e-7
    network.save_pretrained(tmp_path / "small")
    made = {"calibration": TOKENS, "symmetric": False}
    squeeze.quantize(tmp_path / "small", "awq", out=tmp_path / "out", format="awq", group_size=32, **made)
    squeeze.quantize(tmp_path / "small", "awq", out=tmp_path / "own", format="squeeze", group_size=32, **made)
    stored, own = read(tmp_path / "out"), read(tmp_path / "own")
    assert stored.format.name == "awq" and stored.spec.ignored == ("lm_head",) and len(stored.modules) == 14
    for name, weight in stored.weights():
        assert weight.scales.dtype == torch.float16 and weight.zeros is not None
        if "layers.0" in name and "up_proj" not in name and "down_proj" not in name:
            assert (weight.dequantize() - own.weight(name).dequantize()).norm() < 0.1 * weight.dequantize().norm()
    squeeze.densify(tmp_path / "out", tmp_path / "dense")
    assert (logits(tmp_path / "out") - logits(tmp_path / "dense")).norm() < 0.02 * logits(tmp_path / "dense").norm()


def test_what_does_not_go_together(tmp_path, model):
    for other in ({"rotate": True}, {"smooth": 0.2}):
        with pytest.raises(SqueezeError, match="awq scales channels itself: leave out rotation"):
            squeeze.quantize(model, "awq", out=tmp_path / "out", calibration=TOKENS, group_size=32, **other)
    with pytest.raises(ModelError, match="the channels of architecture 'gpt2' cannot be scaled; those of llama"):
        scaled(Checkpoint.open(networks.save("gpt2", tmp_path / "gpt2")), TOKENS, lambda name: AWQ())


def test_a_matrix_that_is_left_is_scaled_but_not_searched_for(tmp_path, model):
    whole = scaled(Checkpoint.open(model), TOKENS, lambda name: None if "mlp" in name else AWQ())
    assert set(whole.rows) == {f"model.layers.{n}.self_attn.v_proj" for n in (0, 1)} and len(whole.norms) == 2
