"""Commands by the workers of a cluster: what they write, say, leave, and go on with."""

import json
from pathlib import Path

import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.manifest import Manifest
from squeeze.errors import ClusterError
from tests.makers import tiny_models
from tests.makers.command import call, fails, names, run, usage_error
from tests.makers.inline import Inline, shorten_calls

pytestmark = pytest.mark.usefixtures("in_folder")
MANIFEST = ".squeeze-compress.jsonl"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Inline:
    made = Inline()
    monkeypatch.setattr(engines, "connect", lambda address: made)
    return made


@pytest.fixture
def tree() -> Path:
    for name in ("a.txt", "b/c.txt", "b/d/e.txt"):
        path = Path("tree", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 30)
    return Path("tree")


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_tree_is_compressed_and_restored_by_workers(engine, tree):
    result = call("compress", "-1", "-r", "--cluster", "local", "--json", "--rm", tree)
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["output"] for line in lines] == ["tree/a.txt.sqz", "tree/b/c.txt.sqz", "tree/b/d/e.txt.sqz"]
    assert engine.closed
    assert files(tree) == [MANIFEST, "a.txt.sqz", "b/c.txt.sqz", "b/d/e.txt.sqz"]
    run("test", "-r", "-q", "--cluster", "local", tree)
    run("test", "-r", "-q", "--manifest", tree / MANIFEST, tree)
    run("decompress", "-r", "-q", "--cluster", "local", "--rm", tree)
    assert files(tree) == [MANIFEST, ".squeeze-decompress.jsonl", "a.txt", "b/c.txt", "b/d/e.txt"]
    assert (tree / "b/c.txt").read_bytes() == b"b/c.txt" * 30


def test_a_named_file_that_is_compressed_is_passed_over(engine, tree):
    packed = Path("tree/a.txt.sqz")
    run("compress", "-1", "-q", "tree/a.txt")
    result = call("compress", "-1", "--cluster", "local", packed, "tree/b/c.txt")
    assert result.exit_code == 2
    assert f"Warning: {packed}: already ends in .sqz; skipped (use -f to compress it)\n" in result.stderr
    assert "b/c.txt.sqz" in files(tree) and not Path(f"{packed}.sqz").exists()


def test_the_same_command_goes_on(engine, tree):
    engine.breaks = lambda call: (_ for _ in ()).throw(KeyboardInterrupt)
    result = call("compress", "-1", "-r", "--cluster", "local", tree)
    assert result.exit_code == 1 and "the same command continues" in result.stderr
    engine.breaks = lambda call: None
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    (tree / "b/c.txt").write_bytes(b"another")
    (tree / "new").write_bytes(b"new")
    said = call("compress", "-1", "-r", "-f", "--cluster", "local", tree).stderr
    assert said.startswith("2 files, 10 bytes raw") and said.endswith("2 files were done before.\n")
    assert squeeze.decompress((tree / "b/c.txt.sqz").read_bytes()) == b"another"
    assert "other options" in fails("compress", "-2", "-r", "--cluster", "local", tree)


def test_what_killed_workers_leave_goes(engine, tree):
    session = []

    def breaks(call):
        mark = call.arguments[-1].value.mark
        session.append(mark)
        if len(session) == 1:
            (tree / f".a.txt.sqz.abcdefgh{mark}.tmp").write_bytes(b"half")
            (tree / f".a.txt.sqz.abcdefgh{mark}.other").write_bytes(b"not ours")
            raise RuntimeError("killed")

    engine.breaks = breaks
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    left = [name for name in files(tree) if name.startswith(".") and name != MANIFEST]
    assert left == [f".a.txt.sqz.abcdefgh{session[0]}.other"]
    Path(tree, left[0]).unlink()
    (tree / f".a.txt.sqz.abcdefgh{session[0]}.tmp").write_bytes(b"half, and the driver was killed then")
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    assert [name for name in files(tree) if name.startswith(".")] == [MANIFEST]


