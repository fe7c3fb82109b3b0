"""`--embeddings` and `--head`: what is stored, how it loads, what counts, and what is refused."""

import json

import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine import sensitivity
from squeeze.engine.network import Network
from squeeze.engine.outer import embedding_of, head_of, is_tied, last_inputs
from squeeze.engine.sensitivity import tied_statistics
from squeeze.errors import FormatError, ModelError, OptionError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.embedding import QuantEmbedding, TiedLinear
from squeeze.quant.linear import QuantLinear
from squeeze.recipes.quantizing import outer
from tests.makers import networks, zoo, zoo_others
from tests.makers.cases import all_slow_but

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (8, 32), generator=torch.Generator().manual_seed(1))
OWN = {"format": "squeeze", "bits": 8, "group_size": 32, "calibration": TOKENS}


def logits(folder):
    with torch.no_grad():
        return load_model(folder)(TOKENS).logits


def distance(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("kind", all_slow_but(["llama", "gpt2"], ["llama", "qwen2", "gpt2", "qwen2_moe"]))
def test_embeddings_and_heads_are_stored_once_and_load_quantised(tmp_path, folders, kind):
    source, tied = folders(kind), kind in ("qwen2", "gpt2")
    report = squeeze.quantize(source, "gptq", out=tmp_path / "q", embeddings=8, head=8, **OWN)
    outside = {one.name: one.method for one in report.layers if not {"layers", "h"} & set(one.name.split("."))}
    assert list(outside.values()) == (["gptq"] if tied else ["rtn", "gptq"])
    assert "lm_head" not in report.left
    names = Checkpoint.open(tmp_path / "q").files
    assert ("lm_head.codes" in names) != tied
    assert not [name for name in names if name in ("lm_head.weight", *(f"{module}.weight" for module in outside))]
    model = load_model(tmp_path / "q")
    assert isinstance(model.get_input_embeddings(), QuantEmbedding)
    assert isinstance(model.get_output_embeddings(), TiedLinear if tied else QuantLinear)
    squeeze.densify(tmp_path / "q", tmp_path / "dense")
    assert distance(logits(tmp_path / "q"), logits(tmp_path / "dense")) < 0.02  # dense weights are in bf16
    assert distance(logits(tmp_path / "q"), logits(source)) < 0.08  # experts may get other tokens


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_one_scheme_is_4_bits_for_all_matrices(tmp_path, folders, kind):
    report = squeeze.quantize(folders(kind), scheme="whole4", calibration=TOKENS, out=tmp_path / "q")
    assert report.format == "squeeze" and all(4.25 <= layer.bits < 4.27 for layer in report.layers)
    assert all(bits < 4.6 for bits in report.outer.values()) and report.outer
    files = Checkpoint.open(tmp_path / "q").files
    assert ("lm_head.codes" in files) == (kind == "llama") and "model.embed_tokens.codebook" in files
    squeeze.densify(tmp_path / "q", tmp_path / "dense")
    assert distance(logits(tmp_path / "q"), logits(tmp_path / "dense")) < 0.02
    squeeze.quantize(folders(kind), "rtn", scheme="whole4", out=tmp_path / "rounded")
    lost = [distance(logits(tmp_path / name), logits(folders(kind))) for name in ("q", "rounded")]
    assert lost[0] < lost[1]


def test_the_scheme_takes_a_model_without_a_head_and_leaves_what_is_named(tmp_path, folders):
    options = {"scheme": "whole4", "calibration": TOKENS, "group_size": 16}
    report = squeeze.quantize(folders("llama"), out=tmp_path / "q", embeddings=16, **options)
    assert report.outer["model.embed_tokens"] == 16 and report.outer["lm_head"] < 5
    with pytest.raises(OptionError, match="`scheme` whole4 needs the format squeeze, got dense"):
        squeeze.quantize(folders("llama"), out=tmp_path / "d", format="dense", **options)
    bert = zoo_others.write(tmp_path / "bert", "BertModel")
    samples = zoo_others.samples("BertModel", 4)
    found = squeeze.quantize(bert, scheme="whole4", calibration=samples, out=tmp_path / "b")
    assert list(found.outer.values()) == [pytest.approx(4.25, abs=0.3)]


def test_the_blocks_are_calibrated_on_the_quantised_embedding(tmp_path, folders):
    plain = squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "plain", **OWN)
    report = squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "q", embeddings=4, **OWN)
    first = {one.name: one.error for one in plain.layers}, {one.name: one.error for one in report.layers}
    assert first[0]["model.layers.0.self_attn.q_proj"] != first[1]["model.layers.0.self_attn.q_proj"]


def test_a_head_is_calibrated_on_its_own_inputs(folders):
    network = Network(Checkpoint.open(folders("llama")))
    seen = []
    model = load_model(folders("llama"))
    model.lm_head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    states = []
    model.model.norm.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    with torch.no_grad():
        for ids in TOKENS[:2]:
            model(ids[None])
    found = list(last_inputs(network, "lm_head", TOKENS, [state.reshape(32, -1) for state in states]))
    assert torch.allclose(torch.stack(found), torch.cat(seen), atol=1e-5)
    assert network.module("lm_head").weight.is_meta


@pytest.mark.parametrize("tied", [True, False])
def test_the_size_counts_embedding_and_head(tmp_path, folders, tied):
    source = folders("qwen2" if tied else "llama")
    size = 60_000
    options = {**OWN, "bits": 4, "target_bytes": size, "embeddings": 4, "head": 4}
    report = squeeze.quantize(source, "rtn", out=tmp_path / "q", **options)
    assert 0.9 * size < report.stored_bytes <= size
    line = next(line for line in report.table().split("\n") if "embedding and head" in line)
    assert line.endswith(", 5.01 bits per weight")  # zero points of two groups take a whole word


