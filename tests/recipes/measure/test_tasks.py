"""Tasks by lm-eval on models of a few thousand weights: scores against what a few lines of torch find, and errors."""

import json
from itertools import count
from pathlib import Path

import pytest
import torch

import squeeze
from squeeze.checkpoint.pretrained import load_tokenizer
from squeeze.errors import SqueezeError
from squeeze.integrations.load_model import load_model
from squeeze.recipes.measure.tasks import Tasks
from tests.makers import tasks as makers, tiny_models
from tests.makers.command import call

pytest.importorskip("transformers", reason="transformers is not installed")
lm_eval_tasks = pytest.importorskip("lm_eval.tasks", reason="lm-eval is not installed")


@pytest.fixture(scope="module", autouse=True)
def without_network(tmp_path_factory):
    """Set lm-eval offline, with caches outside the user's folder."""
    import datasets
    import huggingface_hub

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_models.write_endless(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def other(model, tmp_path_factory):
    """Write a model that answers one of the questions in another way."""
    tokenizer = tiny_models.byte_level()
    size, folder = tokenizer.get_vocab_size(), tmp_path_factory.mktemp("models")
    made = (
        tiny_models.write_folder(folder / f"{seed}", tokenizer, tiny_models.tensors(size, seed=seed), vocab_size=size)
        for seed in count(2)
    )
    return next(one for one in made if answers(one) != answers(model))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return makers.write(tmp_path_factory.mktemp("tasks") / "tasks")


@torch.inference_mode()
def chosen(model_folder, question):
    """Return the likeliest answer. As in lm-eval, white space at the end of a question moves to the answer."""
    model, tokenizer = load_model(model_folder), load_tokenizer(model_folder)
    losses = []
    for answer in makers.ANSWERS:
        whole = tokenizer(f"{question} {answer}")["input_ids"]
        start = len(tokenizer(question.rstrip())["input_ids"])
        logs = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), -1)
        losses.append(sum(logs[i - 1, whole[i]].item() for i in range(start, len(whole))))
    return losses.index(max(losses))


def answers(model_folder):
    return [chosen(model_folder, makers.question(number)) for number in range(6)]


def test_scores_are_those_of_the_likeliest_answers(model, folder):
    found = {one.metric: one for one in Tasks.load(["first"], folder).scores(model)}
    rows = [json.loads(line) for line in (folder / "first.jsonl").read_text().splitlines()]
    right = [chosen(model, row["question"]) == row["right"] for row in rows]
    assert found["acc"].value == pytest.approx(sum(right) / len(right))
    assert found["acc"].examples == 12 and found["acc"].stderr > 0
    assert {"acc", "acc_norm"} == found.keys()


def test_scores_come_with_those_of_the_original(model, other, folder):
    tasks = Tasks.load(["first"], folder)
    alone = {one.metric: one for one in tasks.scores(other)}
    both = {one.metric: one for one in tasks.scores(model, other)}
    same = {one.metric: one for one in tasks.scores(model, model)}
    assert both["acc"].base == alone["acc"].value and both["acc"].base_stderr == alone["acc"].stderr
    assert same["acc"].drop == same["acc"].drop_stderr == 0


