"""Files on disk: replaced in one step or left as they were."""

import os
import signal
import stat
from pathlib import Path

import pytest

from squeeze.errors import SqueezeError
from squeeze.system import files, unchanged
from tests.makers.command import names

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_target_that_appears_meanwhile_is_kept():
    target = Path("target")
    with (
        pytest.raises(SqueezeError, match=r"^target already exists; use `overwrite=True` to overwrite$"),
        files.replacing(target, overwrite=False) as file,
    ):
        file.write(b"new")
        target.write_bytes(b"theirs")
    assert target.read_bytes() == b"theirs"
    assert names() == ["target"]
    with files.replacing(target, overwrite=True) as file:
        file.write(b"new")
    assert target.read_bytes() == b"new"


def test_a_dangling_link_needs_leave():
    target = Path("target")
    target.symlink_to("nothing")
    with pytest.raises(SqueezeError, match="already exists"):
        files.check_target(target, [], False)
    files.check_target(target, [], True)
    with files.replacing(target) as file:
        file.write(b"new")
    assert not target.is_symlink() and target.read_bytes() == b"new"
    assert names() == ["target"]


def test_a_missing_folder_is_told_of_the_target():
    with pytest.raises(OSError, match="the folder no does not exist; make it first") as caught:
        files.check_target(Path("no/target"), [], False)
    assert caught.value.filename == "no/target"
    with pytest.raises(FileNotFoundError) as caught, files.replacing(Path("no/target")):
        pass
    assert caught.value.filename == "no/target"


def test_the_owner_is_kept_where_root_asks(monkeypatch):
    asked = []
    Path("source").touch()
    like = Path("source").stat()
    monkeypatch.setattr(os, "chown", lambda file, user, group: asked.append((user, group)))
    for user, expected in ((0, [(like.st_uid, like.st_gid)]), (1000, [(-1, like.st_gid)])):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with files.replacing(Path("target"), like):
            pass
        assert asked == expected
        asked.clear()
        files.copy_status(Path("source"), Path("target"))
        assert asked == expected
        asked.clear()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_is_really_kept():
    Path("source").touch(0o640)
    os.chown("source", 1001, 1002)
    with files.replacing(Path("target"), Path("source").stat()):
        pass
    status = Path("target").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1001, 1002, 0o640)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"longer than before"),
        lambda path: path.write_bytes(b"other"),
        lambda path: Path("other").replace(path),
        lambda path: path.unlink(),
    ],
    ids=["longer", "edited", "replaced", "deleted"],
)
def test_changes_are_noticed(change):
    path = Path("source")
    for name in ("source", "other"):
        Path(name).write_bytes(b"bytes")
        os.utime(name, ns=(1, 1))
    with path.open("rb") as file:
        opened = os.fstat(file.fileno())
        file.read()
        assert not unchanged.has_changed(path, opened)
        change(path)
        if path.exists():
            os.utime(path, ns=(1, 1))
        assert unchanged.has_changed(path, opened)


def test_pipes_never_change():
    os.mkfifo("pipe")
    status = Path("pipe").stat()
    os.utime("pipe", ns=(1, 1))
    assert not unchanged.has_changed(Path("pipe"), status)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_no_temporary(number):
    with pytest.raises(KeyboardInterrupt), files.interruptible(), files.replacing(Path("target")) as file:
        file.write(b"half")
        os.kill(os.getpid(), number)
    assert names() == []
    files.interrupted.clear()


def test_a_second_hangup_does_not_stop_the_tidying():
    with pytest.raises(KeyboardInterrupt), files.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            Path("tidied").touch()
    assert Path("tidied").exists()
    files.interrupted.clear()


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with files.interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_links_and_folders_that_cannot_be_read_are_passed_over(monkeypatch):
    for name in ("tree/a/x", "tree/b/x", "tree/c/x"):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()
    Path("tree/d").symlink_to("a")
    real, missed, linked = os.scandir, [], []

    def scan(path):
        if str(path) == "tree/b":
            raise PermissionError(13, "Permission denied", "tree/b")
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    found = list(files.expand(Path("tree"), True, lambda path: True, missed.append, linked.append))
    assert [str(path) for path in found] == ["tree/a/x", "tree/c/x"]
    assert ([error.filename for error in missed], linked) == (["tree/b"], [Path("tree/d")])


def test_a_text_is_replaced_whole_or_not_at_all(monkeypatch):
    files.write_text(Path("text"), "old\n")

    def full(handle):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "fsync", full)
        files.write_text(Path("text"), "new ö\n")
    assert (names(), Path("text").read_text()) == (["text"], "old\n")
    files.write_text(Path("text"), "new ö\n")
    assert Path("text").read_text("utf-8") == "new ö\n"


@pytest.mark.parametrize(("mode", "expected"), [(0o660, 0o600), (0o664, 0o644), (0o604, 0o604), (0o775, 0o755)])
def test_another_group_may_do_no_more_than_everybody(monkeypatch, mode, expected):
    Path("source").touch()
    Path("source").chmod(mode)
    like = Path("source").stat()
    other = os.stat_result((*like[:5], like.st_gid + 1, *like[6:]), {"st_mtime_ns": 0, "st_atime_ns": 0})
    monkeypatch.setattr(os, "chown", lambda file, user, group: None)
    for name, status, wanted in (("same", like, mode), ("other", other, expected)):
        with files.replacing(Path(name), status):
            pass
        assert stat.S_IMODE(Path(name).stat().st_mode) == wanted


def test_a_copy_in_another_group_is_for_no_more_than_everybody(monkeypatch):
    for name in ("source", "copy"):
        Path(name).touch()
    Path("source").chmod(0o640)
    like = os.stat_result((*(real := Path("source").stat())[:5], real.st_gid + 1, *real[6:]))
    monkeypatch.setattr(os, "chown", lambda file, user, group: None)
    monkeypatch.setattr(
        Path, "stat", lambda path, stat=Path.stat, **more: like if path.name == "source" else stat(path)
    )
    files.copy_status(Path("source"), Path("copy"))
    assert stat.S_IMODE(os.stat("copy").st_mode) == 0o600  # noqa: PTH116
