"""config.json from anywhere: what no model can have ends in one line, before anything is built of it."""

import json
import math

import pytest
from click.testing import CliRunner

from squeeze.checkpoint.config_json import check_config, check_layers
from squeeze.cli import main
from squeeze.errors import FormatError
from tests.makers import hostile, tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

HOSTILE = {
    "layers without end": {"num_hidden_layers": 10**9},
    "more layers than tensors": {"num_hidden_layers": 3000},
    "negative layers": {"num_hidden_layers": -1},
    "no layers": {"num_hidden_layers": 0},
    "null layers": {"num_hidden_layers": None},
    "layers as a text": {"num_hidden_layers": "2"},
    "layers as a list": {"num_hidden_layers": [2]},
    "layers as a float": {"num_hidden_layers": 2.5},
    "layers as a truth": {"num_hidden_layers": True},
    "a layer more than there is": {"num_hidden_layers": 3},
    "width null": {"hidden_size": None},
    "width zero": {"hidden_size": 0},
    "width huge": {"hidden_size": 1 << 20},
    "width beyond numbers": {"hidden_size": 10**30},
    "width another": {"hidden_size": 64},
    "heads zero": {"num_attention_heads": 0},
    "heads as a list": {"num_attention_heads": [4]},
    "heads negative": {"num_attention_heads": -4},
    "heads null": {"num_attention_heads": None},
    "heads that do not divide": {"num_attention_heads": 5, "head_dim": None},
    "heads that do not share": {"num_key_value_heads": 3},
    "heads of keys zero": {"num_key_value_heads": 0},
    "heads of keys as a text": {"num_key_value_heads": "2"},
    "head size odd": {"head_dim": 7},
    "head size negative": {"head_dim": -8},
    "head size as a table": {"head_dim": {"a": 1}},
    "mlp huge": {"intermediate_size": 1 << 24},
    "mlp beyond": {"intermediate_size": 10**12},
    "mlp as a list": {"intermediate_size": [48]},
    "vocabulary huge": {"vocab_size": 1 << 26},
    "vocabulary beyond": {"vocab_size": 1 << 40},
    "vocabulary smaller": {"vocab_size": 399},
    "vocabulary null": {"vocab_size": None},
    "vocabulary zero": {"vocab_size": 0},
    "positions as a text": {"max_position_embeddings": "many"},
    "positions as a list": {"max_position_embeddings": [64]},
    "positions negative": {"max_position_embeddings": -1},
    "epsilon not a number": {"rms_norm_eps": math.nan},
    "epsilon infinite": {"rms_norm_eps": math.inf},
    "epsilon as a table": {"rms_norm_eps": {}},
    "epsilon as a text": {"rms_norm_eps": "small"},
    "rope base not a number": {"rope_theta": math.nan},
    "rope base negative": {"rope_theta": -1},
    "rope as a text": {"rope_scaling": "linear"},
    "rope as a list": {"rope_scaling": [{"rope_type": "linear"}]},
    "rope of no kind": {"rope_scaling": {"rope_type": "none such", "factor": 2.0}},
    "rope factor infinite": {"rope_scaling": {"rope_type": "linear", "factor": math.inf}},
    "rope factor beyond numbers": {"rope_scaling": {"rope_type": "linear", "factor": 10**400}},
    "rope factor not a number": {"rope_scaling": {"rope_type": "linear", "factor": math.nan}},
    "rope of a kind of layers no table": {"rope_parameters": {"full_attention": 5}},
    "rope factor as a text": {"rope_scaling": {"rope_type": "linear", "factor": "x"}},
    "kind as a number": {"model_type": 7},
    "kind null": {"model_type": None},
    "kind as a list": {"model_type": ["llama"]},
    "kind unknown": {"model_type": "none such\x1b[31m\ud800" + "x" * 5000},
    "type of numbers unknown": {"dtype": "hub"},
    "type of numbers a module": {"torch_dtype": "nn"},
    "activation unknown": {"hidden_act": "none such"},
    "activation a number": {"hidden_act": 3},
    "padding outside": {"pad_token_id": 400},
    "padding as a text": {"pad_token_id": "pad"},
    "layer kinds of another number": {"layer_types": ["full_attention"]},
    "layer kinds as a number": {"layer_types": 2},
    "labels without end": {"num_labels": 10**9},
    "stored as a text": {"quantization_config": "gptq"},
    "kernels from elsewhere": {"attn_implementation": "somebody/kernels"},
    "another configuration": {"configuration_files": ["config.9.9.9.json"]},
    "text part as a list": {"text_config": [1]},
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Make a folder and its config.json for each kind of model, and a text."""
    root, tokenizer = tmp_path_factory.mktemp("hostile"), tiny_models.byte_level()
    (root / "text").write_text("def main():\n    return 1\n" * 20)
    folders = {kind: hostile.write_kind(root / kind, kind, tokenizer) for kind in ("llama", "qwen3")}
    return {kind: (folder, (folder / "config.json").read_text()) for kind, folder in folders.items()}, root / "text"


def refused(command):
    done = CliRunner().invoke(main, list(map(str, command)))
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), (done.output, done.exception)
    (line,) = done.output.splitlines()
    assert line.startswith("Error: ") and len(line) < 800 and line.isprintable(), line
    return line


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_configurations_end_in_one_line(places, kind, fault):
    folder, config = places[0][kind]
    (folder / "config.json").write_text(json.dumps(json.loads(config) | HOSTILE[fault]))
    line = refused(["eval", folder, "--text", places[1], "--window", 32, "--windows", 1])
    assert str(folder) in line
    refused(["prune", folder, folder.with_name("out"), "--method", "magnitude", "--quiet"])
    assert not folder.with_name("out").exists()


BROKEN = {
    "nested": "[" * 10_000 + "]" * 10_000,
    "nested in a key": '{"model_type": "llama", "x": ' + '{"a":' * 900 + "1" + "}" * 901,
    "a key twice": '{"model_type": "llama", "hidden_size": 32, "hidden_size": 64}',
    "a number of many digits": '{"model_type": "llama", "hidden_size": ' + "9" * 5000 + "}",
    "a list": "[1]",
    "empty": "",
    "not UTF-8": b"\xff\xfe\xfd",
    "no model_type": "{}",
}


@pytest.mark.parametrize("fault", BROKEN)
def test_files_that_are_no_configurations(places, fault):
    folder, _ = places[0]["llama"]
    text = BROKEN[fault]
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    for command in (["eval", folder, "--text", places[1]], ["advise", folder]):
        refused(command)


def test_configurations_that_models_have_pass():
    check_config({"model_type": "x", "intermediate_size": [4, 8], "eos_token_id": [1, 2], "head_dim": None})
    check_config({"rope_scaling": None, "rope_theta": 1000000, "dtype": "torch.bfloat16", "pad_token_id": -1})
    check_config({"time_step_limit": [0.0, math.inf], "attn_implementation": "sdpa", "vision_config": {"depth": 3}})
    check_config({"audio_config": {"num_attention_heads": [4, 8]}, "rope_theta": {"full_attention": 1e6}})
    check_layers({"num_hidden_layers": 2, "text_config": {"num_hidden_layers": 3}}, 3)


def test_parts_are_checked_as_the_whole():
    with pytest.raises(FormatError, match="hidden_size: 'x' is not a whole number"):
        check_config({"text_config": {"hidden_size": "x"}})
    with pytest.raises(FormatError, match="4 layers, and the weights are 3 tensors"):
        check_layers({"num_hidden_layers": 2, "text_config": {"num_hidden_layers": 4}}, 3)
    with pytest.raises(FormatError, match="8192 experts, and at most"):
        check_layers({"num_hidden_layers": 100, "num_experts": 8192}, 1000)