def test_a_manifest_proves_that_all_is_there(engine, tree):
    run("compress", "-1", "-r", "-q", "--cluster", "local", "--manifest", "done.jsonl", tree)
    run("test", "-q", "--manifest", "done.jsonl")
    (tree / "a.txt.sqz").unlink()
    other = squeeze.compress(b"x" * 210, 1)
    size = (tree / "b/c.txt.sqz").stat().st_size
    said = fails("test", "-q", "--manifest", "done.jsonl", "--cluster", "local")
    assert said == "Error: tree/a.txt: its output tree/a.txt.sqz is missing\n"
    (tree / "b/c.txt.sqz").write_bytes(other)
    record = json.loads(Path("done.jsonl").read_text().splitlines()[2])
    Path("done.jsonl").write_text(
        Path("done.jsonl").read_text().replace(f'"output_size":{size},', f'"output_size":{len(other)},')
    )
    assert record["source"] == "tree/b/c.txt"
    said = fails("test", "-q", "--manifest", "done.jsonl")
    assert "tree/b/c.txt.sqz: its checksum differs from the manifest's" in said
    lines = Path("done.jsonl").read_text().splitlines(keepends=True)
    Path("done.jsonl").write_text("".join(lines[:-1]))
    assert "its run has unfinished files" in fails("test", "-q", "--manifest", "done.jsonl")


def test_another_set_of_files_completes_no_run_that_was_stopped(engine, tree, monkeypatch):
    shorten_calls(monkeypatch, 0.0001)  # to one file

    def stops(call):
        if engine.calls > 1:
            raise KeyboardInterrupt

    engine.breaks, engine.room = stops, 1
    assert call("compress", "-1", "-r", "--cluster", "local", tree).exit_code == 1
    engine.breaks = lambda call: None
    done = [json.loads(line) for line in (tree / MANIFEST).read_text().splitlines()]
    assert done[0]["sources"] == ["tree"] and len(done) == 2
    said = call("compress", "-1", "--cluster", "local", "-f", tree / "b/c.txt", tree / "a.txt").stderr
    assert said.splitlines()[0].startswith("2 files") and "noted in" not in said  # in another folder
    said = call("compress", "-1", "--cluster", "local", "-f", tree / "a.txt", tree / "b/c.txt").stderr
    own = said.splitlines()[1].partition(" in ")[2].partition(", ")[0]
    assert Path(own).parent == tree and Path(own).name.startswith(".squeeze-compress-")
    run("test", "-q", "--manifest", own)
    assert "its run has unfinished files" in fails("test", "-q", "--manifest", tree / MANIFEST)
    said = fails("compress", "-1", "-f", "--cluster", "local", "--manifest", own, tree / "a.txt")
    assert said == f"Error: {own}: is of a run over other files: delete it, or name another with --manifest\n"
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    run("test", "-q", "--manifest", tree / MANIFEST)
    assert not [name for name in files(tree) if name.endswith(".jsonl.sqz")]


def test_a_manifest_that_lacks_lines_is_no_proof(engine, tree):
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    lines = (tree / MANIFEST).read_text().splitlines(keepends=True)
    assert json.loads(lines[-1]) == {"complete": True, "files": 3}
    (tree / MANIFEST).write_text("".join(line for line in lines if '"tree/a.txt"' not in line))
    said = fails("test", "-q", "--manifest", tree / MANIFEST)
    assert said == f"Error: {tree / MANIFEST}: it lists 2 files, and the run ended with 3: lines are missing\n"


def test_a_manifest_that_names_no_sources_still_counts(engine, tree):
    """Return the records of a manifest as an earlier run wrote them."""
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    text = (tree / MANIFEST).read_text()
    (tree / MANIFEST).write_text(text.replace(',"sources":["tree"]', ""))
    run("test", "-q", "--manifest", tree / MANIFEST)
    said = call("compress", "-1", "-r", "--cluster", "local", tree).stderr
    assert "3 files were done before" in said and (tree / MANIFEST).read_text().count("sources") == 1


def test_a_file_that_fails_is_named_and_the_others_follow(engine, tree):
    run("compress", "-1", "-r", "-q", "--cluster", "local", "--rm", tree)
    coded = (tree / "a.txt.sqz").read_bytes()
    (tree / "a.txt.sqz").write_bytes(coded[:-1])
    said = fails("decompress", "-r", "-q", "--cluster", "local", tree)
    assert said == "Error: tree/a.txt.sqz: the file ends too early: it was cut off, and its end is missing\n"
    assert "b/c.txt" in files(tree) and "a.txt" not in files(tree)
    said = fails("compress", "-1", "-r", "-q", "--cluster", "local", "--manifest", "other", tree)
    assert "tree/b/c.txt.sqz already exists; use -f to overwrite" in said


