"""Pages of a mapped file that are let go of: they are no longer in memory, and come back as they were."""

import mmap
import sys

import numpy as np
import pytest

from squeeze.system.mapped import MappedFiles
from squeeze.system.memory import resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of mappings")
SIZE = 1 << 25


@pytest.fixture
def mapped(tmp_path):
    """A file, and its bytes mapped, all of which were read."""
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    array = np.memmap(path, np.uint8, mode="c")
    array.sum()
    return path, array


def test_what_is_released_is_no_longer_in_memory_and_comes_back(mapped):
    path, array = mapped
    before = resident()
    MappedFiles().release(array.ctypes.data + 1, SIZE - 2)
    assert before - resident() > SIZE * 3 // 4
    assert array.tobytes() == path.read_bytes()


def test_what_was_written_to_stays(mapped):
    _, array = mapped
    array[5 * mmap.PAGESIZE] ^= 1
    changed = array.tobytes()
    MappedFiles().release(array.ctypes.data, SIZE)
    assert array.tobytes() == changed


def test_other_memory_stays():
    array = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
    copy = array.tobytes()
    MappedFiles().release(array.ctypes.data, SIZE)
    MappedFiles().release(0, SIZE)
    assert array.tobytes() == copy
