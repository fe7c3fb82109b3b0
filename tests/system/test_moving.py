"""Finished files and folders get their names in one step, and large files are synced while they are written."""

import errno
import os
import time
from pathlib import Path

import pytest

from squeeze.errors import SqueezeError
from squeeze.system import moving
from squeeze.system.moving import move_into_place
from tests.makers.command import names

WHERE = pytest.mark.parametrize("renames", ["with flags", "without"])


@pytest.fixture(autouse=True)
def on_other_systems(in_folder, monkeypatch, request):
    """Run a test with renameat2's flags and without them."""
    if "renames" in request.fixturenames and request.getfixturevalue("renames") == "without":
        monkeypatch.setattr(moving, "_renameat2", None)


def made(kind):
    path = Path("made")
    if kind == "file":
        path.write_text("new")
    else:
        path.mkdir()
        (path / "inside").write_text("new")
    return path


def text(path):
    return (path / "inside" if path.is_dir() else path).read_text()


@WHERE
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_free_name_is_taken(renames, kind, overwrite):
    move_into_place(made(kind), Path("target"), overwrite)
    assert text(Path("target")) == "new"
    assert names() == ["target"]


@WHERE
@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("other", ["file", "folder", "link", "dangling"])
def test_nothing_that_appeared_is_replaced(renames, kind, other):
    target = Path("target")
    if other == "folder":
        target.mkdir()
        (target / "inside").write_text("old")
    elif other == "file":
        target.write_text("old")
    else:
        Path("old").write_text("old")
        target.symlink_to("old" if other == "link" else "nothing")
    with pytest.raises(SqueezeError, match=r"^target already exists; use `overwrite=True` to overwrite$"):
        move_into_place(made(kind), target, False)
    assert text(Path("made")) == "new"
    assert target.is_symlink() if other == "dangling" else text(target) == "old"


@WHERE
def test_an_empty_folder_gives_way_to_a_folder(renames):
    Path("target").mkdir()
    move_into_place(made("folder"), Path("target"), False)
    assert text(Path("target")) == "new"


@WHERE
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_an_existing_target_is_replaced_if_allowed(renames, kind):
    made(kind).rename("target")
    (Path("target") / "inside" if kind == "folder" else Path("target")).write_text("old")
    move_into_place(made(kind), Path("target"), True)
    assert text(Path("target")) == "new"
    assert names() == ["target"]


@WHERE
def test_a_link_is_replaced_and_not_followed(renames):
    Path("victim").mkdir()
    Path("victim/inside").write_text("old")
    Path("target").symlink_to("victim")
    move_into_place(made("folder"), Path("target"), True)
    assert names() == ["target", "victim"]
    assert (text(Path("target")), text(Path("victim"))) == ("new", "old")
    assert not Path("target").is_symlink()


@WHERE
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_what_is_there_stays_where_a_swap_fails(renames, monkeypatch, error):
    made("folder").rename("target")
    (Path("target") / "inside").write_text("old")
    real = os.rename

    def fail(path, name, *rest):
        if str(path).endswith("new") and "old" not in str(name):
            raise error
        return real(path, name, *rest)

    monkeypatch.setattr(os, "rename", fail)
    if renames == "with flags":
        monkeypatch.setattr(moving, "rename", fail)
    with pytest.raises(type(error)):
        move_into_place(made("folder"), Path("target"), True)
    assert text(Path("target")) == "old"
    assert names() == ["target"]


@WHERE
@pytest.mark.parametrize("overwrite", [False, True])
def test_all_of_a_folder_is_on_the_disk_before_it_has_its_name(renames, monkeypatch, overwrite):
    if overwrite:
        made("folder").rename("target")
    below = made("folder") / "below"
    below.mkdir()
    (below / "deep").write_text("new")
    (below / "deep").chmod(0o444)
    (below / "link").symlink_to("deep")
    done = synced(monkeypatch)
    move_into_place(Path("made"), Path("target"), overwrite)
    assert done == ["made/below/deep", "made/below", "made/inside", "made", "."]


def synced(monkeypatch):
    """Record the current name of everything that is synced, in order."""
    done, here, real = [], Path().resolve(), os.fsync

    def sync(handle):
        path = Path(f"/proc/self/fd/{handle}").readlink()
        done.append(path.relative_to(here).as_posix())
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    return done


def test_a_folder_that_cannot_be_synced_has_no_name(monkeypatch):
    def fail(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    made("folder")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as caught:
        move_into_place(Path("made"), Path("target"), False)
    assert caught.value.filename == "target"
    assert names() == ["made"]


@WHERE
def test_a_swap_that_may_not_last_is_undone(renames, monkeypatch):
    made("folder").rename("target")
    (Path("target") / "inside").write_text("old")

    def fail(path):
        if path == Path():
            raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(moving, "sync", fail)
    with pytest.raises(OSError, match="broken"):
        move_into_place(made("folder"), Path("target"), True)
    assert text(Path("target")) == "old"
    assert names() == ["target"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_name_that_may_not_last_is_given_back(monkeypatch, kind):
    """So that --rm deletes no source, and the same command can be given again."""

    def fail(path):
        if path == Path():
            raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(moving, "sync", fail)
    with pytest.raises(OSError, match="broken") as caught:
        move_into_place(made(kind), Path("target"), False)
    assert caught.value.filename == "target"
    assert names() == ["made"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_only_file_systems_that_cannot_are_excused_from_lasting(monkeypatch, code):
    def fail(handle):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    if code == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            moving.sync(Path())
    else:
        moving.sync(Path())


def test_a_folder_replaced_that_cannot_be_deleted_is_named(monkeypatch):
    made("folder").rename("target")

    def fail(folder):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(moving.shutil, "rmtree", fail)
    with pytest.raises(OSError, match="broken; target was written nevertheless"):
        move_into_place(made("folder"), Path("target"), True)
    assert text(Path("target")) == "new"


@pytest.fixture
def syncs(monkeypatch):
    """Record the calls that sync, in order, and sync all the time meanwhile."""
    called = []
    monkeypatch.setattr(moving, "_SYNC_EVERY", 0.001)
    monkeypatch.setattr(moving, "_sync", lambda handle: called.append("meanwhile"))
    monkeypatch.setattr(os, "fsync", lambda handle: called.append("end"))
    return called


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def test_a_file_is_synced_while_it_is_written_and_at_the_end(tmp_path, syncs):
    with (tmp_path / "file").open("wb") as file:
        with moving.synced(file):
            file.write(b"words")
            wait_for(lambda: "meanwhile" in syncs)
            assert "end" not in syncs
        assert (tmp_path / "file").read_bytes() == b"words"
        assert syncs[-1] == "end" and syncs.count("end") == 1


def test_what_failed_is_not_synced(tmp_path, syncs):
    with (tmp_path / "file").open("wb") as file, pytest.raises(KeyError), moving.synced(file):
        raise KeyError
    assert "end" not in syncs


def test_a_disk_that_fails_meanwhile(tmp_path, syncs, monkeypatch):
    """Keep an error that the system reports only once, so that a sync at the end would not see it."""
    failed = []

    def fail(handle):
        failed.append(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(moving, "_sync", fail)
    with (
        (tmp_path / "file").open("wb") as file,
        pytest.raises(OSError, match=os.strerror(errno.EIO)),
        moving.synced(file),
    ):
        wait_for(lambda: failed)
    assert len(failed) == 1 and not syncs
