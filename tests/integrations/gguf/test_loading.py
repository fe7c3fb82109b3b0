"""GGUF files as models of transformers, which the commands that measure take as they are."""

import json
import math

import gguf
import numpy as np
import pytest
import torch

import squeeze
from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.engine.quality import evaluate
from squeeze.errors import FormatError, ModelError, SqueezeError
from squeeze.integrations.gguf import GgufModel
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.gguf.metadata import Metadata
from squeeze.integrations.load_model import load_model, tokenizer_of
from squeeze.recipes.measure.compare import compare
from tests.makers import gguf_models, tiny_models
from tests.makers.cases import every
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = "def main():\n    return [1, 23, 456]  # it's  é日本\n"


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return gguf_models.save("qwen2", tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def file(qwen):
    squeeze.quantize(qwen, "rtn", out=qwen.parent / "model.gguf", format="gguf", type="q4_0")
    return qwen.parent / "model.gguf"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT * 20)
    return tmp_path / "text.txt"


@pytest.mark.parametrize("kind", every(3, gguf_models.KINDS))
def test_it_computes_with_the_numbers_that_the_blocks_stand_for(tmp_path, kind):
    folder, path = gguf_models.save(kind, tmp_path / "model"), tmp_path / "out.gguf"
    squeeze.quantize(folder, "rtn", out=path, format="gguf", type="q4_0")
    wanted, found = gguf_models.dequantised(path, Export.of(Checkpoint.open(folder))), load_model(path)
    with torch.no_grad():
        assert torch.equal(found(gguf_models.IDS[None]).logits, wanted(gguf_models.IDS[None]).logits)
    import_gguf(path, tmp_path / "back")
    weights = load_model(tmp_path / "back").state_dict()
    assert weights.keys() == found.state_dict().keys()
    for name, weight in found.state_dict().items():
        assert torch.equal(weights[name], weight.bfloat16().float() if weight.is_floating_point() else weight), name


@pytest.mark.parametrize("kind", gguf_models.KINDS)
def test_a_folder_in_bf16_comes_back_as_it_was(tmp_path, kind):
    folder = gguf_models.save(kind, tmp_path / "model", dtype=torch.bfloat16)
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "back")
    ours, theirs = (load_model(path) for path in (tmp_path / "back", folder))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(ours.state_dict()[name], weight) for name, weight in theirs.state_dict().items())
    with torch.no_grad():
        found, wanted = (model(gguf_models.IDS[None]).logits for model in (ours, theirs))
    assert float((found - wanted).abs().max()) < 1e-4


@pytest.mark.parametrize("kind", ["qwen3", "gemma"])
def test_it_has_the_folders_tokens(tmp_path, kind):
    tokenizer = tiny_models.sentence_piece(space=False) if kind == "gemma" else None
    folder = gguf_models.save(kind, tmp_path / "model", tokenizer)
    if kind == "gemma":
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    import_gguf(tmp_path / "out.gguf", tmp_path / "back")
    found, wanted = tokenizer_of(tmp_path / "out.gguf"), load_tokenizer(folder)
    for part in (TEXT, " " + TEXT):
        ids = found(part)["input_ids"]
        assert ids == wanted(part)["input_ids"] == load_tokenizer(tmp_path / "back")(part)["input_ids"]
        assert found.decode(ids) == part
    assert (found.bos_token, found.eos_token) == (wanted.bos_token, wanted.eos_token)


def test_eval_and_compare_measure_a_gguf_file(qwen, file, text):
    done = call("eval", file, "--original", qwen, "--text", text, "--window", 64, "--windows", 2, "--json")
    assert done.exit_code == 0, done.output
    tokens = torch.tensor(load_tokenizer(qwen)(TEXT * 20)["input_ids"])
    exact = gguf_models.dequantised(file, Export.of(Checkpoint.open(qwen)))
    wanted = evaluate(exact, tokens, window=64, windows=2, original=load_model(qwen))
    found = json.loads(done.stdout)
    assert found["perplexity"] == pytest.approx(wanted.perplexity) and found["kl_mean"] == pytest.approx(wanted.kl_mean)
    side_by_side = compare(qwen, file, ["def main():"], tokens=8)
    assert side_by_side.tokens == 8 and side_by_side.kl_mean > 0
    assert compare(file, file, ["def main():"], tokens=8).kl_mean == pytest.approx(0, abs=1e-6)


