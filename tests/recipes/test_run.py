"""Resuming of runs that were stopped in their last step, the training, and errors."""

import json

import pytest
import torch
from click.testing import CliRunner

import squeeze
from squeeze.cli import main
from squeeze.engine import pipeline
from squeeze.errors import SqueezeError
from squeeze.prune.scores import Magnitude, Wanda
from squeeze.quant.rtn import RTN
from squeeze.recipes.train import distil, retrain, trainer
from tests.makers import tiny_models

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.randint(0, 300, (6, 32), generator=torch.Generator().manual_seed(1))
MINUTES = 0.003  # of which each run takes all, and at least one step


@pytest.fixture
def stopped(tmp_path, folders, monkeypatch):
    """Return a function that resumes a run which was stopped after one step of training."""

    def stop(what, done, total):
        if what.startswith("recovering") and done == 1:
            raise KeyboardInterrupt

    def run(method=Magnitude(), **options):  # noqa: B008
        given = {"out": tmp_path / "out", "calibration": TOKENS, "recover": MINUTES, **options}
        return squeeze.prune(folders("llama"), method, **given)

    monkeypatch.setattr(trainer, "_SAVE_EVERY", 1)
    with pytest.raises(KeyboardInterrupt):
        run(progress=stop)
    return run


def test_a_training_that_was_stopped_goes_on(tmp_path, stopped, monkeypatch):
    found = []
    load = distil.Distillation._load
    monkeypatch.setattr(distil.Distillation, "_load", lambda self: (load(self), found.append(self.step)))
    monkeypatch.setattr(pipeline, "_blocks", lambda *ignored: pytest.fail("pruned again"))
    report = stopped(resume=True)
    assert found == [1]
    assert int(report.settings["recovery"].split()[0]) >= 1
    assert json.loads((tmp_path / "out" / "compression_report.json").read_text())["settings"] == report.settings
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True` to overwrite"):
        stopped(resume=True)


def test_a_run_that_was_stopped_before_its_training_goes_on(tmp_path, folders, monkeypatch):
    given = {"out": tmp_path / "out", "calibration": TOKENS, "recover": MINUTES}
    load = retrain.load_model

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(retrain, "load_model", stop)
    with pytest.raises(KeyboardInterrupt):
        squeeze.prune(folders("llama"), Magnitude(), **given)
    monkeypatch.setattr(retrain, "load_model", load)
    monkeypatch.setattr(pipeline, "_blocks", lambda *ignored: pytest.fail("pruned again"))
    report = squeeze.prune(folders("llama"), Magnitude(), resume=True, **given)
    assert report.settings["recovery"].endswith(" steps")


@pytest.mark.parametrize("other", [{"seed": 1}, {"calibration": TOKENS[:5]}, {"method": Wanda()}], ids=str)
def test_another_run_does_not_go_on_with_it(tmp_path, stopped, other):
    with pytest.raises(
        SqueezeError,
        match=r"had other settings.*: repeat its settings .*start over with `overwrite=True` and without `resume=True`",
    ) as caught:
        stopped(resume=True, **other)
    assert "\n" not in str(caught.value)
    assert (tmp_path / ".out.recovering" / "state.pt").is_file()
    with pytest.raises(SqueezeError, match="already exists; use `overwrite=True` to overwrite"):
        stopped(**other)


def test_the_command_goes_on_too(tmp_path, monkeypatch):
    model = tiny_models.write_folder(tmp_path / "model", tiny_models.byte_level(), vocab_size=400)
    text = tmp_path / "text.txt"
    text.write_text(tiny_models.TRAINING_TEXT.decode()[:6000])
    command = ["prune", str(model), str(tmp_path / "out"), "--method", "magnitude", "--calibration", str(text), "-q"]
    command += ["--samples", "4", "--sequence-length", "48", "-T", "1", "--recover", str(MINUTES)]
    go = distil.Distillation.go

    def stop(self, *args):
        self.save()
        raise KeyboardInterrupt

    monkeypatch.setattr(distil.Distillation, "go", stop)
    assert CliRunner().invoke(main, command).exit_code != 0
    monkeypatch.setattr(distil.Distillation, "go", go)
    done = CliRunner().invoke(main, [*command, "--resume", "--samples", "3"])
    wanted = f"Error: {tmp_path / 'out'}: the stopped run had other settings: repeat its settings to resume, or "
    assert (done.exit_code, done.output) == (1, f"{wanted}start over with -f and without --resume\n")
    done = CliRunner().invoke(main, command)
    wanted = f"Error: {tmp_path / 'out'} is written already: go on with --resume, or start over with -f\n"
    assert (done.exit_code, done.output) == (1, wanted)
    done = CliRunner().invoke(main, [*command, "--resume", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["settings"]["recovery"].endswith(" steps")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"calibration": "nowhere.txt", "samples": 3}, "calibration, samples"),
        ({"chat": True}, "chat"),
        ({"sequence_length": 64}, "sequence_length"),
        ({}, ""),
    ],
)
def test_a_calibration_set_that_is_not_used_is_noted(tmp_path, folders, options, named):
    quantised = squeeze.quantize(folders("llama"), RTN(bits=8), out=tmp_path / "q", format="dense", **options)
    pruned = squeeze.prune(folders("llama"), Magnitude(), out=tmp_path / "p", **options)
    for report, method in ((quantised, "rtn"), (pruned, "magnitude")):
        note = [f"not used, since {method} is not calibrated: {named}"] if named else []
        assert [one for one in report.notes if "not used" in one] == note


def test_a_calibration_set_that_is_used_is_not_noted(tmp_path, folders):
    given = {"calibration": TOKENS, "out": tmp_path / "q", "format": "dense"}
    for options in ({"smooth": 0.5}, {"target_bits": 8.0}):
        report = squeeze.quantize(folders("llama"), RTN(bits=8), **given, **options, overwrite=True)
        assert not [one for one in report.notes if "not used" in one]
        assert "calibration" in report.settings
