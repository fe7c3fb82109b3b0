"""`squeeze test`: whole files pass in silence, others are named."""

from pathlib import Path

import pytest

from tests.makers.command import fails, names, run

pytestmark = pytest.mark.usefixtures("in_folder")


def test_damage_is_named_and_nothing_is_written(packed: Path):
    run("test", packed)
    assert names() == ["note.txt", "note.txt.sqz"]
    packed.write_bytes(packed.read_bytes()[:-20])
    assert fails("test", packed, "note.txt") == (
        "Error: note.txt.sqz: the file ends too early: it was cut off, and its end is missing\n"
        "Error: note.txt: not a .sqz file: it does not begin with the .sqz mark\n"
    )
