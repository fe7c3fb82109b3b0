"""Lines of progress: on a terminal, as JSON, and not at all."""

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from squeeze.commands import progress
from squeeze.system import files
from tests.makers.command import SQUEEZE

pytestmark = pytest.mark.usefixtures("in_folder")


def test_progress_on_a_terminal(note: Path):
    master, slave = pty.openpty()
    subprocess.run([*SQUEEZE, "compress", "-1", note], stderr=slave, check=True)
    os.close(slave)
    said = os.read(master, 65536)
    os.close(master)
    assert b"note.txt:" in said
    assert b"2960 -> " in said


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
    for options in ({"quiet": True, "as_json": True}, {}):
        with progress.bar("x", 10, **options) as tick:
            tick(1)
            monkeypatch.setattr(files, "interrupted", type("Set", (), {"is_set": lambda self: True})())
            with pytest.raises(KeyboardInterrupt):
                tick(1)
            monkeypatch.undo()
    assert capsys.readouterr().err == ""
