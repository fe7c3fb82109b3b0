"""What commands, recipes and functions take is the same; tables of commands, names and options are complete."""

import ast
import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.commands import options, progress
from squeeze.commands.reference import OPERATIONS, operation_table, options_table
from squeeze.errors import OptionError
from squeeze.options import Operation, of
from squeeze.packing.container import LEVELS
from squeeze.packing.pack import pack
from squeeze.recipes.options import FACTORIZE, PACK, PRUNE, QUANTIZE, RECOVER, Common, Packing
from squeeze.recipes.run import read
from squeeze.recipes.steps import STEPS
from squeeze.system import files
from squeeze.system.limits import Limits

ROOT = Path(squeeze.__file__).parent
ALL = (*OPERATIONS, RECOVER)
BY_NAME = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
# Of the run, and not of what becomes of the weights.
OF_THE_RUN = {
    *("source", "target", "force", "threads", "quiet", "as_json", "device", "resume", "_click_default_help"),
    *("text", "windows", "max_ppl_increase", "max_kl", "packed"),
}


def params(name: str) -> list[click.Parameter]:
    command = cli.main.commands[name]
    return command.get_params(click.Context(command))


def calls() -> list[tuple[Operation, str, str]]:
    """An operation, a method or none, and the name of an option."""
    found = []
    for operation in ALL:
        for method in operation.methods or ("",):
            found += [(operation, method, key) for key in operation.keys if key != "method"]
    return found


def value_of(operation: Operation, key: str) -> object:
    """One that an option may have."""
    one = operation.owned()[key].option
    if key in ("pattern", "format", "grid", "base"):
        return {"pattern": "4:8", "format": "squeeze", "grid": "nf4", "base": "other"}[key]
    if one.choices:
        return one.choices[-1]
    if key == "families":
        return ("tt",)
    return {"bool": True, "int": 8, "float": 0.5, "str": "x"}[one.type]


@BY_NAME
def test_a_command_takes_what_its_operation_does(operation):
    found = [one.name for one in params(operation.name) if one.name not in OF_THE_RUN]
    common = [one.name for one in of(Common)] if operation.methods else []
    assert sorted(found) == sorted([*operation.keys, *common])


def test_a_step_takes_what_its_operation_does():
    assert {step.operation.name: step.operation for step in STEPS.values()} == {one.name: one for one in ALL}
    assert all(name == step.operation.name for name, step in STEPS.items())


@pytest.mark.parametrize(("operation", "method", "key"), calls(), ids=str)
def test_every_option_of_every_method_means_the_same_in_all_three(operation, method, key):
    """The command's texts, a recipe's values and keyword arguments make the same method and settings."""
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
        assert step.asked() == wanted
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
    assert (found.method, dict(found.given)) == (wanted.method, dict(wanted.given))
    assert str(found.settings) == str(wanted.settings).replace("base='other'", "base=PosixPath('other')")


@pytest.mark.parametrize("operation", ALL, ids=lambda one: one.name)
def test_an_unknown_key_is_named_with_the_nearest(operation):
    key = operation.keys[-1]
    with pytest.raises(OptionError, match=f"'{key}x' is unknown: choose from .*; nearest is {key}"):
        operation.read({f"{key}x": 1})
    with pytest.raises(OptionError, match=f"'{key}x' is unknown"):
        STEPS[operation.name]({f"{key}x": 1})


def test_functions_name_unknown_keys(tmp_path):
    for function in (squeeze.quantize, squeeze.prune, squeeze.factorize):
        with pytest.raises(OptionError, match="'group_sizes' is unknown: choose from method"):
            function(tmp_path, group_sizes=3, out=tmp_path / "out")
        assert len(signature(function).parameters) <= 10


def test_packing_takes_what_its_function_does():
    assert {one.name for one in of(Packing)} <= set(signature(pack).parameters)
    assert all(signature(pack).parameters[one.name].default == one.default for one in of(Packing))
    (level,) = (one for one in of(Packing) if one.name == "level")
    assert level.choices == LEVELS


def test_bounds_are_said_the_same_everywhere(tmp_path):
    wanted = "samples 0: it is at least 1"
    with pytest.raises(OptionError, match=wanted):
        squeeze.prune(tmp_path, samples=0, out=tmp_path / "out")
    with pytest.raises(OptionError, match="damping -1: it is at least 0"):
        squeeze.GPTQ(damping=-1)
    for words, message in (
        (["--samples", "0"], wanted),
        (["--damping", "-1"], "damping -1: it is at least 0"),
        (["--bits", "9"], "9 bits: it is from 2 to 8"),
    ):
        done = CliRunner().invoke(cli.main, ["quantize", "in", "out", *words])
        assert (done.exit_code, done.output) == (2, f"Error: {message}\n")


