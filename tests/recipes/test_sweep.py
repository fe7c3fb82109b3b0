"""Recipes over models, evaluations and measurements as tasks of a cluster: the table, going on, what fails."""

import json
from pathlib import Path

import pytest

from squeeze.cluster import engine as engines
from squeeze.cluster.engine import Call
from squeeze.cluster.run import ATTEMPTS
from squeeze.cluster.tasks import run_calls
from squeeze.errors import SqueezeError
from tests.makers import tiny_models
from tests.makers.command import call, fails, run, usage_error
from tests.makers.inline import Inline

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.usefixtures("in_folder")
CLUSTER = ("-q", "--cluster", "local")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Inline:
    made = Inline()
    monkeypatch.setattr(engines, "connect", lambda address: made)
    return made


@pytest.fixture
def work(in_folder) -> None:
    """Make a model, a text, and two recipes."""
    tiny_models.write_folder(Path("model"), tiny_models.byte_level(), vocab_size=400)
    Path("text.txt").write_text(tiny_models.TRAINING_TEXT.decode()[:3000])
    for name, bits in (("four", 4), ("eight", 8)):
        step = f"quantize: {{method: rtn, bits: {bits}, group_size: 16, format: squeeze}}"
        Path(f"{name}.yaml").write_text(f"steps:\n  - {step}\n")


SWEEP = ("apply", "four.yaml", "eight.yaml", "--models", "model", "-o", "small", "--text", "text.txt", "--windows", "1")


def test_a_table_of_size_against_quality(engine, work):
    said = call(*SWEEP, "--cluster", "local", "--report", "page.html")
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[0].split() == ["model", "recipe", "bytes", "share", "bits", "perplexity", "KL"]
    assert [line.split()[1] for line in lines[1:]] == ["four", "eight"]
    sizes, distances = ([line.split()[at] for line in lines[1:]] for at in (2, -1))
    assert int(sizes[0].replace(",", "")) < int(sizes[1].replace(",", ""))
    assert float(distances[0]) > float(distances[1])
    assert sorted(path.name for path in Path("small").iterdir()) == ["model-eight", "model-four"]
    assert "model-four" in Path("page.html").read_text()
    assert engine.calls == 2 and engine.closed
    again = call(*SWEEP, "--cluster", "local")
    assert again.stdout == said.stdout and engine.calls == 2
    Path("four.yaml").write_text("steps:\n  - quantize: {method: rtn, bits: 3, group_size: 16, format: squeeze}\n")
    assert "already exists" in fails(*SWEEP, *CLUSTER)
    run(*SWEEP, "-f", *CLUSTER)
    assert json.loads(Path("small/model-four/compression_report.json").read_text())["settings"]["bits"] == 3


def test_a_broken_model_fails_and_the_others_finish(work):
    Path("broken").mkdir()
    result = call(*SWEEP, "--models", "broken", "--json", "-q")
    assert result.exit_code == 1
    assert [json.loads(line)["recipe"] for line in result.stdout.splitlines()] == ["four.yaml", "eight.yaml"]
    assert result.stderr.count("Error: small/broken-") == 2
    worse = call(*SWEEP, "-q", "--max-kl", "1e-9")
    assert worse.exit_code == 3 and "the mean KL divergence is" in worse.stderr


def test_models_and_files_are_tasks(engine, work):
    run("apply", "-q", "four.yaml", "model", "four")
    for cluster in (CLUSTER, ("-q",)):
        text = ("--text", "text.txt", "--window", "64", "--windows", "2", "--json")
        result = call("eval", "model", "four", "--original", "model", *text, *cluster)
        assert result.exit_code == 0, result.stderr
        records = [json.loads(line) for line in result.stdout.splitlines()]
        assert [record["input"] for record in records] == ["model", "four"]
        assert records[0]["kl_mean"] < records[1]["kl_mean"]
    assert engine.calls == 2
    said = fails("eval", "model", "nothing", "--text", "text.txt", "--window", "64", "--windows", "1", *CLUSTER)
    assert said.startswith("Error: nothing")
    result = call("bench", "-1", "--json", "--cluster", "local", "text.txt", "four.yaml")
    assert [json.loads(line)["file"] for line in result.stdout.splitlines()] == ["text.txt", "four.yaml"]
    assert engine.calls == 6


def test_calls_are_tried_again_and_errors_are_not():
    lost = []

    def breaks(call):
        if call.key == "lost" or (call.key == "once" and not lost):
            lost.append(call.key)
            raise RuntimeError("killed")

    def refuses():
        raise SqueezeError("no")

    calls = [Call(key, key, refuses if key == "wrong" else str, ()) for key in ("once", "wrong", "lost", "fine")]
    engine = Inline(breaks=breaks)
    found = {outcome.key: str(outcome.error or "") for outcome in run_calls(engine, calls)}
    assert found == {"once": "", "wrong": "no", "lost": "killed", "fine": ""}
    assert lost.count("lost") == ATTEMPTS and engine.calls == 4 + 1 + ATTEMPTS - 1


def test_refuses_incomplete_and_conflicting_arguments(work):
    assert "--models needs -o" in usage_error("apply", "four.yaml", "--models", "model")
    assert "go with --models" in usage_error("apply", "four.yaml", "model", "x", "--cluster", "local")
    assert "give RECIPE.yaml, IN and OUT" in usage_error("apply", "four.yaml", "model")
    assert "leave out --resume" in usage_error(*SWEEP, "--resume")
    assert "rename a model or a recipe" in fails(*SWEEP, "--models", "model")
