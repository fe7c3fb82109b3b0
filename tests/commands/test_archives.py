"""Folders in one file and back, by `squeeze compress DIR -o DIR.tar.sqz` and `squeeze decompress -C OUT`."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import writer
from tests.commands.test_interrupted import full_disk, start_in
from tests.makers import inputs
from tests.makers.command import SQUEEZE, TEXT, call, fails, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.fixture
def tree() -> Path:
    Path("tree/sub/empty").mkdir(parents=True)
    for name, content in (("a.txt", TEXT), ("sub/ü", b"u"), ("sub/b.tmp", b"b")):
        Path("tree", name).write_bytes(content)
    Path("tree/link").symlink_to("a.txt")
    return Path("tree")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"/" for p in sorted(folder.rglob("*"))}


def test_a_folder_comes_back_from_one_file(tree: Path):
    run("compress", "-1", tree, "-o", "tree.tar.sqz")
    assert names() == ["tree", "tree.tar.sqz"]
    run("decompress", "tree.tar.sqz", "-C", "out")
    assert contents(Path("out/tree")) == contents(tree) and Path("out/tree/link").is_symlink()
    assert run("test", "tree.tar.sqz").stdout == "tree.tar.sqz: OK\n"


def test_members_are_listed_and_one_is_taken_out(tree: Path):
    run("compress", "-1", tree, "-o", "tree.tar.sqz")
    lines = run("list", "tree.tar.sqz").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == [
        "file", "tree.tar.sqz", "member", "tree/a.txt", "tree/sub/b.tmp", "tree/sub/ü"
    ]  # fmt: skip
    record = json.loads(run("list", "--json", "tree.tar.sqz").stdout)
    assert [member["size"] for member in record["members"]] == [len(TEXT), 1, 1] and len(record["streams"]) == 2
    assert run("decompress", "--member", "tree/a.txt", "tree.tar.sqz").stdout_bytes == TEXT
    run("decompress", "--member", "tree/sub/ü", "-o", "u", "tree.tar.sqz")
    assert Path("u").read_bytes() == b"u"


def test_several_files_and_folders_share_an_archive(tree: Path):
    Path("note").write_bytes(b"note")
    run("compress", "-1", "note", tree, "-o", "all.tar.sqz", "--exclude", "sub")
    run("decompress", "all.tar.sqz", "-C", ".", "-f")
    run("decompress", "all.tar.sqz", "-C", "out")
    assert contents(Path("out")) == {"note": b"note", "tree": b"/", "tree/a.txt": TEXT, "tree/link": TEXT}


def test_an_archive_goes_through_pipes(tree: Path):
    data = run("compress", "-1", "-c", tree).stdout_bytes
    with tarfile.open(fileobj=io.BytesIO(squeeze.decompress(data))) as tar:
        assert "tree/sub/empty" in tar.getnames()
    run("decompress", "-C", "out", "-", stdin=data)
    assert contents(Path("out/tree")) == contents(tree)


def test_one_line_tells_of_an_archive(tree: Path):
    said = call("compress", "-1", "-v", tree, "-o", "tree.tar.sqz").stderr
    coded = Path("tree.tar.sqz").stat().st_size
    assert said.startswith(f"tree.tar.sqz: 7 members, 10,240 -> {coded} bytes ({100 * coded / 10240:.1f} %), ")
    said = call("decompress", "-v", "tree.tar.sqz", "-C", "out").stderr
    assert said.startswith(f"tree.tar.sqz: 7 members in out, {coded} -> 10,240 bytes")
    record = json.loads(run("decompress", "--json", "tree.tar.sqz", "-C", "again").stdout)
    assert record.pop("seconds") >= 0
    assert record == {
        "file": "tree.tar.sqz", "output": "again", "members": 7, "raw_size": 10240, "coded_size": coded
    }  # fmt: skip


def test_files_that_are_there_need_force(tree: Path):
    run("compress", "-1", tree, "-o", "tree.tar.sqz")
    said = "Error: tree.tar.sqz already exists; use -f to overwrite\n"
    assert fails("compress", "-1", tree, "-o", "tree.tar.sqz") == said
    run("decompress", "tree.tar.sqz", "-C", "out")
    Path("out/tree/a.txt").write_bytes(b"mine")
    Path("out/tree/other").write_bytes(b"mine")
    said = "Error: tree.tar.sqz: out/tree/a.txt already exists; use -f to overwrite\n"
    assert fails("decompress", "tree.tar.sqz", "-C", "out") == said
    assert Path("out/tree/a.txt").read_bytes() == b"mine"
    run("decompress", "-f", "tree.tar.sqz", "-C", "out")
    assert Path("out/tree/a.txt").read_bytes() == TEXT and Path("out/tree/other").read_bytes() == b"mine"


def test_a_folder_without_a_name_for_the_archive_is_an_error(tree: Path):
    said = "Error: tree: is a folder: use -o NAME.tar.sqz for one archive, or -r for each file in it\n"
    assert fails("compress", "-1", tree) == said
    assert usage_error("compress", "--rm", tree, "-o", "t.tar.sqz").startswith("Error: --rm deletes files")
    assert usage_error("compress", "--cluster", "local", tree, "-o", "t.tar.sqz").startswith(
        "Error: an archive is made"
    )
    assert usage_error("decompress", "-C", "out", "-o", "x", "t.tar.sqz").startswith("Error: -C extracts to a folder")
    assert usage_error("decompress", "-C", "out", "--member", "a", "t.tar.sqz") == (
        "Error: --member and -C exclude each other"
    )


def test_what_is_not_an_archive_is_named(note: Path):
    run("compress", "-1", note)
    said = fails("decompress", "note.txt.sqz", "-C", "out")
    assert said.startswith("Error: note.txt.sqz: the content is not a whole tar: ") and said.count("\n") == 1
    assert names() == ["note.txt", "note.txt.sqz"]


def test_damage_is_named_and_nothing_is_extracted(tree: Path):
    Path("tree/noise").write_bytes(inputs.random_bytes(50_000))
    run("compress", "-1", tree, "-o", "tree.tar.sqz")
    data = bytearray(Path("tree.tar.sqz").read_bytes())
    data[len(data) // 2] ^= 1
    Path("tree.tar.sqz").write_bytes(data)
    said = fails("decompress", "tree.tar.sqz", "-C", "out")
    assert said.startswith("Error: tree.tar.sqz: ") and "damaged" in said and said.count("\n") == 1
    assert names() == ["tree", "tree.tar.sqz"]


def test_a_link_that_leads_out_is_left_out_with_exit_code_2(tree: Path):
    Path("tree/out").symlink_to("/etc")
    done = call("compress", "-1", tree, "-o", "tree.tar.sqz")
    said = "Warning: tree/out: is a link that leads out of the archive, to /etc; left out\n"
    assert (done.exit_code, done.stderr) == (2, said)
    run("decompress", "tree.tar.sqz", "-C", "out")
    assert not os.path.lexists("out/tree/out")


def test_a_hostile_archive_is_one_line(tree: Path):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../up\n"))
    Path("bad.tar.sqz").write_bytes(squeeze.compress(tar.getvalue(), 1))
    assert fails("decompress", "bad.tar.sqz", "-C", "out") == (
        "Error: bad.tar.sqz: the member ../up\\n leads out of the folder: refused, and nothing was extracted\n"
    )
    assert names() == ["bad.tar.sqz", "tree"]


def test_a_full_disk_leaves_no_archive(tree: Path, monkeypatch: pytest.MonkeyPatch):
    Path("tree/noise").write_bytes(inputs.random_bytes(70_000))
    monkeypatch.setattr(writer, "write_all", full_disk)
    said = "Error: no space is left on the disk; nothing was replaced\n"
    assert fails("compress", "-1", tree, "-o", "tree.tar.sqz") == said
    assert names() == ["tree"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_stopped_leaves_no_archive(number: signal.Signals):
    process = start_in("tree", "compress", "-3", "--block-size", "64K", "tree", "-o", "tree.tar.sqz")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == -number
    left = names()
    assert "tree.tar.sqz" not in left and (number == signal.SIGKILL or left == ["tree"])


def test_an_extraction_that_is_killed_leaves_no_member_and_the_next_one_tidies():
    code = "import os, signal; from squeeze.codecs.archive import extract; "
    code += "extract.Extraction.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL); "
    code += "from squeeze.cli import main; main()"
    Path("tree").mkdir()
    Path("tree/a").write_bytes(TEXT)
    run("compress", "-1", "tree", "-o", "tree.tar.sqz")
    done = subprocess.run([sys.executable, "-c", code, "decompress", "tree.tar.sqz", "-C", "out"], check=False)
    assert done.returncode == -signal.SIGKILL and not Path("out/tree").exists()
    subprocess.run([*SQUEEZE, "decompress", "tree.tar.sqz", "-C", "out"], check=True)
    assert [path.name for path in Path("out").iterdir()] == ["tree"]