def test_one_group_size():
    assert squeeze.GPTQ().group_size == squeeze.RTN().group_size == 64


@pytest.mark.parametrize("name", ["threads", "device", "quiet", "verbose", "as_json", "resume", "prior"])
def test_a_shared_option_is_one(name):
    found = [one for command in cli.COMMANDS if command != "advise" for one in params(command) if one.name == name]
    facts = {(tuple(one.opts), str(one.type), one.default, one.help) for one in found}
    assert len(facts) == 1 < len(found), facts


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_table_of_commands_says_what_the_commands_do(name):
    module, _, attribute = cli.COMMANDS[name][0].partition(":")
    command = cli.main.commands[name]
    assert command.name == name and (ROOT / "commands" / f"{module}.py").is_file() and attribute
    first = " ".join(command.help.partition("\n\n")[0].split())
    short = cli.COMMANDS[name][1].removesuffix(".")
    words = short.split(", and ")[0]
    assert first.startswith(words), (first, short)


def test_help_of_a_command_imports_nothing_heavy():
    for name in cli.COMMANDS:
        code = (
            f"import sys; from squeeze.cli import main; main(['{name}', '--help'], standalone_mode=False); "
            "print({'numba', 'numpy', 'torch', 'tqdm'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("\nset()\n"), (name, done.stdout[-80:])


def test_help_of_the_group_imports_no_command():
    code = "import sys; from squeeze.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {one for one in done.stdout.split() if one.startswith("squeeze.commands")}


def test_a_dictionary_has_three_names():
    for command in ("compress", "decompress", "test"):
        (found,) = (one for one in params(command) if one.name == "prior")
        assert found.opts == ["-D", "--dictionary", "--prior"]
    (found,) = (one for one in params("train") if one.name == "output")
    assert {"-o", "--output", "-D", "--dictionary", "--prior"} == set(found.opts)


def test_type_checkers_are_told_every_name():
    tree = ast.parse((ROOT / "__init__.pyi").read_text())
    told = {alias.asname: node.module for node in tree.body for alias in node.names}
    assert told == {**squeeze.HOMES, "__version__": "squeeze.version"}
    assert set(squeeze.__all__) == set(squeeze.HOMES)
    assert all(getattr(squeeze, name) is not None for name in squeeze.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        squeeze.nothing  # noqa: B018


def test_tables_name_every_option():
    for operation in OPERATIONS:
        table = operation_table(operation)
        assert table.count("\n") == 2 + len(operation.owned())
        assert all(f"| `{key}` |" in table for key in operation.keys if key != "method")
    assert "| `damping` | number | 0.01 | at least 0 |" in options_table("squeeze.quant.gptq:GPTQ")
    assert options_table(squeeze.GPTQ) == options_table("squeeze.quant.gptq:GPTQ")
    assert "sparsegpt: " in operation_table(PRUNE) and "--asymmetric" in operation_table(QUANTIZE)
    assert "monarch 4, blast 2" in operation_table(FACTORIZE) and "--no-verify" in operation_table(PACK)


def test_lines_of_progress(monkeypatch, capsys):
    clock = iter([0.0, 9.5, 12.0, 12.5, 30.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bar("big.txt", 100, as_json=True) as tick:
        for _ in range(5):
            tick(20)
    (line,) = capsys.readouterr().err.splitlines()
    wanted = {"progress": "big.txt", "done": 60, "total": 100, "unit": "B", "rate": 5.0, "left": 8.0}
    assert json.loads(line) == wanted


def test_steps_have_lines_too(monkeypatch, capsys):
    clock = iter([0.0, 14.0, 18.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.steps("out", as_json=True) as step:
        for done in range(3):
            step(f"block {done}", done, 4)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["step"], line["done"], line["total"]) for line in lines] == [("block 1", 1, 4), ("block 2", 2, 4)]


def test_silence_and_the_end_of_a_run(monkeypatch, capsys):
    for silence in ({"quiet": True, "as_json": True}, {}):
        with progress.bar("x", 10, **silence) as tick:
            tick(1)
            monkeypatch.setattr(files, "interrupted", type("Set", (), {"is_set": lambda self: True})())
            with pytest.raises(KeyboardInterrupt):
                tick(1)
            monkeypatch.undo()
    assert capsys.readouterr().err == ""


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
