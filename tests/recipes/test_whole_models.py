"""Models that are no decoders are quantised, pruned and factorised, and compute what their dense form does."""

import numpy as np
import pytest

import squeeze
from squeeze.engine.outputs import compare_outputs
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.measure.outputs import output_qualities, sentences
from tests.makers import zoo, zoo_others
from tests.makers.cases import every
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")

QUICK = (
    *("BertModel", "AlbertModel", "ViTForImageClassification", "SwinModel", "CLIPModel"),
    *(
        "BartForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "HubertModel",
    ),
)


def _same_as_dense(name, source, out, dense, most):
    """Check a compressed folder's outputs against those of its dense form, and of the original."""
    model, inputs = load_model(out), zoo_others.samples(name, 2, seed=7)
    squeeze.densify(out, dense, overwrite=True)
    assert max(one.error for one in compare_outputs(model, load_model(dense), inputs)) < 2e-3
    assert max(one.error for one in compare_outputs(model, load_model(source), inputs)) < most


@pytest.mark.parametrize("name", every(3, QUICK))
def test_a_quantised_model_computes_what_its_dense_form_does(name, tmp_path):
    source, inputs = zoo_others.write(tmp_path / "model", name), zoo_others.samples(name, 2)
    report = squeeze.quantize(source, out=tmp_path / "out", calibration=inputs, bits=8, group_size=32, format="squeeze")
    assert report.layers and not any("does not reach" in reason for reason in report.left.values())
    _same_as_dense(name, source, tmp_path / "out", tmp_path / "dense", 0.05)


@pytest.mark.parametrize("name", ("BertModel",))
def test_transformers_loads_the_default_format_and_its_error_is_in_the_report(name, tmp_path):
    source, inputs = zoo_others.write(tmp_path / "model", name), zoo_others.samples(name, 2)
    squeeze.quantize(source, out=tmp_path / "out", calibration=inputs, group_size=32)
    _same_as_dense(name, source, tmp_path / "out", tmp_path / "dense", 0.3)


def test_pruned_and_factorised(tmp_path):
    name = "BertModel"
    source, inputs = zoo_others.write(tmp_path / name, name), zoo_others.samples(name, 2)
    squeeze.prune(source, out=tmp_path / "pruned", calibration=inputs)
    _same_as_dense(name, source, tmp_path / "pruned", tmp_path / "dense", 1.0)
    squeeze.factorize(source, "whitened", keep=0.9, out=tmp_path / "low", calibration=inputs)
    _same_as_dense(name, source, tmp_path / "low", tmp_path / "dense", 1.0)


def test_an_encoder_is_compared_on_a_text(tmp_path):
    source = zoo_others.write(tmp_path / "model", "BertModel")
    zoo.tokenizer().save_pretrained(source)
    text = tmp_path / "text.txt"
    text.write_text(zoo.TEXT[:2000])
    shared = ("--bits", 8, "--format", "squeeze", "--group-size", 32, "--samples", 4, "--sequence-length", 32)
    limits = ("--inputs", text, "--max-error", 0.2)
    found = call("quantize", source, tmp_path / "out", "--calibration", text, *shared, *limits, "-q")
    assert found.exit_code == 0, found.output
    qualities = {one.name: one for one in output_qualities(tmp_path / "out", source, text)}
    assert qualities.keys() == {"last_hidden_state", "pooler_output", "embedding"}
    assert qualities["embedding"].agreement > 0.8 and qualities["embedding"].cosine > 0.999
    assert qualities["embedding"].samples == len(sentences(text.read_text()))
    shown = call("eval", tmp_path / "out", "--original", source, "--inputs", text, "-q")
    assert shown.exit_code == 0 and "same 10 neighbours" in shown.output
    worse = call("quantize", source, tmp_path / "out", "-f", "--calibration", text, *shared, *limits[:3], 1e-6, "-q")
    assert worse.exit_code == 3 and "the relative error of last_hidden_state is" in worse.output


def test_arguments_that_contradict_each_other(tmp_path):
    said = call("eval", tmp_path, "--inputs", tmp_path).output
    assert "--inputs needs --original" in said
    assert "--max-error needs --inputs" in call("quantize", tmp_path, tmp_path / "out", "--max-error", 1).output
    assert "delta compares no outputs" in call("delta", "a", "b", "c", "--inputs", "d").output


def test_samples_that_the_model_does_not_take_are_refused_before_anything_is_written(tmp_path):
    source = zoo_others.write(tmp_path / "model", "BertModel")
    np.savez(tmp_path / "pixels.npz", pixel_values=np.zeros((2, 3, 4, 4), np.float32))
    with pytest.raises(SqueezeError, match="BertModel takes no 'pixel_values': choose from input_ids"):
        squeeze.quantize(source, out=tmp_path / "out", calibration=tmp_path / "pixels.npz")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ("BertForMaskedLM", "BartForConditionalGeneration"))
def test_layers_that_share_the_embedding_and_a_single_sample(name, tmp_path):
    source, inputs = zoo_others.write(tmp_path / "model", name), zoo_others.samples(name, 1)
    shared = {"calibration": inputs, "bits": 8, "group_size": 32, "format": "squeeze"}
    squeeze.quantize(source, out=tmp_path / "out", embeddings=8, **shared)
    _same_as_dense(name, source, tmp_path / "out", tmp_path / "dense", 0.05)


def test_the_embedding_of_an_encoder_is_quantised_too(tmp_path):
    source, inputs = zoo_others.write(tmp_path / "model", "BertModel"), zoo_others.samples("BertModel", 2)
    shared = {"calibration": inputs, "bits": 8, "group_size": 32, "format": "squeeze"}
    report = squeeze.quantize(source, out=tmp_path / "out", embeddings=8, **shared)
    assert report.layers[0].name == "embeddings.word_embeddings" and len(report.layers) == 13
    _same_as_dense("BertModel", source, tmp_path / "out", tmp_path / "dense", 0.05)


def test_what_needs_a_causal_language_model_is_refused_in_a_line(tmp_path):
    source, inputs = zoo_others.write(tmp_path / "model", "Qwen3Model"), zoo_others.samples("Qwen3Model", 2)
    shared = {"out": tmp_path / "out", "calibration": inputs, "group_size": 32, "format": "squeeze"}
    with pytest.raises(SqueezeError, match=r"has no model[.]embed_tokens[.]weight"):
        squeeze.quantize(source, rotate=True, **shared)
    with pytest.raises(SqueezeError, match="a choice of bits within a size needs the loss of a causal language model"):
        squeeze.quantize(source, target_bits=5.0, **shared)
    squeeze.quantize(source, "awq", **shared)
    _same_as_dense("Qwen3Model", source, tmp_path / "out", tmp_path / "dense", 0.4)