def test_generate_and_kv_eval_run_a_gguf_file(file, text):
    for helped in ((), ("--draft", file), ("--kv", "kivi:8,group=8,window=16")):
        done = call("generate", file, "def main():", "-n", 12, "-T", 1, "--json", *helped)
        assert done.exit_code == 0 and json.loads(done.stdout)["tokens"] == 12, done.output
    done = call(
        "kv-eval",
        file,
        "--policy",
        "kivi:8,group=8,window=16",
        "--text",
        text,
        "--context",
        64,
        "--windows",
        1,
        "--no-cost",
    )
    assert done.exit_code == 0, done.output


def test_quantize_measures_it(qwen, tmp_path, text):
    asked = ("--format", "gguf", "--method", "rtn", "--type", "q4_0", "--text", text, "--windows", 1)
    done = call("quantize", qwen, tmp_path / "out.gguf", *asked, "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert 0 < report["after"]["kl_mean"] < 1 and math.isfinite(report["before"]["perplexity"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.gguf", "text.txt"]


def test_refuses_options_of_packed_folders(file):
    with pytest.raises(
        SqueezeError, match=r"model\.gguf: is not packed, so all of it is resident: leave out `resident`$"
    ):
        load_model(file, resident=0)
    with pytest.raises(
        SqueezeError, match=r"model\.gguf: is not packed, so no product decodes its weights: leave out `product`$"
    ):
        load_model(file, product="exact")
    with pytest.raises(SqueezeError, match=r"model\.gguf: is no difference from a base, and needs none$"):
        load_model(file, base=file)


def rewritten(kind, tmp_path, **fields):
    """Write a file of one of KINDS with changed metadata; None removes a field."""
    folder = gguf_models.save(kind, tmp_path / "model")
    Export.of(Checkpoint.open(folder)).write(tmp_path / "plain.gguf")
    reader = gguf.GGUFReader(tmp_path / "plain.gguf")
    architecture = reader.get_field("general.architecture").contents()
    changes = {f"{architecture}.{key.replace('__', '.')}": value for key, value in fields.items()}
    writer = gguf.GGUFWriter(tmp_path / "out.gguf", architecture)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture" and key not in changes:
            writer.add_key_value(
                key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None
            )
    for key, value in changes.items():
        if value is not None:
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "out.gguf"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("mixtral", {"expert_count": 5}, r"tensor 0\.expert_gate has shape \[4, 256, 256\], and its description says"),
        ("mixtral", {"expert_count": 1 << 30}, r"tensor 0\.\w+ has shape \[4, 256(, 256)?\], and its description says"),
        ("mixtral", {"expert_count": None}, "a network with a tensor 'blk.0.ffn_gate_exps.weight' is not supported; "),
        ("mixtral", {"expert_used_count": None}, "description is damaged: expert_used_count is None$"),
        ("mixtral", {"expert_used_count": 5}, "damaged: a token uses more experts than 4$"),
        ("qwen3_moe", {"expert_feed_forward_length": 0}, "damaged: expert_feed_forward_length is 0$"),
        ("gemma3", {"attention__sliding_window": None}, "damaged: attention.sliding_window is None$"),
        (
            "gemma3",
            {"attention__sliding_window_pattern": 2},
            "another pattern of sliding windows is not supported; ",
        ),
        ("gemma2", {"rope__dimension_count": 32}, "partial rotary embedding is not supported; "),
        ("gemma2", {"final_logit_softcapping": "x"}, "is damaged or incomplete: could not convert string to float"),
        ("qwen2", {"attn_logit_softcapping": 2.0}, "a cap on attention logits is not supported; "),
    ],
)
def test_refuses_metadata_that_contradict_the_tensors(tmp_path, kind, fields, message):
    path = rewritten(kind, tmp_path, **fields)
    for read in (load_model, lambda path: import_gguf(path, tmp_path / "back")):
        with pytest.raises(ModelError, match=message):
            read(path)
    assert not (tmp_path / "back").exists()