def test_a_relative_task_folder_leaves_the_current_one(model, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    tasks = Tasks.load(["first"], Path(folder.name), limit=1)
    assert tasks.names == ("first",) and Path.cwd() == folder.parent


def test_groups_and_generation_respect_the_limit(model, folder):
    told = []
    tasks = Tasks.load(["both", "written"], folder, limit=4)
    found = tasks.scores(model, progress=lambda label, done, total: told.append((done, total)))
    assert [(one.task, one.metric, one.examples) for one in found] == [
        ("both", "acc", 8),
        ("written", "exact_match", 2),
    ]
    assert told[-1] == (26, 26)  # 8 examples of 3 answers, and 2 to be written


def test_packed_and_quantised_models_score_alike(model, folder, tmp_path):
    squeeze.pack(model, tmp_path / "packed")
    squeeze.quantize(model, bits=8, method="rtn", format="squeeze", out=tmp_path / "quantised")
    tasks = Tasks.load(["first"], folder, limit=3)
    dense = tasks.scores(model)
    assert tasks.scores(tmp_path / "packed") == dense
    assert len(tasks.scores(tmp_path / "quantised")) == len(dense)
    assert len(tasks.scores(tiny_models.write_gguf(tmp_path / "a.gguf", tiny_models.byte_level()))) == len(dense)


def test_the_command_scores_tasks_as_json_and_a_page(model, other, folder, tmp_path):
    asked = ("eval", other, "--tasks", "first,second", "--task-folder", folder, "-T", 1)
    done = call(*asked, "--original", model, "--json", "--report", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert [(one["task"], one["metric"]) for one in record["tasks"]] == [
        *(("first", "acc"), ("first", "acc_norm")),
        *(("second", "acc"), ("second", "acc_norm")),
    ]
    assert all(one["base"] is not None for one in record["tasks"]) and "perplexity" not in record
    assert "first, acc_norm" not in done.stderr and (tmp_path / "page.html").stat().st_size > 1000
    (tmp_path / "text.txt").write_text("def main():\n    return 1\n" * 20)
    done = call(*asked, "--text", tmp_path / "text.txt", "--window", 32)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("perplexity:") and "first:              acc 0." in done.output
    assert call(*asked, "--original", model, "--max-task-drop", "100").exit_code == 0


def test_the_command_fails_where_a_task_falls_below_the_limit(model, other, tmp_path):
    asked = ("eval", other, "--tasks", "both", "-T", 1, "--original", model)
    folder = makers.write(tmp_path / "tasks", examples=6, right=answers(model).__getitem__)
    done = call(*asked, "--task-folder", folder, "--max-task-drop", "0.5")
    assert done.exit_code == 3 and "points: the limit is 0.5" in done.output, done.output


def test_quantize_and_apply(model, folder, tmp_path):
    rounded = ("quantize", model, tmp_path / "a", "--method", "rtn", "--group-size", 16, "--bits", 2)
    scored = ("--task-folder", folder, "-T", 1, "--json")
    done = call(*rounded, "--tasks", "both,first", *scored, "--max-task-drop", 0)
    assert done.exit_code == 3 and "acc of both fell by" in done.stderr, done.output
    scored = ("--tasks", "first", *scored, "--task-limit", 4)
    report = json.loads((tmp_path / "a/compression_report.json").read_text())
    assert report["tasks"][0]["base"] is not None
    assert "| first | acc " in (tmp_path / "a/README.md").read_text()
    (tmp_path / "recipe.yaml").write_text("steps: [{quantize: {group_size: 16, method: rtn}}, pack]\n")
    done = call("apply", tmp_path / "recipe.yaml", model, tmp_path / "b", *scored, "--max-task-drop", 100)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["tasks"][1]["metric"] == "acc_norm"


@pytest.mark.parametrize(
    "name, message",
    [
        ("frist", "'frist' is not a task of lm-eval or of the task folder: did you mean first?"),
        ("zzzzzzzzzz", "'zzzzzzzzzz' is not a task of lm-eval or of the task folder"),
        ("lost", "lost: its data are not on this machine and could not be fetched: name local tasks by `task_folder`"),
        ("broken", "broken: Unable to find"),
    ],
)
def test_refuses_unknown_tasks_and_missing_data(folder, name, message, monkeypatch):
    real = lm_eval_tasks.TaskManager  # without the tasks that lm-eval brings, to index which takes seconds
    monkeypatch.setattr(lm_eval_tasks, "TaskManager", lambda **given: real(**given | {"include_defaults": False}))
    with pytest.raises(SqueezeError) as raised:
        Tasks.load([name], folder)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "give --text FILE, --inputs PATH, --tasks NAMES, or several"),
        (("--tasks", " ,"), "--tasks needs at least one name, such as hellaswag"),
        (("--text", "x", "--shots", 1), "--shots needs --tasks"),
        (("--tasks", "first", "--max-task-drop", -50), "Invalid value for '--max-task-drop': -50"),
        (("--tasks", "first", "--max-task-drop", 1), "--max-task-drop needs --tasks and --original"),
    ],
)
def test_the_command_refuses_options_without_tasks(model, folder, arguments, message):
    folders = ("--task-folder", folder) if "first" in arguments else ()
    done = call("eval", model, *arguments, *folders)
    assert done.exit_code == 2 and message in done.output


def test_refuses_a_missing_task_folder(model, tmp_path):
    done = call("eval", model, "--tasks", "first", "--task-folder", tmp_path / "missing")
    assert (done.exit_code, done.output) == (1, f"Error: {tmp_path / 'missing'}: no such folder\n")
    done = call("quantize", model, tmp_path / "out", "--max-task-drop", 1)
    assert done.exit_code == 2 and "--max-task-drop needs --tasks" in done.output
    asked = ("--tasks", "first", "--task-folder", makers.write(tmp_path / "tasks"))
    done = call("delta", model, model, tmp_path / "out", "--bits", 2, *asked)
    assert done.exit_code == 2 and "delta measures no tasks: run squeeze eval OUT --base" in done.output
    assert not (tmp_path / "out").exists()
