"""The group of commands: its help, its version, and usage errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from squeeze import cli
from tests.makers.command import call, run, usage_error

ROOT = Path(__file__).parents[1]


def test_help_imports_nothing_heavy():
    code = "import sys, squeeze.cli; print({'numba', 'numpy', 'torch', 'tqdm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_garbage_is_collected_as_usual_after_the_start_of_a_process():
    code = (
        "import gc, sys; from squeeze import cli; usual = gc.get_threshold(); sys.argv[1:] = ['--version']\n"
        "try: cli.run()\n"
        "except SystemExit: pass\n"
        "kept = [[] for _ in range(2 * gc.get_threshold()[0])]\n"
        "assert gc.get_threshold() == usual and not gc.callbacks and gc.get_freeze_count()"
    )
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def test_a_command_with_a_model_ends_without_a_word_of_its_libraries(folders):
    words = [sys.executable, "-m", "squeeze", "inspect", "--blocks", str(folders("llama"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "model.layers" in done.stdout and done.stderr == ""


def test_version_names_the_format_and_the_numerics():
    assert run("--version").stdout == run("-V").stdout == "squeeze 0.1.0, .sqz format 1, numerics 1\n"


def test_help_of_every_command_has_an_example():
    for name in cli.COMMANDS:
        assert f"Example: squeeze {name}" in run(name, "--help").stdout


def test_no_command_is_a_usage_error():
    assert call().exit_code == 2


def test_unknown_command_is_a_usage_error():
    assert usage_error("squash") == "Error: No such command 'squash'."


def test_unknown_option_is_a_usage_error():
    assert usage_error("compress", "--fast").startswith("Error: No such option")


@pytest.mark.parametrize(("given", "count"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_of_openmp_give_way(monkeypatch, given, count):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    call("info")
    assert os.environ["GOMP_SPINCOUNT"] == count and os.environ["KMP_BLOCKTIME"] == "1"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_table_of_commands_says_what_the_commands_do(name):
    module, _, attribute = cli.COMMANDS[name][0].partition(":")
    command = cli.main.commands[name]
    assert command.name == name and (ROOT / "squeeze" / "commands" / f"{module}.py").is_file() and attribute
    first = " ".join(command.help.partition("\n\n")[0].split())
    short = cli.COMMANDS[name][1].removesuffix(".")
    words = short.split(", and ")[0]
    assert first.startswith(words), (first, short)


def test_help_of_a_command_imports_nothing_heavy():
    """One process for all, since each is quick and Python's start is not."""
    code = (
        "import sys; from squeeze.cli import main\n"
        "for name in sys.argv[1:]:\n"
        "    main([name, '--help'], standalone_mode=False)\n"
        "    print('heavy:', name, *sorted({'numba', 'numpy', 'torch', 'tqdm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *cli.COMMANDS], capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert said == [f"heavy: {name}" for name in cli.COMMANDS]


def test_help_of_the_group_imports_no_command():
    code = "import sys; from squeeze.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {one for one in done.stdout.split() if one.startswith("squeeze.commands")}
