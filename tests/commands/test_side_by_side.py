"""Small files in worker processes: the same results and messages, in the order of the files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from squeeze.commands import side_by_side
from tests.makers.command import TEXT, call, names
from tests.makers.inputs import words

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "LEAST_SECONDS", 0)


def test_results_and_messages_are_those_of_one_process(workers: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(side_by_side, "LARGE", 100_000)
    for number in range(3):
        Path(f"{number}.txt").write_bytes(TEXT * (number + 1))
    Path("large.txt").write_bytes(words(100_001))
    files = ["0.txt", "missing", "1.txt", "large.txt", "2.txt"]
    alone = call("compress", "-1", "--json", "-T1", *files)
    coded = {name: Path(name).read_bytes() for name in names() if name.endswith(".sqz")}
    together = call("compress", "-1", "--json", "-T2", "-f", *files)
    assert together.exit_code == alone.exit_code == 1
    said = "Error: missing: No such file or directory"
    assert without_progress(together.stderr) == without_progress(alone.stderr) == [said]
    assert [without_time(line) for line in together.stdout.splitlines()] == [
        without_time(line) for line in alone.stdout.splitlines()
    ]
    assert {name: Path(name).read_bytes() for name in coded} == coded and len(coded) == 4
    Path("1.txt.sqz").write_bytes(b"damaged")
    tested = call("test", "-T2", *sorted(coded))
    assert (tested.exit_code, tested.stdout) == (1, "0.txt.sqz: OK\n2.txt.sqz: OK\nlarge.txt.sqz: OK\n")
    assert tested.stderr.startswith("Error: 1.txt.sqz: not a .sqz file")


def without_progress(text: str) -> list[str]:
    """Return lines without those of progress, which a run has if it takes long."""
    return [line for line in text.splitlines() if not line.startswith('{"progress"')]


def without_time(line: str) -> dict[str, object]:
    return {key: value for key, value in json.loads(line).items() if key != "seconds"}


def test_files_are_restored_side_by_side_and_totals_are_counted(workers: None):
    for number in range(3):
        Path(f"{number}.txt").write_bytes(TEXT)
    said = call("compress", "-1", "-v", "-T2", "--rm", *names()).stderr.splitlines()
    assert [line.split(":")[0] for line in said[:3]] == ["0.txt", "1.txt", "2.txt"]
    assert said[3].startswith(f"3 files, {3 * len(TEXT):,} -> ") and names() == ["0.txt.sqz", "1.txt.sqz", "2.txt.sqz"]
    assert call("decompress", "-T2", *names()).exit_code == 0
    assert all(Path(f"{number}.txt").read_bytes() == TEXT for number in range(3))


def test_workers_end_with_a_run_that_is_stopped():
    """Only the parent gets SIGTERM."""
    for number in range(2):
        Path(f"{number}.txt").write_bytes(words(300_000) * 10)
    code = "import squeeze.commands.side_by_side as s; s.LEAST_SECONDS = 0; from squeeze.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "compress", "-3", "-T2", "0.txt", "1.txt"], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while len(list(Path().glob(".*.tmp"))) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (
        -signal.SIGTERM,
        b"Error: interrupted; unfinished files were left unchanged\n",
    )
    assert names() == ["0.txt", "1.txt"]


def test_a_worker_that_dies_costs_one_file(workers: None, monkeypatch: pytest.MonkeyPatch):
    started = side_by_side._Worker.__init__

    def dies(worker: side_by_side._Worker) -> None:
        started(worker)
        if not died:
            died.append(True)
            os.kill(worker._process.pid, signal.SIGKILL)

    died: list[bool] = []
    monkeypatch.setattr(side_by_side._Worker, "__init__", dies)
    for number in range(3):
        Path(f"{number}.txt").write_bytes(TEXT)
    done = call("compress", "-1", "-T2", "0.txt", "1.txt", "2.txt")
    assert done.exit_code == 1 and done.stderr.count("\n") == 1
    assert "the process that worked on it ended: run again with -T1" in done.stderr
    assert len(names()) == 5
