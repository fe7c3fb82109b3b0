"""Memory of the machine: what a container leaves, and pages of mapped files that are released."""

import mmap
import sys

import numpy as np
import pytest

from squeeze.system import machine
from squeeze.system.machine import MappedFiles, resident_memory

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of mappings")
SIZE = 1 << 25


def test_a_container_bounds_what_is_free(tmp_path, monkeypatch):
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(machine, "_CGROUPS", ((limit, used),))
    whole = machine.free_memory()
    limit.write_text("max\n")
    used.write_text("5\n")
    assert machine.free_memory() > whole // 2
    limit.write_text("1005\n")
    assert machine.free_memory() == 1000


@pytest.fixture
def mapped(tmp_path):
    """Return a file and its mapped bytes, all of which were read."""
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    array = np.memmap(path, np.uint8, mode="c")
    array.sum()
    return path, array


@on_linux
def test_what_is_released_is_no_longer_in_memory_and_comes_back(mapped):
    path, array = mapped
    before = resident_memory()
    MappedFiles().release(array.ctypes.data + 1, SIZE - 2)
    assert before - resident_memory() > SIZE * 3 // 4
    assert array.tobytes() == path.read_bytes()


@on_linux
def test_what_was_written_to_stays(mapped):
    _, array = mapped
    array[5 * mmap.PAGESIZE] ^= 1
    changed = array.tobytes()
    MappedFiles().release(array.ctypes.data, SIZE)
    assert array.tobytes() == changed


@on_linux
def test_other_memory_stays():
    array = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    copy = array.tobytes()
    MappedFiles().release(array.ctypes.data, SIZE)
    MappedFiles().release(0, SIZE)
    assert array.tobytes() == copy
