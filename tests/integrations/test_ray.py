"""Ray Data on .sqz files: every row once, whatever the parts, and a folder of what a dataset holds."""

import base64
import itertools
import json
import os
import tarfile
from datetime import datetime

import pytest

import squeeze
from squeeze.cluster.engine import SETTINGS
from squeeze.errors import FormatError, OptionError, SqueezeError
from tests.makers.cases import all_slow_but
from tests.makers.inputs import random_bytes

os.environ.update(SETTINGS)  # which Ray reads when it is imported
pytest.importorskip("pyarrow", reason="pip install 'squeeze-neural[cluster]'")
pytest.importorskip("pandas", reason="pip install 'squeeze-neural[cluster]'")
ray = pytest.importorskip("ray", reason="pip install 'squeeze-neural[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
LINES = [f"{number} {base64.b64encode(random_bytes(number % 37, number)).decode()}" for number in range(2000)]
BLOCK = 2048


@pytest.fixture(scope="module")
def cluster():
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def sqz():
    from squeeze.integrations import ray as integration

    return integration


def packed(path, text):
    path.write_bytes(squeeze.compress(text.encode(), 1, block_size=BLOCK, verify=False))
    return path


def rows_of(sqz, path, rows, size):
    """Return the rows of all parts of a file, without a cluster."""
    source = sqz.SqzDatasource(path, rows, {})
    tasks = source.get_read_tasks(source.estimate_inmemory_data_size() // size)
    return [row for task in tasks for table in task() for row in table.to_pylist()], len(tasks)


@pytest.mark.parametrize(
    ("size", "end"),
    all_slow_but(
        [(1, ""), (5000, "\n"), (20_000, ""), (1 << 20, "\n")],
        itertools.product([1, 5000, 20_000, 1 << 20], ["", "\n"]),
    ),
)
def test_every_line_is_read_once(sqz, tmp_path, size, end):
    path = packed(tmp_path / "a.txt.sqz", "\n".join(LINES) + end)
    found, parts = rows_of(sqz, path, "lines", size)
    assert [row["text"] for row in found] == LINES
    assert (parts > 5) == (size < 10_000)


def test_lines_that_end_where_parts_do(sqz, tmp_path, monkeypatch):
    monkeypatch.setattr(sqz, "_LEAST", 1)
    monkeypatch.setattr(sqz, "_TABLE", 100)
    lines = [f"{number:063d}" for number in range(500)]  # 32 of them fill a block
    found, parts = rows_of(sqz, packed(tmp_path / "a.txt.sqz", "\n".join(lines)), "lines", 1)
    assert [row["text"] for row in found] == lines and parts == 16
    long = ["x" * 10_000, "", "y" * 5000, "z"]  # over several parts
    found, _ = rows_of(sqz, packed(tmp_path / "b.txt.sqz", "\n".join(long)), "lines", 1)
    assert [row["text"] for row in found] == long


def shards(folder):
    from squeeze.codecs.shards.plan import Template
    from squeeze.codecs.shards.write import list_sources
    from tests.makers.shards import write_shards

    (folder / "tree").mkdir()
    for number in range(60):
        (folder / "tree" / f"{number:02d}.json").write_text(f'{{"n": {number}}}')
        (folder / "tree" / f"{number:02d}.bin").write_bytes(random_bytes(300, number))
    (folder / "tree" / "README").write_text("no ending")
    (folder / "out").mkdir()
    sources = list_sources(sorted((folder / "tree").iterdir()), folder / "tree", print)
    options = {"level": 1, "block_size": 4096}
    made = list(write_shards(sources, Template(folder / "out/part-{}.tar.sqz"), 40960, failed=print, **options))
    assert len(made) > 1
    return folder / "out"


def test_every_sample_is_read_once(sqz, tmp_path):
    out = shards(tmp_path)
    found, parts = rows_of(sqz, out, "samples", 1)
    assert parts > len(list(out.glob("*.tar.sqz")))
    assert [row["__key__"] for row in found] == [f"{number:02d}" for number in range(60)] + ["README"]
    assert found[7]["json"] == b'{"n": 7}' and found[7]["bin"] == random_bytes(300, 7)
    assert found[-1]["bin"] == b"no ending"


def test_a_dataset_there_and_back(sqz, tmp_path, cluster):
    rows = [{"id": number, "text": line, "none": None} for number, line in enumerate(LINES)]
    dataset = ray.data.from_items(rows, override_num_blocks=3)
    sqz.write_sqz(dataset, tmp_path / "out", level=1, block_size=BLOCK)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names[0] == "part-000000.jsonl.sqz" and all(name.endswith(".jsonl.sqz") for name in names)
    back = sqz.read_sqz(tmp_path / "out", rows="json", parts=20)
    assert sorted(back.take_all(), key=lambda row: row["id"]) == rows
    assert back.count() == len(rows)
    with pytest.raises(SqueezeError, match="out: is not empty"):
        sqz.write_sqz(dataset, tmp_path / "out")


@pytest.mark.slow
def test_samples_and_lines_there_and_back(sqz, tmp_path, cluster):
    dataset = sqz.read_sqz(str(shards(tmp_path)), rows="samples")
    sqz.write_sqz(dataset, tmp_path / "again", rows="samples", level=1)
    back = sqz.read_sqz(tmp_path / "again", rows="samples")
    order = lambda row: row["__key__"]  # noqa: E731
    assert sorted(back.take_all(), key=order) == sorted(dataset.take_all(), key=order)
    paths = sorted((tmp_path / "again").glob("*.tar.sqz"))
    with squeeze.open(paths[0]) as content, tarfile.open(fileobj=content, mode="r|") as tar:
        assert set(tar.getnames()) <= {f"{n:02d}.{kind}" for n in range(60) for kind in ("json", "bin")} | {
            "README.bin"
        }
    sqz.write_sqz(ray.data.from_items([{"text": line} for line in LINES]), tmp_path / "lines", rows="lines", level=1)
    assert sorted(row["text"] for row in sqz.read_sqz(tmp_path / "lines").take_all()) == sorted(LINES)


def test_refuses_other_files_and_unknown_kinds_of_rows(sqz, tmp_path):
    path = tmp_path / "a.txt.sqz"
    path.write_bytes(b"hello")
    with pytest.raises(FormatError, match=r"a\.txt\.sqz: not a \.sqz file"):
        sqz.SqzDatasource(path, "lines", {})
    for action in (lambda: sqz.SqzDatasource(path, "pictures", {}), lambda: sqz.SqzDatasink(tmp_path, "x", {})):
        with pytest.raises(OptionError, match="expected rows of lines, json, samples, got '"):
            action()
    with pytest.raises(SqueezeError, match=r"holds no files that end in \.jsonl\.sqz"):
        sqz.SqzDatasource(tmp_path, "json", {})
    packed(path, "no\nobjects")
    for rows, said in (("json", "Expecting value"), ("samples", "there is no index of members")):
        with pytest.raises(SqueezeError, match=rf"a\.txt\.sqz: .*{said}"):
            rows_of(sqz, path, rows, 1)
    path.write_bytes(squeeze.compress(b"\xff\n", 1))
    with pytest.raises(SqueezeError, match=r"a\.txt\.sqz: 'utf-8' codec"):
        rows_of(sqz, path, "lines", 1)


def test_json_is_read_as_it_stands(sqz, tmp_path):
    rows = [{"text": "x" * (5 << 18), "when": "2026-01-02T03:04:05"}, {"text": "short", "when": "never"}]
    path = packed(tmp_path / "a.jsonl.sqz", "".join(json.dumps(row) + "\n" for row in rows))
    found, _ = rows_of(sqz, path, "json", 1 << 30)
    assert found == rows
    for line in ("{no", "3", '["a"]', f'{{"n": {1 << 70}}}', "[" * 100_000):
        path = packed(tmp_path / "b.jsonl.sqz", f"{{}}\n{line}\n")
        with pytest.raises(SqueezeError, match=r"b\.jsonl\.sqz"):
            rows_of(sqz, path, "json", 1 << 30)


def test_rows_that_have_no_form_are_refused(sqz):
    assert sqz._json_line({"when": datetime(2026, 1, 2, 3, 4, 5)}) == b'{"when": "2026-01-02T03:04:05"}\n'
    with pytest.raises(SqueezeError, match="type bytes, which JSON cannot hold"):
        sqz._json_line({"data": b"x"})
    with pytest.raises(SqueezeError, match="line feed"):
        sqz._text_line({"text": "two\nrows"})
