"""Work folders: gone on with after a stop, and nothing deleted that is not a run's own."""

import json
import os
from pathlib import Path

import pytest

from squeeze.commands.echo import explain
from squeeze.errors import DeviceError, SqueezeError
from squeeze.system import work as module
from squeeze.system.work import Discards, discards, forget, scratch_folder, work_folder

TARGET, PLACE = Path("q"), Path(".q.packing")


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("victim").mkdir()
    Path("victim/precious").write_text("mine")


def names(folder="."):
    return sorted(path.name for path in Path(folder).iterdir())


def open_work(task=None, discarded=Discards.OTHERS):
    return work_folder(TARGET, "packing", task or {"level": 1}, discarded)


def stop(task=None, **files):
    """Leave what a stopped run leaves."""
    with pytest.raises(KeyboardInterrupt), open_work(task) as folder:
        for name, text in files.items():
            (folder / name).write_text(text)
        raise KeyboardInterrupt


def refused(**options):
    with pytest.raises(SqueezeError) as caught, open_work(**options):
        pass
    return str(caught.value)


IN_THE_WAY = f"{PLACE} exists and was not made by squeeze: move or delete it"


def precious():
    return Path("victim/precious").read_text() == "mine"


@pytest.mark.parametrize("error", [None, SqueezeError("wrong")])
def test_it_goes_when_all_is_done_or_proves_wrong(error):
    try:
        with open_work() as folder:
            (folder / "below").mkdir()
            (folder / "below/part").write_text("x")
            if error:
                raise error
    except SqueezeError as raised:
        assert raised is error
    assert names() == ["victim"]


@pytest.mark.parametrize("discarded", [Discards.NONE, Discards.OTHERS])
def test_a_stopped_run_is_gone_on_with(discarded):
    stop(part="half")
    with open_work(discarded=discarded) as folder:
        assert (folder / "part").read_text() == "half"


def test_what_another_task_finished_is_kept_and_its_settings_are_named():
    stop({"settings": {"bits": 4, "seed": 1}, "tokens": "a", "version": 1}, part="half")
    task = {"settings": {"bits": 3, "seed": 1}, "tokens": "b", "version": 1}
    assert refused(task=task, discarded=Discards.NONE) == (
        f"q: the stopped run had other settings (bits, tokens) and left finished work in {PLACE.absolute()}: "
        "repeat its settings to resume, or start over with `overwrite=True` and without `resume=True`"
    )
    assert (PLACE / "part").read_text() == "half"


def test_finished_work_goes_only_if_the_user_overwrites():
    assert discards(resume=False, overwrite=True) is Discards.OTHERS
    assert {discards(resume=True, overwrite=over) for over in (False, True)} == {Discards.NONE}
    assert discards(resume=False, overwrite=False) is Discards.NONE


