"""`squeeze completion`: what shells are given, and what they get when they ask."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from squeeze import cli
from tests.makers.command import run, usage_error


def asked(*words: str) -> list[str]:
    """Return the completions of a line whose last word is unfinished, as bash gets them."""
    line = {"COMP_WORDS": " ".join(["squeeze", *words]), "COMP_CWORD": str(len(words))}
    environment = {**line, "_SQUEEZE_COMPLETE": "bash_complete"}
    return CliRunner().invoke(cli.main, [], prog_name="squeeze", env=environment).output.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("compr",), ["plain,compress"]),
        (("compress", "--verb"), ["plain,--verbose"]),
        (("compress", "no"), ["file,no"]),
        (("decompress", "-o", "no"), ["file,no"]),
        (("quantize", "--form"), ["plain,--format"]),
        (("completion", "z"), ["plain,zsh"]),
    ],
)
def test_words_are_completed(words, expected):
    assert asked(*words) == expected


def test_every_command_is_offered():
    assert asked("") == [f"plain,{name}" for name in sorted(cli.COMMANDS)]


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_script_asks_squeeze(shell):
    script = run("completion", shell).stdout
    assert f"_SQUEEZE_COMPLETE={shell}_complete" in script


def test_bash_takes_its_script():
    command = f'eval "$({sys.executable} -m squeeze completion bash)"; complete -p squeeze'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("complete -o nosort -F _squeeze_completion squeeze\n", "")


def test_another_shell_is_a_usage_error():
    assert usage_error("completion", "tcsh").endswith("'tcsh' is not one of 'bash', 'fish', 'zsh'.")
