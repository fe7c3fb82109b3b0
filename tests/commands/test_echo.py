"""Whatever a file says, or is called, is printed escaped."""

import os

from click.testing import CliRunner

from squeeze import cli
from squeeze.commands.echo import echo
from squeeze.commands.job import explain
from squeeze.errors import FormatError


def test_lines_stay_lines_and_control_codes_are_escaped(capsys):
    echo("one\ntwo \x1b[2J\udcff\x07 naïve")
    echo("\r", err=True)
    assert capsys.readouterr() == ("one\ntwo \\x1b[2J\\udcff\\x07 naïve\n", "\\r\n")


def test_an_error_is_one_line_whatever_it_quotes():
    assert explain(FormatError("a\nb\x1b"), "c\r") == "c\\r: a\\nb\\x1b"
    assert explain(OSError(2, "No such file", "a\x1b")) == "a\\x1b: No such file"


def test_names_on_the_command_line_are_escaped(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b")
    for command in (("test", name), ("compress", name), ("list", name)):
        found = CliRunner().invoke(cli.main, command, prog_name="squeeze")
        assert found.exit_code == 1
        assert "\x1b" not in found.output
        assert found.stderr.count("\n") == 1
