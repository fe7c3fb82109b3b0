"""Temporary names next to a target, and the deletion of those that killed processes left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from squeeze.system import temporary
from squeeze.system.files import replacing
from squeeze.system.idempotent import replacing_or_equal
from squeeze.system.work import scratch_folder

LONG = "x" * 100
KILLED = """
import os, signal, sys
from pathlib import Path
from squeeze.system.files import replacing
from squeeze.system.work import scratch_folder

with replacing(Path(sys.argv[1])) as file, scratch_folder(Path(sys.argv[1])) as folder:
    file.write(b"half")
    (folder / "part").write_text("half")
    os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def anew(in_folder, monkeypatch):
    monkeypatch.setattr(temporary, "_looked", {})


def left_by_a_kill(target: str, number: int = signal.SIGKILL) -> list[Path]:
    done = subprocess.run([sys.executable, "-c", KILLED, target, str(int(number))], check=False)
    assert done.returncode == -number
    return sorted(Path().glob(".*.tmp"))


@pytest.mark.parametrize("target", ["a", LONG, "a b.é"])
def test_a_later_success_removes_what_a_kill_left(target):
    left = left_by_a_kill(target)
    assert [path.is_dir() for path in left].count(True) == 1 and len(left) == 2
    with replacing(Path("other")) as file:
        file.write(b"whole")
    assert sorted(Path().glob(".*.tmp")) == left
    with replacing(Path(target)) as file:
        file.write(b"whole")
    assert [path.name for path in sorted(Path().iterdir())] == sorted([target, "other"])


@pytest.mark.parametrize("writing", [scratch_folder, lambda target: replacing_or_equal(target, overwrite=False)])
def test_a_folder_and_a_comparison_are_successes_too(writing):
    Path("a").write_bytes(b"")
    assert left_by_a_kill("a")
    with writing(Path("a")):
        pass
    assert not list(Path().glob(".*.tmp"))


def test_names_that_only_begin_alike_are_told_apart():
    (left,) = (path for path in left_by_a_kill(LONG) if path.is_file())
    with replacing(Path(LONG + "y")):
        pass
    assert left.exists()


def test_what_is_not_provably_left_stays():
    """Files of running processes, hard links, symbolic links and other names stay."""
    stays = [Path(".a.abcdefgh.tmp"), Path(".a.abcdefgh.other.tmp"), Path(".b.abcdefgh.squeeze.tmp")]
    for path in stays:
        path.write_text("mine")
    linked = Path(".a.linkedto.squeeze.tmp")
    os.link(stays[0], linked)
    link = Path(".a.symlinks.squeeze.tmp")
    link.symlink_to(stays[0])
    with replacing(Path("a")) as first:
        (living,) = set(Path().glob(".a.*.squeeze.tmp")) - {linked, link}
        with replacing(Path("a")) as second:
            second.write(b"second")
        assert living.exists() and Path("a").read_bytes() == b"second"
        first.write(b"first")
    assert Path("a").read_bytes() == b"first"
    assert sorted(Path().iterdir()) == sorted([Path("a"), *stays, linked, link])


def test_another_users_files_stay(monkeypatch):
    left = left_by_a_kill("a")
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    temporary.sweep(Path("a"))
    assert sorted(Path().glob(".*.tmp")) == left


def test_a_large_folder_is_not_looked_through_for_every_file(monkeypatch):
    looks = []
    monkeypatch.setattr(temporary, "_temporary_names", lambda folder: looks.append(folder) or {})
    monkeypatch.setattr(temporary, "time", type("Clock", (), {"monotonic": staticmethod(lambda: len(looks))}))
    for _ in range(60):
        temporary.sweep(Path("a"))
    assert len(looks) == 1
