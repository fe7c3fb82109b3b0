"""Files that wait: few bytes, and what comes back."""

import pickle
from pathlib import Path

from squeeze.cluster.files import File
from squeeze.cluster.held import Held
from squeeze.system.storage import path_of


def test_files_come_back():
    files = [
        File(Path("a\udcff b/c"), 3, "s", None),
        File(path_of("s3://b/k %.txt"), 4, "e", path_of("memory://z/y"), "ab", '"e"'),
        File(path_of("s3://b") / "/x::y", 4, "e", path_of("s3://b") / "q?versionId=3"),
    ]
    held = Held(files)
    assert list(held) == files and held[1] == files[1] and len(held) == 3
    assert held[2].source.named == ("s3://b", "/x::y")


def test_they_take_few_bytes():
    held = Held([File(Path(f"/corpus/{number:07}.json"), 2_000, f"2000-{number}", None) for number in range(1_000)])
    assert len(pickle.dumps(held)) < 40_000
