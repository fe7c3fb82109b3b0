"""Commands, recipes and functions take the same options, for every option of every method."""

from inspect import signature

import click
import pytest
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.commands.reference import OPERATIONS
from squeeze.errors import OptionError
from squeeze.operations import Operation
from squeeze.options import options_of
from squeeze.packing.codings import LEVELS
from squeeze.packing.pack import pack
from squeeze.recipes.options import RECOVER, Common, Packing
from squeeze.recipes.run import read
from squeeze.recipes.steps import STEPS
from tests.makers.command import params, usage_error

ALL = (*OPERATIONS, RECOVER)
BY_NAME = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
# Of the run, and not of what becomes of the weights.
OF_THE_RUN = {
    *("source", "target", "force", "threads", "quiet", "as_json", "device", "resume", "_click_default_help", "help"),
    *("text", "windows", "inputs", "max_ppl_increase", "max_kl", "max_error", "packed", "page"),
    *("tasks", "task_folder", "task_limit", "shots", "max_task_drop"),
    *("cluster", "cluster_wait", "manifest"),
}
OF_FOLLOWING = {"pack": {"follow", "interval", "until_idle", "keep", "remove_source"}}


def calls() -> list[tuple[Operation, str, str]]:
    """Yield an operation, a method or none, and the name of an option."""
    found = []
    for operation in ALL:
        for method in operation.methods or ("",):
            found += [(operation, method, key) for key in operation.keys if key != "method"]
    return found


def value_of(operation: Operation, key: str) -> object:
    """One that an option may have."""
    one = operation.options()[key].option
    named = {"pattern": "4:8", "format": "squeeze", "grid": "nf4", "base": "other", "rate": 2.25}
    if key in named:
        return named[key]
    if one.choices:
        return one.choices[-1]
    if key == "families":
        return ("tt",)
    return {"bool": True, "int": 8, "float": 0.5, "str": "x"}[one.type]


@BY_NAME
def test_a_command_without_words_says_what_is_missing(operation):
    assert "Missing argument '" in usage_error(operation.name)


@BY_NAME
def test_a_command_takes_what_its_operation_does(operation):
    apart = OF_THE_RUN | OF_FOLLOWING.get(operation.name, set())
    found = [one.name for one in params(operation.name) if one.name not in apart]
    common = [one.name for one in options_of(Common)] if operation.methods else []
    assert sorted(found) == sorted([*operation.keys, *common])


def test_a_step_takes_what_its_operation_does():
    assert {step.operation.name: step.operation for step in STEPS.values()} == {one.name: one for one in ALL}
    assert all(name == step.operation.name for name, step in STEPS.items())


@pytest.mark.parametrize(("operation", "method", "key"), calls(), ids=str)
def test_every_option_of_every_method_means_the_same_in_all_three(operation, method, key):
    """Compare the method and settings that the texts of a command, values of a recipe and keyword arguments make."""
    chosen = {"method": method} if method else {}
    value = value_of(operation, key)
    wanted = operation.read({**chosen, key: value})
    if operation.methods:
        assert read(operation, None, {**chosen, key: value})[0] == wanted
    try:
        step = STEPS[operation.name]({**chosen, key: value})
    except squeeze.SqueezeError as error:
        assert not isinstance(error, OptionError)  # known and in bounds, but not beside the others
    else:
        assert step.request() == wanted
    if operation is RECOVER:
        return
    (param,) = (one for one in params(operation.name) if one.name == key)
    text = ",".join(value) if isinstance(value, tuple) else str(value)
    command = cli.main.commands[operation.name]
    words = [param.opts[0], *([] if value is True else [text])]
    if method:
        words += ["--method", method]
    with command.make_context(operation.name, ["in", "out", *words]) as context:
        given = {name: context.params[name] for name in operation.keys}
    given = {name: one for name, one in given.items() if one not in (None, ())}
    found = operation.read(given)
    assert (found.method, dict(found.method_options)) == (wanted.method, dict(wanted.method_options))
    assert str(found.settings) == str(wanted.settings).replace("base='other'", "base=PosixPath('other')")


@pytest.mark.parametrize("operation", ALL, ids=lambda one: one.name)
def test_an_unknown_key_is_named_with_the_nearest(operation):
    key = operation.keys[-1]
    with pytest.raises(OptionError, match=f"'{key}x' is unknown: choose from .*; nearest is {key}"):
        operation.read({f"{key}x": 1})
    with pytest.raises(OptionError, match=f"'{key}x' is unknown"):
        STEPS[operation.name]({f"{key}x": 1})


def test_functions_name_unknown_keys(tmp_path):
    for function in (squeeze.quantize, squeeze.prune, squeeze.factorize, squeeze.experts):
        with pytest.raises(OptionError, match="'group_sizes' is unknown: choose from method"):
            function(tmp_path, group_sizes=3, out=tmp_path / "out")
        assert len(signature(function).parameters) <= 10


def test_packing_takes_what_its_function_does():
    assert {one.name for one in options_of(Packing)} <= set(signature(pack).parameters)
    assert all(signature(pack).parameters[one.name].default == one.default for one in options_of(Packing))
    (level,) = (one for one in options_of(Packing) if one.name == "level")
    assert level.choices == tuple(LEVELS)


def test_bounds_are_said_the_same_everywhere_and_name_the_option_on_the_command_line(tmp_path):
    wanted = "samples must be at least 1, got 0"
    with pytest.raises(OptionError, match=wanted):
        squeeze.prune(tmp_path, samples=0, out=tmp_path / "out")
    with pytest.raises(OptionError, match="damping must be at least 0, got -1"):
        squeeze.GPTQ(damping=-1)
    for words, message in (
        (["--samples", "0"], f"--{wanted}"),
        (["--damping", "-1"], "--damping must be at least 0, got -1"),
        (["--bits", "9"], "--bits must be from 2 to 8, got 9"),
        (["--sequence-length", "0"], "--sequence-length must be at least 2, got 0"),
    ):
        done = CliRunner().invoke(cli.main, ["quantize", "in", "out", *words])
        assert (done.exit_code, done.output) == (2, f"Error: {message}\n")


def test_one_group_size():
    assert squeeze.GPTQ().group_size == squeeze.RTN().group_size == 64


@pytest.mark.parametrize(
    ("words", "wanted"),
    [([], None), (["--rotate"], True), (["--rotate", "m", "out"], True), (["--rotate", "full"], "full")],
)
def test_a_flag_that_may_have_a_value(words, wanted):
    command = cli.main.commands["quantize"]
    places = [] if "m" in words else ["m", "out"]
    context = command.make_context("quantize", [*words, *places])
    assert context.params["rotate"] == wanted and context.params["source"].name == "m"
    with pytest.raises(click.UsageError):
        command.make_context("quantize", ["m", "out", "--rotate", "half"])