def test_settings_that_a_file_lacks_are_llama_cpps(tmp_path):
    """Gemma 2 has caps and a window even if its file does not have them, as in llama.cpp."""
    left_out = dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention__sliding_window"))
    config = load_model(rewritten("gemma2", tmp_path, **left_out)).config
    assert (config.attn_logit_softcapping, config.final_logit_softcapping, config.sliding_window) == (50, 30, 4096)


def test_refuses_other_architectures_and_truncated_files(tmp_path, qwen, file, text):
    path = tiny_models.write_gguf(tmp_path / "a.gguf", tiny_models.byte_level(), architecture="phi3")
    known = "plain llama, mistral, qwen2, qwen3, qwen3moe, gemma, gemma2 and gemma3 models are"
    done = call("eval", path, "--text", text)
    assert (done.exit_code, done.output) == (1, f"Error: tiny: architecture 'phi3' is not supported; {known}\n")
    whole = file.read_bytes()
    for size in (20, 3_000, len(whole) - 10):
        path.write_bytes(whole[:size])
        done = call("eval", path, "--text", text)
        assert done.exit_code == 1 and done.output.count("\n") == 1 and "damaged" in done.output, done.output
    done = call("eval", qwen / "config.json", "--text", text)
    assert done.exit_code == 1 and "is a file, not a model's folder: `squeeze import` makes one" in done.output
    done = call("eval", "missing.gguf", "--text", text)
    assert done.exit_code == 1 and done.output.count("\n") == 1


def test_refuses_metadata_of_a_larger_model(tmp_path, monkeypatch):
    path = rewritten("qwen2", tmp_path)
    told = GgufModel.views
    monkeypatch.setattr(GgufModel, "views", lambda self: dict(list(told(self).items())[:3]))
    with pytest.raises(FormatError, match=r"out\.gguf: describes a model of \d+ weights, and holds \d+$"):
        load_model(path)


@pytest.mark.parametrize(
    ("factor", "low", "high", "trained"),
    [
        *((8.0, 1.0, 4.0, 8192), (16.0, 1.0, 4.0, 8192), (8.0, 1.0, 4.0, 16), (3.7, 0.5, 30.0, 5000)),
        *((4.0, 2.0, 2.1, 300), (4.0, 1.0, 100.0, 30), (4.0, 1.0, 2.0, 10**9), (4.0, 1.0, 2.0, 1)),
    ],
    ids=str,
)
def test_llama3s_scaling_comes_back(tmp_path, factor, low, high, trained):
    """It comes back also if no angle, one or all of them lie on the ramp, or all are kept or divided."""
    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": trained}
    rope |= {"low_freq_factor": low, "high_freq_factor": high}
    folder = gguf_models.save("llama", tmp_path / "model", rope_parameters=rope)
    Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    found, wanted = (load_model(path).model.rotary_emb.inv_freq for path in (tmp_path / "out.gguf", folder))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)
    told = load_model(tmp_path / "out.gguf").config.rope_parameters
    if told["rope_type"] == "llama3" and low == 1 and high == 4:
        assert (told["factor"], told["low_freq_factor"], told["high_freq_factor"]) == (factor, low, high)
        assert told["original_max_position_embeddings"] == trained


def test_divisors_that_no_scaling_gives(tmp_path, monkeypatch):
    folder = gguf_models.save("llama3", tmp_path / "model")
    divisors = np.linspace(1, 8, 32, dtype=np.float32) ** 2
    monkeypatch.setattr(Metadata, "divisors", lambda self: divisors)
    with pytest.raises(ModelError, match="a rotary embedding with other divisors is not supported"):
        Export.of(Checkpoint.open(folder)).write(tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == [folder]
