"""Options that several commands have: declared once."""

from pathlib import Path

import click
import pytest

from squeeze import cli
from squeeze.commands import options
from squeeze.system.limits import Limits
from tests.makers.command import fails, params

ON_FILES = ("compress", "decompress", "test")  # whose device runs a language model
ELSEWHERE = tuple(command for command in cli.COMMANDS if command not in ("advise", *ON_FILES))
SHARED = dict.fromkeys(("threads", "quiet", "verbose", "as_json", "resume", "dictionary"), (*ON_FILES, *ELSEWHERE))


@pytest.mark.parametrize(("name", "commands"), [*SHARED.items(), ("device", ON_FILES), ("device", ELSEWHERE)])
def test_a_shared_option_is_one(name, commands):
    found = [one for command in commands for one in params(command) if one.name == name]
    facts = {(tuple(one.opts), str(one.type), one.default, one.help) for one in found}
    assert len(facts) == 1 < len(found), facts


@pytest.mark.parametrize("given", ["nan", "inf", "1e300", "-1", "0", "x"])
@pytest.mark.parametrize(
    ("command", "name"), [("train", "minutes"), ("pack", "interval"), ("pack", "until_idle"), ("pack", "cluster_wait")]
)
def test_a_time_is_one_that_ends(command, name, given):
    (found,) = (one for one in params(command) if one.name == name)
    if (name, given) == ("cluster_wait", "0"):
        assert found.type.convert(given, None, None) == 0
        return
    with pytest.raises(click.BadParameter) as error:
        found.type.convert(given, None, None)
    assert "\n" not in error.value.message and "not" in error.value.message
    assert found.type.convert("1.5", None, None) == 1.5


def test_a_dictionary_has_three_names():
    for command in ("compress", "decompress", "test"):
        (found,) = (one for one in params(command) if one.name == "dictionary")
        assert found.opts == ["-D", "--dictionary"]
    (found,) = (one for one in params("train") if one.name == "output")
    assert {"-o", "--output", "-D", "--dictionary"} == set(found.opts)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], Limits()),
        (["--memlimit", "4G"], Limits(memory=4 << 30)),
        (["--max-output", "10", "--memlimit", "1K"], Limits(memory=1 << 10, output=10)),
    ],
)
def test_both_limits_reach_a_command_as_one(words, wanted):
    command = click.command()(options.limits(lambda limits: limits))
    assert command.main(words, standalone_mode=False) == wanted


TO_MODELS = {  # what else commands must be told before they look at the device
    "apply": ("recipe.yaml", "in", "out"),
    "compare": ("a", "b", "--prompts", "a"),
    "delta": ("a", "b", "out"),
    "eval": ("a", "--text", "a"),
    "experts": ("in", "out", "--keep", "0.5"),
    "factorize": ("in", "out"),
    "generate": ("a", "Once"),
    "imatrix": ("a", "-o", "out", "--calibration", "a"),
    "kv-eval": ("a", "--text", "a", "--policy", "kivi:4"),
    "prune": ("in", "out", "--pattern", "2:4"),
    "quantize": ("in", "out"),
    "train": ("--minutes", "1", "-o", "out"),
}


@pytest.mark.parametrize("command", TO_MODELS)
def test_a_device_that_is_not_there_is_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("prompts.txt").write_text("a prompt\n")
    for name in ("nowhere", "meta"):
        told = fails(command, *TO_MODELS[command], "--device", name, *(["prompts.txt"] if command == "train" else []))
        assert told == f"Error: device {name}: torch cannot use it here; use --device cpu\n"
    assert [path.name for path in Path().iterdir()] == ["prompts.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("prune", *TO_MODELS["prune"], "--cluster", "local"),
        ("quantize", *TO_MODELS["quantize"], "--cluster", "local"),
        ("apply", "recipe.yaml", "--models", "in", "-o", "out"),
    ],
)
def test_a_device_that_is_not_there_is_named_before_a_run_over_many(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = fails(*arguments, "--device", "nowhere")
    assert told == "Error: device nowhere: torch cannot use it here; use --device cpu\n"
    assert not list(Path().iterdir())