def test_options_that_a_cluster_does_not_take_are_usage_errors(tree):
    assert usage_error("compress", "-r", "--cluster", "local", "-c", tree) == (
        "Error: --cluster takes files and folders, and neither -c nor -o"
    )
    assert "--cluster takes files and folders" in usage_error("compress", "--cluster", "local")
    assert "--manifest belongs to --cluster" in usage_error("compress", "-r", "--manifest", "m", tree)
    assert "leave out --range" in usage_error("decompress", "--cluster", "local", "--range", "1:2", tree)
    assert "leave out --cluster" in usage_error("compress", "-8", "--backend", "llamacpp", "--cluster", "local", tree)
    assert fails("compress", "-r", "--cluster", "somewhere", tree) == (
        "Error: expected auto, local or ray://HOST:PORT, got 'somewhere'\n"
    )
    assert names() == ["tree"]
    Path("other").write_text("{}\n")
    assert "is not a manifest" in fails("test", "--manifest", "other")


def test_a_page_shows_the_run_at_its_end(engine, tree):
    (tree / "broken.txt").write_bytes(b"x")
    engine.breaks = lambda call: (tree / "broken.txt").unlink(missing_ok=True)
    said = fails("compress", "-1", "-r", "-q", "--cluster", "local", "--report", "page.html", tree)
    page = Path("page.html").read_text()
    assert said == "Error: tree/broken.txt: No such file or directory\n"
    assert "broken.txt: No such file" in page and "calls whose worker was lost" in page and "4 files: " in page
    assert "give --cluster" in usage_error("compress", "-r", "--report", "other.html", tree)


