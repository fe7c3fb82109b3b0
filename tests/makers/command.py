"""Run the command in the test's folder, and return its output."""

import json
import sys
from pathlib import Path

import click
from click.testing import CliRunner, Result

from squeeze import cli

TEXT = b"A coder spends few bits on what a model expects, and many for a surprise.\n" * 40
SQUEEZE = [sys.executable, "-m", "squeeze"]


def call(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, [str(a) for a in arguments], input=stdin, prog_name="squeeze")


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    """Run a command that must succeed without messages. Return its output."""
    result = call(*arguments, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, "")
    return result


def fails(*arguments: object, stdin: bytes | None = None) -> str:
    """Run a command that must fail with exit code 1. Return its message."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


def usage_error(*arguments: object) -> str:
    """Run a command that must fail with exit code 2. Return the last line of its message."""
    result = call(*arguments)
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def listed(path: str) -> dict:
    return json.loads(run("list", "--json", path).stdout)


def params(name: str) -> list[click.Parameter]:
    command = cli.main.commands[name]
    return command.get_params(click.Context(command))
