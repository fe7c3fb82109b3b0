"""The command quantize: what it refuses, measures, writes and packs."""

import json

import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.errors import FormatError, ModelError, SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.quant.gptq import GPTQ
from tests.makers import tiny_models

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def with_tokenizer(tmp_path_factory):
    return tiny_models.write_folder(
        tmp_path_factory.mktemp("models") / "model", tiny_models.byte_level(), vocab_size=400
    )


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(tiny_models.TRAINING_TEXT.decode()[:6000])
    return path


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--group-size", "100"), "--group-size 100 fits no matrix"),
        (("--format", "none"), "none"),
        (("--calibration", "no-such.txt"), "no-such.txt"),
        ((), "exists"),
    ],
)
def test_a_refused_command_prints_no_estimate(tmp_path, with_tokenizer, options, error):
    out = tmp_path / "out"
    if not options:
        out.mkdir()
        (out / "kept").touch()
    done = CliRunner().invoke(main, ["quantize", str(with_tokenizer), str(out), *options])
    assert done.exit_code and error in done.output and "This will take" not in done.output


def test_the_command_measures_and_writes_a_page(tmp_path, with_tokenizer, text):
    out = tmp_path / "out"
    command = ["quantize", str(with_tokenizer), str(out), "--group-size", "16", "--calibration", str(text)]
    command += ["--samples", "4", "--sequence-length", "48", "-T", "1", "--format", "squeeze", "--text", str(text)]
    page = tmp_path / "page.html"
    done = CliRunner().invoke(main, [*command, "--windows", "1", "--json", "--report", str(page)])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("This will take about ")
    found = json.loads(done.stdout)
    assert "<h1>out</h1>" in page.read_text()
    assert sum(found["parts"].values()) == found["stored_bytes"]
    for layer in found["layers"]:
        histogram, size = layer["histogram"], layer["shape"][0] * layer["shape"][1]
        assert [sum(histogram[who]) + histogram["zeros"][i] for i, who in enumerate(("before", "after"))] == [size] * 2
        assert layer["seconds"] >= 0
    assert found["after"]["kl_mean"] > 0
    assert found["bits_per_weight"] == pytest.approx(5)
    assert json.loads((out / "compression_report.json").read_text())["after"] == found["after"]
    done = CliRunner().invoke(main, [*command, "--windows", "1", "-q"])
    assert (done.exit_code, done.output) == (1, f"Error: {out} already exists; use -f to overwrite\n")
    done = CliRunner().invoke(main, [*command, "--windows", "1", "-f", "--bits", "2", "--max-kl", "1e-9"])
    assert done.exit_code == 3
    assert "the mean KL divergence is" in done.stderr
    assert "bits per weight" in done.stdout
    assert out.is_dir()
    done = CliRunner().invoke(main, ["quantize", "x", "y", "--max-kl", "1"])
    assert (done.exit_code, "--max-kl needs --text or --inputs" in done.output) == (2, True)


def test_pack_makes_the_same_weights_in_fewer_bytes(tmp_path, with_tokenizer):
    command = ["quantize", str(with_tokenizer), str(tmp_path / "plain"), "--method", "rtn", "-q"]
    assert CliRunner().invoke(main, command).exit_code == 0
    command[2] = str(tmp_path / "packed")
    done = CliRunner().invoke(main, [*command, "--pack", "--json"])
    assert done.exit_code == 0, done.output
    raw, coded = json.loads(done.stdout)["packed"]
    assert coded < raw
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "packed"}
    squeeze.unpack(tmp_path / "packed", tmp_path / "back")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    done = CliRunner().invoke(main, [*command, "--pack"])
    assert (done.exit_code, done.output) == (1, f"Error: {tmp_path / 'packed'} already exists; use -f to overwrite\n")


def test_stopped_while_it_is_packed_it_goes_on(tmp_path, with_tokenizer, monkeypatch):
    from squeeze.recipes import quantize as recipe, run

    def stop(*arguments, **options):
        raise KeyboardInterrupt

    out = tmp_path / "out"
    command = ["quantize", str(with_tokenizer), str(out), "--method", "rtn", "--pack", "-q"]
    for again in range(2):  # the second goes on by itself
        with monkeypatch.context() as patch:
            patch.setattr(recipe, "pack", stop)
            if again:
                patch.setattr(run.Run, "compress", None)
            assert CliRunner().invoke(main, command).exit_code != 0
        assert [path.name for path in tmp_path.iterdir()] == [".out.quantised"]
    for other in (["--bits", "2"], ["--ignore", "mlp"], ["--format", "gptq", "--resume"]):
        done = CliRunner().invoke(main, [*command, *other])
        assert done.exit_code == 1 and "the stopped run had other settings" in done.output
    with monkeypatch.context() as patch:
        patch.setattr(run.Run, "compress", stop)  # nothing is quantised again
        done = CliRunner().invoke(main, [*command, "--resume", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["target"] == str(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    squeeze.unpack(out, tmp_path / "back")
    assert load_model(tmp_path / "back")(torch.arange(1, 33)[None]).logits.isfinite().all()


def test_refuses_a_calibration_that_is_too_short_or_unreadable(tmp_path, with_tokenizer, text):
    def run(calibration, **options):
        squeeze.quantize(with_tokenizer, GPTQ(), calibration=calibration, out=tmp_path / "out", **options)

    with pytest.raises(SqueezeError, match=r"has \d+ tokens, and 128 samples of 512 need 65536"):
        run(text)
    text.write_text("")
    with pytest.raises(SqueezeError, match="has 0 tokens"):
        run(text)
    with pytest.raises(SqueezeError, match="nowhere: no such file"):
        run("nowhere")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"other": 1}\n')
    with pytest.raises(SqueezeError, match='is not a JSON object with a "text"'):
        run(lines)
    (tmp_path / "bare").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "bare" / name).write_bytes((with_tokenizer / name).read_bytes())
    with pytest.raises(ModelError, match="has no tokenizer"):
        squeeze.quantize(tmp_path / "bare", GPTQ(), calibration=lines, out=tmp_path / "out")
    with pytest.raises(FormatError, match="format 'nonesuch' is unknown"):
        run(text, format="nonesuch")
    assert not (tmp_path / "out").exists()
