"""Folders for inference servers, in the commands that run a model."""

import json

import pytest
import torch

from tests.makers import gguf_models, tasks
from tests.makers.cases import every
from tests.makers.command import call

pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = "def f(x):\n    return x + 1\n" * 40
WAYS = {
    "asymmetric": ("--asymmetric", "--group-size", 32),
    "w4a16_asym": ("--scheme", "w4a16_asym"),
    "w4a8, turned, cache": ("--scheme", "w4a8", "--rotate", "full", "--kv-scheme", "fp8"),
    "w8a8, turned, cache": ("--scheme", "w8a8", "--rotate", "full", "--kv-scheme", "fp8"),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder, sizes = tmp_path_factory.mktemp("served") / "model", {"hidden_size": 128, "intermediate_size": 256}
    return gguf_models.save("llama", folder, dtype=torch.bfloat16, **sizes)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module", params=every(2, WAYS))
def served(request, original, text, tmp_path_factory):
    """Make a folder, and the report of the command that measured it at once."""
    out = tmp_path_factory.mktemp("out") / "out"
    calibration = ("--calibration", text, "--samples", 4, "--sequence-length", 64)
    done = call("quantize", original, out, *WAYS[request.param], *calibration, "--text", text, "-q")
    assert done.exit_code == 0, done.output
    return out, json.loads((out / "compression_report.json").read_text())


def test_eval_finds_what_was_measured_at_once(original, text, served):
    out, report = served
    done = call("eval", out, "--text", text, "--original", original, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["perplexity"] == pytest.approx(report["after"]["perplexity"])
    assert found["kl_mean"] == pytest.approx(report["after"]["kl_mean"])


def test_generate_and_compare(original, served, tmp_path):
    out, _ = served
    done = call("generate", out, "def", "-n", 3, "-q")
    assert done.exit_code == 0 and done.stdout.strip(), done.output
    (tmp_path / "prompts").write_text("def\n")
    done = call("compare", original, out, "--prompts", tmp_path / "prompts", "-n", 3, "--json")
    assert done.exit_code == 0, done.output


def test_eval_scores_tasks_on_a_served_folder(served, tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed")
    folder = tasks.write(tmp_path / "tasks")
    done = call("eval", served[0], "--tasks", "first", "--task-folder", folder, "--task-limit", 2, "-T", 1)
    assert done.exit_code == 0, done.output