def test_what_an_earlier_run_wrote_and_did_not_note_is_taken(engine, tree):
    expected = squeeze.compress((tree / "a.txt").read_bytes(), 1)

    def stops(call):
        (tree / "a.txt.sqz").write_bytes(expected)  # as a worker may, before the driver hears of it
        (tree / "b/c.txt.sqz").write_bytes(b"somebody else's")
        raise KeyboardInterrupt

    engine.breaks = stops
    assert call("compress", "-1", "-r", "--cluster", "local", tree).exit_code == 1
    engine.breaks = lambda call: None
    said = fails("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    assert said == "Error: tree/b/c.txt: tree/b/c.txt.sqz already exists; use -f to overwrite\n"
    assert (tree / "b/c.txt.sqz").read_bytes() == b"somebody else's"
    (tree / "b/c.txt.sqz").unlink()
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    run("test", "-r", "-q", "--manifest", tree / MANIFEST, tree)


def test_a_source_that_changes_after_it_was_read_is_kept(engine, tree, monkeypatch):
    note = Manifest.note

    def changes(self, record):
        note(self, record)
        if record.source == "tree/a.txt":
            (tree / "a.txt").write_bytes(b"written later")

    monkeypatch.setattr(Manifest, "note", changes)
    said = fails("compress", "-1", "-r", "-q", "--cluster", "local", "--rm", tree)
    assert "tree/a.txt: it changed while it was read" in said
    assert files(tree) == [MANIFEST, "a.txt", "a.txt.sqz", "b/c.txt.sqz", "b/d/e.txt.sqz"]
    assert (tree / "a.txt").read_bytes() == b"written later"


def test_what_was_done_before_is_deleted_too(engine, tree):
    run("compress", "-1", "-r", "-q", "--cluster", "local", tree)
    said = call("compress", "-1", "-r", "--cluster", "local", "--rm", tree).stderr
    assert "3 files were done before" in said
    assert files(tree) == [MANIFEST, "a.txt.sqz", "b/c.txt.sqz", "b/d/e.txt.sqz"]


def test_a_stop_leaves_nothing_half_done(engine, tree):
    def stops(call):
        (tree / f".a.txt.sqz.abcdefgh{call.arguments[-1].value.mark}.tmp").write_bytes(b"half")
        raise KeyboardInterrupt

    engine.breaks = stops
    assert call("compress", "-1", "-r", "--cluster", "local", tree).exit_code == 1
    assert files(tree) == [MANIFEST, "a.txt", "b/c.txt", "b/d/e.txt"]


def test_lines_of_progress_tell_files_failures_workers_and_the_time_left(engine, tree, monkeypatch):
    for name in ("_FIRST", "_EVERY"):
        monkeypatch.setattr(f"squeeze.commands.progress.{name}", 0.0)
    engine.breaks = lambda call: (tree / "a.txt").unlink(missing_ok=True)
    result = call("compress", "-1", "-r", "--json", "--cluster", "local", tree)
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    assert [line["done"] for line in lines] == [150, 360]
    told = [(line["files"], line["failed"], line["workers"], line["total"]) for line in lines]
    assert told == [(1, 1, 1, 630), (2, 1, 1, 630)]
    assert all(line["unit"] == "B" and line["rate"] > 0 and line["eta_seconds"] >= 0 for line in lines)


def test_a_run_that_does_not_begin_leaves_no_manifest(engine, tree):
    assert (
        fails("compress", "-1", "-r", "-q", "--cluster", "local", "none") == "Error: none: No such file or directory\n"
    )
    (tree / "a.txt.sqz").write_bytes(b"somebody else's")
    assert "already exists" in fails("compress", "-1", "--cluster", "local", tree / "a.txt")
    Path("empty").mkdir()
    call("compress", "-1", "-r", "-q", "--cluster", "local", "empty")
    assert names() == ["empty", "tree"] and files(Path()) == [
        "tree/a.txt",
        "tree/a.txt.sqz",
        "tree/b/c.txt",
        "tree/b/d/e.txt",
    ]


def test_what_the_cluster_lacks_is_said(engine, tree):
    def lacks(call):
        engine.warn(f"no node of the cluster has {call.needs}")
        raise ClusterError("none came")

    engine.breaks = lacks
    result = call("compress", "-1", "-r", "-q", "--cluster", "local", "--cluster-wait", "7", tree)
    lacking = "no node of the cluster has 1 processor and 0.4 GB of memory"
    assert (result.exit_code, result.stderr) == (1, f"Warning: {lacking}\nError: none came\n")
    assert engine.patience == 7 and files(tree) == ["a.txt", "b/c.txt", "b/d/e.txt"]
    assert "--cluster-wait" in usage_error("compress", "-r", "--cluster", "local", "--cluster-wait", "-1", tree)


@pytest.mark.parametrize("operation", ["decompress", "test"])
def test_what_restoring_takes_is_asked_for_by_level(engine, operation):
    for level, name in ((1, "a.txt"), (3, "b.txt")):
        Path(name).write_bytes(b"some words " * 40)
        run("compress", "-q", f"-{level}", "--rm", name)
    Path("broken.sqz").write_bytes(b"nothing of ours")
    asked = {}

    def notes(call):
        asked[next(iter(call.arguments[0])).source.name] = call.needs

    engine.breaks = notes
    for name in ("a.txt.sqz", "b.txt.sqz", "broken.sqz"):
        call(operation, "-q", "--cluster", "local", "-T", "2", name)
    assert {needs.cpus for needs in asked.values()} == {2}
    assert {name: needs.memory >> 20 for name, needs in asked.items()} == {
        "broken.sqz": 256,
        "a.txt.sqz": 512,
        "b.txt.sqz": 1536,
    }


def test_what_a_language_model_takes_is_asked_for_with_a_gpu(engine):
    """Only workers need it: the machine that runs the command may have none."""
    tokenizer = tiny_models.byte_level()
    tiny_models.write_folder(Path("tiny"), tokenizer, vocab_size=tokenizer.get_vocab_size())
    Path("a.txt").write_bytes(b"some words " * 40)
    run("compress", "-q", "-7", "--model", "tiny", "a.txt")
    asked = {}

    def notes(call):
        asked[call.name] = call.needs
        raise KeyboardInterrupt

    engine.breaks = notes
    for operation, file in (("compress", "tiny/tokenizer.json"), ("decompress", "a.txt.sqz")):
        level = ["-7"] * (operation == "compress")
        call(operation, *level, "--model", "tiny", "--device", "cuda", "--cluster", "local", "-f", file)
    assert list(asked) == ["compress tokenizer.json", "decompress a.txt.sqz"]
    assert all(needs.gpus == 1 and needs.memory > 1 << 30 for needs in asked.values())
