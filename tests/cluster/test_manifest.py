"""A run's manifest: read back in little memory, and refused where it is another run's."""

import tracemalloc
from collections import Counter

import pytest

import squeeze
from squeeze.cluster.manifest import Manifest, Record, read_manifest
from squeeze.cluster.operations import COMPRESS
from squeeze.system.storage import path_of

OPTIONS = {"level": 1, "verify": True, "block_size": 4096, "threads": 1}


def test_of_each_source_the_latest_record_is_read_and_little_is_held(tmp_path):
    path, number = tmp_path / "manifest.jsonl", 5_000
    manifest = Manifest(path, COMPRESS, OPTIONS)
    for size, sources in ((1, range(number)), (2, range(0, number, 250)), (3, [5, 7]), (4, [7])):
        for one in sources:
            manifest.note(Record(f"folder/{one:05d}\udcff", size, "stamp"))
    manifest.complete(number)
    manifest.close()
    tracemalloc.start()
    try:
        told = read_manifest(path)
        sizes = Counter(record.size for record in told.records)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (told.operation, told.done, told.files) == (COMPRESS, number, number)
    assert sizes == {1: number - 22, 2: 20, 3: 1, 4: 1}
    assert peak < 100 * number


def test_a_manifest_of_another_run_is_refused(tmp_path):
    path = tmp_path / "manifest.jsonl"
    first, second = Manifest(path, COMPRESS, OPTIONS), Manifest(path, COMPRESS, OPTIONS)
    first.begin()
    for begins in (second.begin, lambda: Manifest(path, COMPRESS, OPTIONS)):
        with pytest.raises(squeeze.SqueezeError, match="another process writes to it; wait for its end"):
            begins()
    first.close()
    with pytest.raises(squeeze.SqueezeError, match="other options"):
        Manifest(path, COMPRESS, OPTIONS | {"level": 2})
    head = path.read_text().splitlines()[0]
    path.write_text("")
    with pytest.raises(squeeze.SqueezeError, match=r"is damaged \(it is empty\): delete it$"):
        read_manifest(path)
    for text in ("{}\n", "nothing\n", f"{head}\nx\n{head}\n"):
        path.write_text(text)
        with pytest.raises(squeeze.SqueezeError, match="not a manifest"):
            Manifest(path, COMPRESS, OPTIONS)


def test_a_manifest_appears_when_a_run_begins_its_work(tmp_path):
    path = tmp_path / "manifest.jsonl"
    for ends in (Manifest.close, Manifest.withdraw, lambda made: made.complete(0)):
        made = Manifest(path, COMPRESS, OPTIONS)
        ends(made)
        made.close()
        assert not path.exists()
    made = Manifest(path, COMPRESS, OPTIONS)
    made.begin()
    made.withdraw()
    made.close()
    assert not path.exists()
    made = Manifest(path, COMPRESS, OPTIONS)
    made.note(Record("a", 1, "stamp"))
    made.close()
    before = path.read_bytes()
    again = Manifest(path, COMPRESS, OPTIONS)
    again.begin()
    assert path.read_bytes() != before
    again.withdraw()
    again.close()
    assert path.read_bytes() == before
    with pytest.raises(squeeze.SqueezeError, match="none does not exist; make it first"):
        Manifest(tmp_path / "none" / "manifest.jsonl", COMPRESS, OPTIONS)
    with pytest.raises(squeeze.SqueezeError, match="is a URL"):
        Manifest(path_of("memory://a/manifest.jsonl"), COMPRESS, OPTIONS)
