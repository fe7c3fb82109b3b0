"""GGUF files as folders that transformers loads: the same weights, config and tokens."""

import json

import gguf
import pytest
import tokenizers
import torch
from click.testing import CliRunner

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.cli import main
from squeeze.errors import ModelError
from squeeze.integrations.gguf.export import Export
from squeeze.integrations.gguf.import_ import import_gguf
from squeeze.integrations.load_model import load_model
from squeeze.lm import rotary, sources
from tests.makers import gguf_models, hostile, tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

TEXT = "def main():\n    return [1, 2, 3]  # é\n"


@pytest.mark.parametrize("make", [tiny_models.byte_level, tiny_models.sentence_piece])
def test_the_model_is_the_one_that_was_written_as_gguf(tmp_path, make):
    tokenizer = make()
    size = tokenizer.get_vocab_size()
    direct = tiny_models.write_folder(tmp_path / "direct", tokenizer, vocab_size=size, hidden_act="silu")
    total = import_gguf(tiny_models.write_gguf(tmp_path / "tiny.gguf", tokenizer), tmp_path / "out")
    assert total == sum(2 * tensor.size for tensor in tiny_models.tensors(size).values())
    ours, theirs = load_model(tmp_path / "out"), load_model(direct)
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight.bfloat16().float()), name
    theirs.load_state_dict(ours.state_dict())
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_tokens_are_those_of_the_tokenizer(tmp_path):
    for make, start in ((tiny_models.byte_level, []), (tiny_models.sentence_piece, [1])):
        tokenizer = make()
        import_gguf(tiny_models.write_gguf(tmp_path / "tiny.gguf", tokenizer), tmp_path / "out", overwrite=True)
        found = load_tokenizer(tmp_path / "out")
        ids = found(TEXT)["input_ids"]
        library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
        assert ids == library.encode(TEXT).ids
        assert ids[: len(start)] == start
        assert found.decode(ids[len(start) :]).strip() == TEXT.strip()
        if start:
            assert ids[1:] == tokenizer.encode(TEXT).ids
        for token, number in tokenizer.get_vocab().items():
            assert found.convert_tokens_to_ids(token) == number


def test_rotary_scaling_is_kept(tmp_path):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level(), llama__rope__scale_linear=4)
    import_gguf(path, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize("own", [{}, {"yarn_beta_fast": 16, "yarn_beta_slow": 2, "attn_factor": 3}], ids=["", "own"])
def test_yarn_is_kept_with_its_limits_and_factor(tmp_path, own):
    scaling = {"factor": 4, "original_context_length": 64, **own}
    fields = {"llama.rope.scaling.type": "yarn"} | {
        f"llama.rope.scaling.{key}": value for key, value in scaling.items()
    }
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level(), **fields)
    import_gguf(path, tmp_path / "out")
    ours, theirs = sources.open_source(tmp_path / "out").config, sources.open_source(path).config
    assert ours.frequencies == theirs.frequencies and ours.attention_factor == theirs.attention_factor
    assert ours.attention_factor == pytest.approx(own.get("attn_factor", 1) * rotary.yarn_scale(4))
    assert (ours.frequencies == rotary.yarn(10000.0, ours.head_size, 4.0, 64)) == (not own)
    rope = load_model(tmp_path / "out").model.rotary_emb
    assert rope.inv_freq.tolist() == pytest.approx(theirs.frequencies, rel=1e-5)
    assert rope.attention_scaling == pytest.approx(theirs.attention_factor)


def test_what_is_exported_with_a_factor_of_its_own_comes_back(tmp_path):
    rope = {**gguf_models.KINDS["yarn"][1]["rope_parameters"], "attention_factor": 1.5}
    folder = gguf_models.save("yarn", tmp_path / "model", rope_parameters=rope)
    for number in range(2):
        path = tmp_path / f"{number}.gguf"
        Export.of(Checkpoint.open(folder)).write(path)
        folder = path.with_suffix("")
        import_gguf(path, folder)
        config = json.loads((folder / "config.json").read_text())
        assert config["rope_scaling"]["attention_factor"] == pytest.approx(1.5)


def test_rotary_angles_that_no_configuration_gives(tmp_path, monkeypatch):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level(), llama__rope__scale_linear=4)
    monkeypatch.setattr("squeeze.integrations.gguf.config._rope_scaling", lambda model: None)
    with pytest.raises(ModelError, match=r"a rotary scaling that config\.json cannot describe is not supported"):
        import_gguf(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_quantised_tensors_are_rounded_once(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    import_gguf(tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level(), kind=kind), tmp_path / "out")
    name = "model.layers.0.mlp.up_proj.weight"
    stored = gguf.quants.quantize(tiny_models.tensors(400)[name], kind)
    wanted = torch.from_numpy(gguf.quants.dequantize(stored, kind)).bfloat16().float()
    assert torch.equal(load_model(tmp_path / "out").state_dict()[name], wanted)


def test_the_command_writes_a_folder_and_refuses_damaged_files(tmp_path):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level())
    out = tmp_path / "out"
    done = CliRunner().invoke(main, ["import", str(path), str(out), "--json"])
    assert json.loads(done.stdout)["bytes"] > 0
    done = CliRunner().invoke(main, ["import", str(path), str(out)])
    assert (done.exit_code, done.output) == (1, f"Error: {out} already exists; use -f to overwrite\n")
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelError, match=r"damaged\.gguf: the model is damaged or incomplete: tensor .* is cut off"):
        import_gguf(damaged, tmp_path / "other")
    damaged.write_bytes(b"no GGUF")
    with pytest.raises(ModelError, match="not a GGUF file"):
        import_gguf(damaged, tmp_path / "other")
    with pytest.raises(ModelError, match="is a folder"):
        import_gguf(out, tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.gguf", "out", "tiny.gguf"]


def test_a_full_disk_is_one_line(tmp_path):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level())
    for size in (3_000, 30_000, 60_000):
        with hostile.largest_file(size):
            done = CliRunner().invoke(main, ["import", str(path), str(tmp_path / "out")])
        assert (done.exit_code, done.output.count("\n")) == (1, 1), done.output
        assert done.output.startswith("Error: ") and "File too large" in done.output
        assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_file_that_changes_meanwhile_is_one_line(tmp_path):
    path = tiny_models.write_gguf(tmp_path / "tiny.gguf", tiny_models.byte_level())

    def shorten(count):
        path.write_bytes(path.read_bytes()[:5000])

    with pytest.raises(ModelError, match="the file was changed while it was read"):
        import_gguf(path, tmp_path / "out", progress=shorten)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]
