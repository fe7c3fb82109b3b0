"""The folder of caches: where it lies, files that appear at once, and room for them."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from squeeze.system import cache


def test_the_environment_names_the_cache_folder(monkeypatch):
    monkeypatch.delenv("SQUEEZE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.root() == Path("/caches/squeeze")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert cache.root() == Path("/home/ada/.cache/squeeze")
    monkeypatch.setenv("SQUEEZE_CACHE", "/mine")
    assert cache.root() == Path("/mine")


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "file"
    cache.replace(path, [np.arange(3, dtype=np.uint8), np.zeros(2, np.uint8)])
    assert path.read_bytes() == b"\0\1\2\0\0"

    def failing():
        yield np.ones(4, np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        cache.replace(path, failing())
    assert path.read_bytes() == b"\0\1\2\0\0"
    assert list(path.parent.iterdir()) == [path]


def test_room_is_made_by_what_was_used_longest_ago(tmp_path):
    for age, name in enumerate(("new", "old", ".older.1.part")):  # the last is what a killed process left
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1_000 - age, 1_000 - age))
    assert cache.make_room(tmp_path, 50, 350)
    assert len(list(tmp_path.iterdir())) == 3
    assert cache.make_room(tmp_path, 150, 350)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old"]
    assert not cache.make_room(tmp_path, 400, 350)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_is_not_filled(tmp_path, monkeypatch):
    for free in (199, 200):
        monkeypatch.setattr("shutil.disk_usage", lambda folder, free=free: SimpleNamespace(free=free))
        assert cache.make_room(tmp_path, 100, 1_000) == (free == 200)


def test_folders_are_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        cache.replace(tmp_path / "new" / "deep" / "file", [np.arange(3, dtype=np.uint8)])
    finally:
        os.umask(before)
    assert [place.stat().st_mode & 0o777 for place in (tmp_path / "new", tmp_path / "new" / "deep")] == [0o700] * 2


def test_what_others_may_write_is_named(tmp_path):
    above = tmp_path / "above"
    folder = above / "folder"
    folder.mkdir(parents=True)
    assert cache.open_to_others(folder) is None
    for mode, named in ((0o777, above), (0o757, above), (0o1777, None), (0o755, None)):
        above.chmod(mode)
        assert cache.open_to_others(folder) == named
    for mode in (0o777, 0o1777):  # who may put a file there needs to rename none
        folder.chmod(mode)
        assert cache.open_to_others(folder) == folder
    folder.chmod(0o755)
    (tmp_path / "link").symlink_to(folder)
    assert cache.open_to_others(tmp_path / "link") is None
    above.chmod(0o777)
    assert cache.open_to_others(tmp_path / "link") == above


def test_a_group_of_one_has_no_others(tmp_path, monkeypatch):
    user, group = SimpleNamespace(pw_gid=tmp_path.stat().st_gid, pw_name="ada"), SimpleNamespace(gr_name="ada")
    monkeypatch.setattr("pwd.getpwuid", lambda number: user)
    monkeypatch.setattr("grp.getgrgid", lambda number: group)
    tmp_path.chmod(0o775)
    for members, named in (([], None), (["ada"], None), (["ada", "bob"], tmp_path)):
        group.gr_mem = members
        assert cache.open_to_others(tmp_path) == named
    user.pw_gid += 1
    group.gr_mem = []
    assert cache.open_to_others(tmp_path) == tmp_path
