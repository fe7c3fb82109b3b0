"""Files that somebody writes to while they are read."""

import os

import pytest

from squeeze.system.unchanged import UnchangedFile


def test_ranges_of_a_file_are_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    file = UnchangedFile(path)
    assert file.size == 100
    assert file.read(10, 5).tolist() == [10, 11, 12, 13, 14]
    assert file.read(100, 0).tolist() == []


@pytest.mark.parametrize("change", ["shorter", "longer", "other bytes", "another file"])
def test_a_changed_file_is_an_error(tmp_path, change):
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    file = UnchangedFile(path)
    if change == "another file":
        (tmp_path / "other").write_bytes(bytes(100))
        (tmp_path / "other").replace(path)
    else:
        path.write_bytes(bytes({"shorter": 20, "longer": 200, "other bytes": 100}[change]))
        os.utime(path, ns=(0, 0))
    with pytest.raises(ValueError, match="the file was changed while it was read"):
        file.read(10, 20)
