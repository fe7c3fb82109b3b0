"""Standard streams: names and texts of files are printed escaped, and a closed stream is one line of error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.commands.echo import echo, echo_lines, explain
from squeeze.errors import FormatError


def test_a_line_stays_one_and_control_codes_are_escaped(capsys):
    echo("one\ntwo \x1b[2J\udcff\x07 naïve")
    echo("\r", err=True)
    echo_lines("one\ntwo\x1b")
    assert capsys.readouterr() == ("one\\ntwo \\x1b[2J\\udcff\\x07 naïve\none\ntwo\\x1b\n", "\\r\n")


@pytest.mark.parametrize("command", ["compress -v", "test", "list", "decompress -v -f"])
def test_a_name_adds_no_line_of_its_own(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    name = Path("a\nError: b")
    name.write_bytes(b"a note")
    if command != "compress -v":
        Path(f"{name}.sqz").write_bytes(squeeze.compress(b"a note", 1))
        name = Path(f"{name}.sqz")
    found = CliRunner().invoke(cli.main, [*command.split(), str(name)], prog_name="squeeze")
    assert found.exit_code == 0
    assert "a\\nError: b" in found.output and "\nError" not in found.output


def test_a_member_adds_no_line_of_its_own(tmp_path):
    (tmp_path / "a\nb").write_bytes(b"a note")
    target = tmp_path / "all.tar.sqz"
    for arguments in (["compress", str(tmp_path), "-o", str(target)], ["list", str(target)]):
        found = CliRunner().invoke(cli.main, arguments, prog_name="squeeze")
        assert found.exit_code == 0
    assert found.output.endswith("/a\\nb\n")


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("compress -1 -q <&-", "Error: -: standard input is closed: redirect it, or name a file"),
        ("decompress <&-", "Error: -: standard input is closed: redirect it, or name a file"),
        ("compress -1 -c note >&-", "Error: note: standard output is closed: redirect it, or name a file"),
        ("list note.sqz >&-", "Error: standard output is closed: redirect it, or name a file"),
        ("test note.sqz <&- >&-", ""),
        ("decompress -f note.sqz <&- >&- 2>&-", ""),
    ],
)
def test_what_is_closed_is_named(tmp_path: Path, command: str, said: str):
    (tmp_path / "note").write_bytes(b"a note")
    (tmp_path / "note.sqz").write_bytes(squeeze.compress(b"a note", 1))
    line = f"{sys.executable} -m squeeze {command}"
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == said + "\n" * bool(said)
    assert done.returncode == bool(said)
    assert (tmp_path / "note").read_bytes() == b"a note"
