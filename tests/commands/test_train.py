"""`squeeze train`: a dictionary, and every command that takes one."""

import hashlib
from pathlib import Path

import pytest

from tests.makers.command import TEXT, fails, run

pytestmark = pytest.mark.usefixtures("in_folder")


def test_train_and_use_a_prior(note: Path):
    Path("sample.txt").write_bytes(TEXT[:3000])
    run("train", "-4", "sample.txt", "-o", "notes.sqzp")
    run("compress", "--prior", "notes.sqzp", note)
    identity = hashlib.sha256(Path("notes.sqzp").read_bytes()).hexdigest()[:8]
    assert fails("decompress", "-c", "note.txt.sqz") == (
        f"Error: note.txt.sqz: the file needs the dictionary {identity}: name it with -D\n"
    )
    assert fails("compress", "-5", "-c", "--prior", "notes.sqzp", note) == (
        "Error: note.txt: the dictionary was trained for level 4: leave the level out, or train another\n"
    )
    run("test", "--prior", "notes.sqzp", "note.txt.sqz")
    assert f"prior {identity}" in run("list", "-v", "note.txt.sqz").stdout
    note.unlink()
    run("decompress", "--prior", "notes.sqzp", "note.txt.sqz")
    assert note.read_bytes() == TEXT
    assert fails("train", "-4", "sample.txt", "-o", "notes.sqzp") == (
        "Error: notes.sqzp already exists; use -f to overwrite\n"
    )
    assert fails("test", "--prior", "note.txt", "note.txt.sqz") == (
        "Error: note.txt.sqz: not a dictionary: it does not begin with the mark of .sqzp files\n"
    )
