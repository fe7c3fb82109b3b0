import errno
import os
import time

import pytest

from squeeze.system import syncing
from squeeze.system.syncing import synced


@pytest.fixture
def syncs(monkeypatch):
    """The names of the calls that sync, in order; meanwhile it is done all the time."""
    called = []
    monkeypatch.setattr(syncing, "_EVERY", 0.001)
    monkeypatch.setattr(syncing, "_sync", lambda handle: called.append("meanwhile"))
    monkeypatch.setattr(os, "fsync", lambda handle: called.append("end"))
    return called


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def test_it_syncs_meanwhile_and_at_the_end(tmp_path, syncs):
    with (tmp_path / "file").open("wb") as file:
        with synced(file):
            file.write(b"words")
            wait_for(lambda: "meanwhile" in syncs)
            assert "end" not in syncs
        assert (tmp_path / "file").read_bytes() == b"words"
        assert syncs[-1] == "end" and syncs.count("end") == 1


def test_what_failed_is_not_synced(tmp_path, syncs):
    with (tmp_path / "file").open("wb") as file, pytest.raises(KeyError), synced(file):
        raise KeyError
    assert "end" not in syncs


def test_a_disk_that_fails_meanwhile(tmp_path, syncs, monkeypatch):
    """The error is told but once by the system, and a sync at the end would say nothing of it."""
    failed = []

    def fail(handle):
        failed.append(handle)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(syncing, "_sync", fail)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match=os.strerror(errno.EIO)), synced(file):
        wait_for(lambda: failed)
    assert len(failed) == 1 and not syncs
