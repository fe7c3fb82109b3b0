"""`squeeze experts`: mixtures with fewer experts, or fewer for each token, are plain checkpoints that compute what is
left."""

import json

import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.cli import main
from squeeze.commands.experts import experts as command
from squeeze.engine.report import Report
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.apply import Recipe, apply
from tests.makers import zoo
from tests.makers.mixtures import IDS, KINDS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("scipy", reason="scipy is not installed")

TOKENS = torch.randint(3, 199, (6, 64), generator=torch.Generator().manual_seed(2))


def loaded(folder):
    """Return the model of a folder as transformers alone loads it, without a missing or unknown tensor."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"] and not found["mismatched_keys"]
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("method", ["reap", "norm"])
@pytest.mark.parametrize(("kind", "fused"), [*((kind, False) for kind in KINDS), ("qwen3_moe", True)])
def test_what_is_left_is_the_original_without_the_other_experts(tmp_path, mixture, kind, fused, method):
    source = mixture(kind, fused)
    options = {} if method == "norm" else {"fit": 0, "calibration": TOKENS}
    report = squeeze.experts(source, method, keep=0.67, out=tmp_path / "out", **options)
    whole, small = loaded(source).state_dict(), loaded(tmp_path / "out")
    assert len(report.experts) == (1 if kind == "deepseek_v3" else 2)
    for path, layer in report.experts.items():
        assert (layer["experts"], len(layer["kept"])) == (6, 4)
        for name, tensor in small.state_dict().items():
            if name.startswith(f"{path.removesuffix('.experts')}.") and tensor.shape != whole[name].shape:
                assert torch.equal(tensor, whole[name][layer["kept"]])
    changed = {name for name, tensor in small.state_dict().items() if tensor.shape != whole[name].shape}
    assert all(torch.equal(tensor, whole[name]) for name, tensor in small.state_dict().items() if name not in changed)
    assert Checkpoint.open(tmp_path / "out").files.keys() <= Checkpoint.open(source).files.keys()
    assert report.stored_bytes < report.raw_bytes


def test_experts_that_no_token_needs_can_go_without_a_change(tmp_path, mixture):
    source = loaded(mixture("gpt_oss"))
    with torch.no_grad():
        for layer in source.model.layers:
            layer.mlp.router.bias[[1, 4]] = -1000
    source.to(torch.bfloat16)
    report = squeeze.experts(source, keep=0.67, calibration=TOKENS, fit=0, out=tmp_path / "out")
    assert [layer["kept"] for layer in report.experts.values()] == [[0, 2, 3, 5]] * 2
    assert all(layer["weight"] == 1 and layer["error"] < 1e-9 for layer in report.experts.values())
    torch.testing.assert_close(logits(loaded(tmp_path / "out")), logits(source.float()), rtol=1e-4, atol=1e-4)


def test_fitting_and_merging_change_the_kept_experts_and_fitting_lowers_the_error(tmp_path, mixture):
    errors = {}
    for method in ("reap", "merge"):
        for rounds in (0, 2):
            out = tmp_path / f"{method}{rounds}"
            report = squeeze.experts(mixture("mixtral"), method, keep=0.5, fit=rounds, calibration=TOKENS, out=out)
            errors[method, rounds] = sum(layer["error"] for layer in report.experts.values())
            loaded(out)
    assert errors["reap", 2] < errors["reap", 0] and errors["merge", 2] < errors["merge", 0]
    assert errors["merge", 0] != errors["reap", 0]


def test_a_token_uses_fewer_experts(tmp_path, mixture):
    report = squeeze.experts(mixture("mixtral"), active=1, calibration=TOKENS, out=tmp_path / "out")
    plain = squeeze.experts(mixture("mixtral"), active=1, fit=0, calibration=TOKENS, out=tmp_path / "plain")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["num_experts_per_tok"] == 1
    assert all(len(layer["kept"]) == 6 and 0 < layer["error"] < 2 for layer in report.experts.values())
    assert loaded(tmp_path / "out").model.layers[0].mlp.gate.top_k == 1
    assert report.stored_bytes == report.raw_bytes
    assert all(report.experts[name]["error"] < layer["error"] for name, layer in plain.experts.items())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("deepseek_v3", {"keep": 0.5}, "the router has 2 groups of experts, and 3 experts do not divide into them"),
        ("mixtral", {"keep": 0.17}, "a token uses 2 experts, and 1 would be left: keep more, or use `active`"),
        ("mixtral", {"active": 3}, "a token uses 2 experts: active must be at most that, got 3"),
        ("mixtral", {}, "expected `keep`, the share of experts to keep, or `active`"),
        ("mixtral", {"keep": 1.5}, "keep must be above 0 and at most 1, got 1.5"),
    ],
)
def test_numbers_that_a_router_cannot_have_are_refused(tmp_path, mixture, kind, options, message):
    with pytest.raises(SqueezeError, match=message):
        squeeze.experts(mixture(kind), out=tmp_path / "out", calibration=TOKENS, **options)
    assert not (tmp_path / "out").exists()


def test_models_without_experts_are_refused(tmp_path):
    zoo.write(tmp_path / "in", "llama")
    with pytest.raises(SqueezeError, match="LlamaForCausalLM has no experts that can be reduced"):
        squeeze.experts(tmp_path / "in", keep=0.5, out=tmp_path / "out")


def test_a_table_of_numbers_of_experts_is_refused(tmp_path):
    zoo.write(tmp_path / "in", "deepseek_v4")
    with pytest.raises(SqueezeError, match="routes by a table of numbers of experts"):
        squeeze.experts(tmp_path / "in", keep=0.5, out=tmp_path / "out", calibration=TOKENS)


def test_the_step_of_a_recipe_comes_before_bits_of_experts(tmp_path):
    zoo.write(tmp_path / "in", "qwen3_moe")
    (tmp_path / "text.txt").write_text(zoo.TEXT)
    steps = [{"experts": {"keep": 0.5}}, {"quantize": {"bits": "experts=3,attention=8", "group_size": 32}}]
    recipe = Recipe.parse({"samples": 4, "sequence_length": 64, "calibration": "text.txt", "steps": steps})
    first, second = apply(recipe, tmp_path / "in", tmp_path / "out", calibration=tmp_path / "text.txt")
    assert [len(layer["kept"]) for layer in first.experts.values()] == [2, 2]
    experts = [layer for layer in second.layers if ".experts." in layer.name]
    assert len(experts) == 2 * 2 * 3 and all(layer.bits < 4.1 for layer in experts)
    load_model(tmp_path / "out")
    with pytest.raises(SqueezeError, match="experts cannot follow quantize"):
        Recipe.parse({"steps": steps[::-1]})


def test_the_command_reports_each_layer(tmp_path):
    zoo.write(tmp_path / "in", "olmoe")
    (tmp_path / "text.txt").write_text(zoo.TEXT)
    given = ["--calibration", str(tmp_path / "text.txt"), "--samples", "4", "--sequence-length", "64"]
    words = ["experts", str(tmp_path / "in"), str(tmp_path / "out"), "--keep", "0.5", "--method", "merge", *given]
    done = CliRunner().invoke(main, [*words, "--text", str(tmp_path / "text.txt"), "--windows", "1"])
    assert done.exit_code == 0, done.output
    assert "model.layers.1.mlp.experts                   2 of 4 experts, " in done.output
    assert "experts: 4 of 8 in 2 layers" in done.output and "perplexity: " in done.output
    report = Report.read(tmp_path / "out")
    assert [len(layer["kept"]) for layer in report.experts.values()] == [2, 2]
    assert command.name == "experts"


REFUSED = {
    "axk1": "groups of experts",
    "deepseek_v4": "a table of numbers",
    "dbrx": "no experts that can be reduced",
    "inkling2_text": "of no known expert",
    "jetmoe": "no experts that can be reduced",
    "kimi_linear": "cannot be compressed yet",
    "llama4": "no experts that can be reduced",
    "llama4_text": "no experts that can be reduced",
    "longcat_flash": "cannot be compressed yet",
    "nemotron_h": "cannot be compressed yet",
}
REDUCED = (
    *("afmoe", "aria_text", "axk2", "cohere2_moe", "deepseek_v2", "dots1", "dots3_note_text", "ernie4_5_moe"),
    *("exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "gpt_oss", "granitemoe", "granitemoehybrid"),
    *("granitemoeshared", "granitemoe_swa", "hunyuan_v1_moe", "hy_v3", "hy_v4", "inkling_text", "jamba", "kolibri1"),
    *("laguna", "lfm2_moe", "mellum", "mimo_v2_flash", "minimax", "minimax_m2", "minimax_m3_vl_text", "mixtral"),
    *("olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen4_exp_text", "solar_open", "zaya"),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REDUCED, *REFUSED])
def test_every_architecture_is_reduced_or_refused_in_one_line(tmp_path, name):
    zoo.write(tmp_path / "in", name)
    given = {"keep": 0.5, "calibration": TOKENS[:3, :48], "out": tmp_path / "out"}
    if name in REFUSED:
        with pytest.raises(SqueezeError, match=REFUSED[name]) as caught:
            squeeze.experts(tmp_path / "in", **given)
        assert "\n" not in str(caught.value)
        return
    report = squeeze.experts(tmp_path / "in", **given)
    assert report.experts and all(len(layer["kept"]) == 2 for layer in report.experts.values())
    assert torch.isfinite(logits(load_model(tmp_path / "out"))).all()


def test_a_calibration_set_that_norms_do_not_need_is_noted(tmp_path, mixture):
    report = squeeze.experts(mixture("mixtral"), "norm", keep=0.67, out=tmp_path / "out", calibration="nowhere.txt")
    assert report.notes[-1] == "not used, since norm is not calibrated: calibration"
