"""Standard input or output that is closed: one line, exit code 1, and no file in its place."""

import subprocess
import sys
from pathlib import Path

import pytest

import squeeze


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