@pytest.mark.parametrize("kind", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("discarded", [Discards.NONE, Discards.OTHERS])
def test_what_stops_a_run_names_its_folder(kind, discarded):
    with pytest.raises(type(kind)) as caught, open_work(discarded=discarded):
        raise kind
    note = f"finished work is kept in {Path.cwd() / PLACE}: repeat the command to resume"
    assert explain(caught.value).endswith(f"; {note}") and PLACE.is_dir()


def test_a_device_with_too_little_memory_costs_no_finished_work():
    with pytest.raises(DeviceError), open_work() as folder:
        (folder / "part").write_text("half")
        raise DeviceError("cuda has too little memory")
    assert (PLACE / "part").read_text() == "half"


def test_of_folders_in_one_another_the_outer_is_named():
    with pytest.raises(OSError, match="full") as caught, open_work() as folder, work_folder(folder / "a", "inner", {}):
        raise OSError(28, "full")
    assert len(caught.value.__notes__) == 1 and "inner" not in caught.value.__notes__[0]


@pytest.mark.parametrize("call", ["pwrite", "mkdir", "open"])
def test_nothing_is_left_of_a_run_that_could_not_begin(call, monkeypatch):
    real = getattr(os, call)

    def full(path, *rest, **options):
        if call != "open" or rest[0] & os.O_CREAT:
            raise OSError(28, "No space left on device")
        return real(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space"), open_work():
            pass
    assert names() == ["victim"]


def test_nothing_is_left_of_a_run_whose_task_could_not_be_written(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *names: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full") as caught, open_work():
            pass
    assert names() == ["victim"] and not hasattr(caught.value, "__notes__")


def test_a_folder_that_cannot_be_deleted_is_named(monkeypatch):
    def busy(*rest):
        raise OSError(5, "Input/output error")

    with pytest.raises(SqueezeError) as caught, monkeypatch.context() as patch, open_work():
        patch.setattr(module, "_delete", busy)
        raise SqueezeError("wrong")
    assert explain(caught.value) == f"wrong; {Path.cwd() / PLACE} could not be deleted: delete it"


def test_another_task_starts_anew():
    stop(part="half")
    with open_work({"level": 2}) as folder:
        assert not (folder / "part").exists()
    stop(part="half")
    with open_work(discarded=Discards.ALL) as folder:
        assert not (folder / "part").exists()


@pytest.mark.parametrize("discarded", Discards)
def test_a_planted_link_is_not_followed(discarded):
    PLACE.symlink_to("victim")
    assert refused(discarded=discarded).endswith(IN_THE_WAY)
    assert precious() and names("victim") == ["precious"]


def test_a_link_to_a_folder_of_squeeze_is_not_followed_either():
    stop(part="half")
    PLACE.rename("elsewhere")
    PLACE.symlink_to("elsewhere")
    assert refused().endswith(IN_THE_WAY)
    assert Path("elsewhere/part").exists()


@pytest.mark.parametrize("planted", [["notes"], ["lock", "notes"], ["task.json"], ["lock"]])
def test_a_folder_that_is_not_marked_is_left_alone(planted):
    PLACE.mkdir()
    for name in planted:
        (PLACE / name).write_text("mine")
    assert refused(discarded=Discards.ALL).endswith(IN_THE_WAY)
    assert names(PLACE) == sorted(planted)
    assert all((PLACE / name).read_text() == "mine" for name in planted)


@pytest.mark.parametrize("kind", ["symlink", "link", "fifo"])
def test_a_lock_that_is_something_else_is_not_written(kind):
    PLACE.mkdir()
    Path("victim/empty").touch()
    if kind == "fifo":
        os.mkfifo(PLACE / "lock")
    else:
        getattr(os, kind)(Path("victim/empty").absolute(), PLACE / "lock")
    assert refused().endswith(IN_THE_WAY)
    assert Path("victim/empty").read_text() == ""


def test_a_file_in_the_way_is_named():
    PLACE.write_text("mine")
    assert refused().endswith(IN_THE_WAY)
    assert PLACE.read_text() == "mine"


def test_another_users_folder_is_left_alone(monkeypatch):
    stop(part="half")
    user = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert refused().endswith(IN_THE_WAY)
    assert (PLACE / "part").exists()


def test_links_inside_are_deleted_as_links():
    stop(part="half")
    (PLACE / "folder").symlink_to(Path("victim").absolute())
    (PLACE / "below").mkdir()
    (PLACE / "below/folder").symlink_to(Path("victim").absolute())
    with open_work({"level": 2}) as folder:
        assert not (folder / "folder").is_symlink()
    assert precious() and not PLACE.exists()


def test_a_folder_swapped_for_a_link_meanwhile_is_not_followed():
    with pytest.raises(OSError, match="q was written nevertheless"), open_work() as folder:
        folder.rename("elsewhere")
        folder.symlink_to("victim")
    assert precious() and names("elsewhere") == []


@pytest.mark.parametrize("lock", [None, "", 32 * "a"])
def test_what_a_run_leaves_that_was_killed_at_once_is_taken(lock):
    PLACE.mkdir()
    if lock is not None:
        (PLACE / "lock").write_text(lock)
    with open_work() as folder:
        assert (folder / "task.json").exists()


def test_what_a_run_that_ended_well_left_behind_goes():
    forget(TARGET, "packing")
    assert not PLACE.exists()
    stop(part="half")
    forget(TARGET, "packing")
    assert not PLACE.exists()
    PLACE.mkdir()
    (PLACE / "precious").write_text("mine")
    with pytest.raises(SqueezeError, match="was not made by squeeze"):
        forget(TARGET, "packing")
    assert (PLACE / "precious").exists()


def test_two_runs_exclude_each_other():
    with open_work():
        assert refused() == "q is being written by another process"


@pytest.mark.parametrize("moment", ["before the lock", "before the handle"])
def test_a_folder_deleted_in_this_moment_is_anothers(monkeypatch, moment):
    real = module.fcntl.flock if moment == "before the handle" else os.listdir

    def delete(*args):
        done = real(*args)
        for path in PLACE.glob("*"):
            path.unlink()
        PLACE.rmdir()
        return done

    monkeypatch.setattr(*((module.fcntl, "flock") if moment == "before the handle" else (os, "listdir")), delete)
    assert refused() == "q is being written by another process"


def test_only_this_user_may_look_in():
    with open_work() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        lock = (folder / "lock").read_text()
        assert len(lock) == 32 and (folder / lock).exists()
        assert json.loads((folder / "task.json").read_text()) == {"level": 1}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_scratch_folder_always_goes(error):
    try:
        with scratch_folder(TARGET) as folder:
            (folder / "part").touch()
            if error:
                raise error
    except KeyboardInterrupt:
        pass
    assert names() == ["victim"]
