"""Files are cut into calls that take about as long, and wait in few bytes."""

import pickle
import random
from pathlib import Path

import pytest

from squeeze.cluster.operations import COMPRESS, HASH, File, Task
from squeeze.cluster.planning import CompressedFiles, Planner
from squeeze.system.storage import path_of

OPTIONS = {"level": 1, "verify": True, "block_size": 4096, "threads": 1}


def test_every_plan_covers_its_files(tmp_path):
    chance = random.Random(1)
    sizes = [chance.choice([0, 1, 5, 3000, 70000]) for _ in range(60)]
    files = [File(tmp_path / f"{n}", size, "", None) for n, size in enumerate(sizes)]
    groups = list(Planner(Task(COMPRESS, OPTIONS, ""), 0.05).calls(iter(files)))
    planned: dict[Path, int] = {}
    for group in groups:
        for one in group.items:
            name = one.source if isinstance(one, File) else one.file.source
            if isinstance(one, File) or one.begin != HASH:
                planned[name] = planned.get(name, 0) + (one.size if isinstance(one, File) else one.length)
    assert planned == {file.source: file.size for file in files}
    assert any(not isinstance(group.items[0], File) for group in groups)


@pytest.mark.parametrize("workers", [2, 7])
def test_the_last_calls_are_so_short_that_all_workers_end_together(tmp_path, workers):
    chance = random.Random(2)
    sizes = [int(chance.lognormvariate(8, 1.5)) for _ in range(400 * workers)]
    last = [200_000, 4_000_000]  # which is one block
    files = [File(tmp_path / f"{n}", size, "", None) for n, size in enumerate([*sizes, *last])]
    planner, busy, calls = Planner(Task(COMPRESS, OPTIONS | {"block_size": None}, ""), 5.0), [0.0] * workers, 0
    cost = {one.file: one.seconds for one in planner._costs(iter(files))}
    for batch in planner.calls(iter(files), lambda: float(workers)):
        busy[busy.index(min(busy))] += sum(cost[file] for file in batch.items)
        calls += 1
    assert max(busy) < 1.02 * sum(busy) / workers
    assert calls < sum(busy) / 5.0 + 20 * workers


def test_held_files_are_equal_to_the_originals():
    files = [
        File(Path("a\udcff b/c"), 3, "s", None),
        File(path_of("s3://b/k %.txt"), 4, "e", path_of("memory://z/y"), "ab", '"e"'),
        File(path_of("s3://b") / "/x::y", 4, "e", path_of("s3://b") / "q?versionId=3"),
    ]
    held = CompressedFiles(files)
    assert list(held) == files and held[1] == files[1] and len(held) == 3
    assert held[2].source.url_and_key == ("s3://b", "/x::y")


def test_held_files_take_few_bytes():
    held = CompressedFiles(
        [File(Path(f"/corpus/{number:07}.json"), 2_000, f"2000-{number}", None) for number in range(1_000)]
    )
    assert len(pickle.dumps(held)) < 40_000