def test_a_stopped_run_continues(tmp_path, folders, monkeypatch):
    wanted = squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "whole", embeddings=8, head=4, **OWN)
    from squeeze.engine import pipeline

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "compressed_head", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "q", embeddings=8, head=4, **OWN)
    report = squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "q", embeddings=8, head=4, resume=True, **OWN)
    assert [(one.name, one.error) for one in report.layers] == [(one.name, one.error) for one in wanted.layers]
    assert torch.equal(logits(tmp_path / "q"), logits(tmp_path / "whole"))


def test_a_head_of_its_own_is_stored_in_compressed_tensors(tmp_path, folders):
    options = {**OWN, "format": "compressed-tensors", "head": 4}
    squeeze.quantize(folders("llama"), "gptq", out=tmp_path / "q", **options)
    config = json.loads((tmp_path / "q" / "config.json").read_text())["quantization_config"]
    assert "lm_head" not in config["ignore"]
    assert "lm_head.weight_packed" in Checkpoint.open(tmp_path / "q").files
    squeeze.densify(tmp_path / "q", tmp_path / "dense")
    assert distance(logits(tmp_path / "q"), logits(tmp_path / "dense")) < 0.02


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        ("llama", {"embeddings": 5}, OptionError, r"^embeddings must be 4, 8 or 16, got 5$"),
        ("llama", {"embeddings": 4, "format": "gptq"}, FormatError, "`embeddings`: not in the format gptq"),
        ("llama", {"embeddings": 4, "format": "compressed-tensors"}, FormatError, "transformers does not load"),
        ("qwen2", {"head": 4, "format": "compressed-tensors"}, FormatError, "one matrix with the embedding"),
        ("qwen2", {"head": 4, "embeddings": 8}, OptionError, "one matrix here, got 8 and 4 bits"),
        ("llama", {"head": 4, "method": "trellis"}, SqueezeError, "need a method on a grid, got trellis"),
    ],
)
def test_what_cannot_be_held_is_refused(tmp_path, folders, kind, options, error, message):
    given = {**OWN, "method": "rtn", **options}
    if given["method"] == "trellis":
        given = {key: value for key, value in given.items() if key not in ("bits", "group_size")}
    with pytest.raises(error, match=message):
        squeeze.quantize(folders(kind), out=tmp_path / "q", **given)
    assert not (tmp_path / "q").exists()


def test_names_are_found(folders):
    for kind, names in {"llama": ("model.embed_tokens", False), "gpt2": ("transformer.wte", True)}.items():
        network = Network(Checkpoint.open(folders(kind)))
        assert (embedding_of(network), is_tied(network)) == names
        assert head_of(network) == "lm_head"


def test_a_tie_that_the_weights_contradict_is_refused(tmp_path, folders):
    folder = networks.save("llama", tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(ModelError, match="ties the output head to the embedding, and they differ"):
        squeeze.quantize(folder, "rtn", out=tmp_path / "q", embeddings=8, **OWN)


def test_a_tied_embedding_is_weighed_by_both_of_its_uses(folders):
    network = Network(Checkpoint.open(folders("qwen2")))
    found = tied_statistics(network, "lm_head", TOKENS)
    model, tokens = load_model(folders("qwen2")), TOKENS
    read, predicted, spread = torch.zeros(64, 64), torch.zeros(64, 64), 0.0
    for ids in tokens:
        embedded = model.model.embed_tokens(ids[None]).detach().requires_grad_()
        hidden = model.model(inputs_embeds=embedded).last_hidden_state
        scores = model.lm_head(hidden)[0]
        torch.nn.functional.cross_entropy(scores[:-1], ids[1:], reduction="sum").backward()
        read += embedded.grad[0].T @ embedded.grad[0] / tokens.numel()
        predicted += hidden[0].detach().T @ hidden[0].detach() / tokens.numel()
        spread += float((1 - scores.detach().softmax(-1).square().sum(-1)).mean()) / len(tokens)
    wanted = read + spread * predicted
    assert distance(found.hessian, wanted) < 1e-4
    assert found.count == tokens.numel()


def test_rows_decide_the_block_type_of_four_bits():
    assert [outer._block_type("x", 4, inputs) for inputs in (256, 576)] == ["q4_k", "iq4_nl"]
    assert outer._block_type("x", 8, 96) == "q8_0"
    with pytest.raises(FormatError, match=r"^x: 40 inputs are not whole blocks of any type of 4 bits$"):
        outer._block_type("x", 4, 40)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text"])
def test_the_scale_of_gemmas_embedding_is_kept(tmp_path, kind):
    source = zoo.write(tmp_path / "model", kind)
    squeeze.quantize(source, "rtn", out=tmp_path / "q", embeddings=8, **OWN)
    scale = load_model(source).get_input_embeddings().embed_scale
    assert torch.equal(load_model(tmp_path / "q").get_input_embeddings().embed_scale, scale)
    assert distance(logits(tmp_path / "q"), logits(source)) < 0.08


def test_what_rows_are_multiplied_by_counts_as_often_as_they_are_read(tmp_path):
    network = Network(Checkpoint.open(zoo.write(tmp_path / "gemma", "gemma3_text")))
    assert sensitivity._factor(network, TOKENS[:1]) == pytest.approx(8.0)  # the root of 64
    config = transformers.OPTConfig(
        vocab_size=300, hidden_size=64, word_embed_proj_dim=32, ffn_dim=96, num_hidden_layers=1, num_attention_heads=4
    )
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path / "opt")
    found = tied_statistics(Network(Checkpoint.open(tmp_path / "opt")), "lm_head", TOKENS)
    assert found.hessian.shape == (32, 32)
