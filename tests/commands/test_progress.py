"""Lines of progress: on a terminal, as JSON, and not at all."""

import io
import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

from squeeze.commands import progress
from squeeze.system import files
from tests.makers.command import SQUEEZE

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_terminal_shows_a_bar_and_the_sizes(note: Path):
    master, slave = pty.openpty()
    subprocess.run([*SQUEEZE, "compress", "-1", note], stderr=slave, check=True)
    os.close(slave)
    said = os.read(master, 65536)
    os.close(master)
    assert b"note.txt:" in said
    assert b"2,960 -> " in said


def test_one_line_has_what_is_worked_on_and_the_memory(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "resident_memory", lambda: 1_234_567_890)
    with progress.bar("model", 100, unit="") as tick:
        tick.say("perplexity 17.5")
        tick(30)
        time.sleep(0.2)  # tqdm draws ten times a second
        tick(30)
    said = sys.stderr.getvalue()
    assert "model:  60%" in said and "perplexity 17.5, 1.2 GB" in said and "\n" not in said


def test_a_pipe_shows_lines_of_json(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 9.5, 12.0, 12.5, 30.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bar("big.txt", 100, as_json=True) as tick:
        for _ in range(5):
            tick(20)
    (line,) = capsys.readouterr().err.splitlines()
    wanted = {"progress": "big.txt", "done": 60, "total": 100, "unit": "B", "rate": 5.0, "eta_seconds": 8.0}
    said = json.loads(line)
    assert said.pop("memory", 1 << 24) >= 1 << 24
    assert said == wanted


def test_the_time_left_is_told_once_it_is_known_how_much_there_is(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 14.0, 18.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bar("files", None, as_json=True) as tick:
        for done in range(3):
            if done == 2:
                tick.expect(100)
            tick.say(f"{done} files", files=done)
            tick(20)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [(line["files"], line["total"], line["eta_seconds"]) for line in lines]
    assert told == [(1, None, None), (2, 100, 12.0)]


def test_steps_have_lines_too(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 14.0, 18.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.steps("out", as_json=True) as step:
        for done in range(3):
            step(f"block {done}", done, 4)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["step"], line["done"], line["total"]) for line in lines] == [("block 1", 1, 4), ("block 2", 2, 4)]


def test_what_is_worked_on_is_said(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 14.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bar("model", 100, as_json=True) as tick:
        for perplexity in (21.0, 17.5):
            tick.say(f"perplexity {perplexity}")
            tick(30)
    assert json.loads(capsys.readouterr().err)["step"] == "perplexity 17.5"


def test_a_run_that_is_stopped_says_how_to_go_on(capsys):
    with pytest.raises(KeyboardInterrupt), progress.steps("out", as_json=True) as step:
        step("model.layers.3", 3, 30)
        raise KeyboardInterrupt
    at = "Stopped at model.layers.3, 3 of 30 done"
    assert capsys.readouterr().err == (f"{at}; finished work is kept: repeat the command to resume.\n")
    with pytest.raises(KeyboardInterrupt), progress.steps("out", stopped_note="out is written."):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "Stopped; out is written.\n"


def test_a_quiet_run_shows_nothing_and_is_stopped_by_a_tick(monkeypatch, capsys):
    for options in ({"quiet": True, "as_json": True}, {}):
        with progress.bar("x", 10, **options) as tick:
            tick(1)
            monkeypatch.setattr(files, "interrupted", type("Set", (), {"is_set": lambda self: True})())
            with pytest.raises(KeyboardInterrupt):
                tick(1)
            monkeypatch.undo()
    assert capsys.readouterr().err == ""
