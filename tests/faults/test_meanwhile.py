"""Commands on files that change while they run, and outputs that cannot be written: nothing is lost, and one line says
so."""

import errno
import json
import os
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import compressor, decompressor
from squeeze.system import files, temporary
from tests.makers.command import TEXT, call, names

pytestmark = pytest.mark.usefixtures("note")
IN_THE_WAY = "Error: note.txt: note.txt.sqz already exists; use -f to overwrite\n"


def said(*words: str) -> tuple[int, str]:
    done = call(*words)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stderr


def meanwhile(monkeypatch, act):
    """Let something happen when a file has been read."""
    for module, name in ((compressor, "compress_stream"), (decompressor, "decompress_stream")):
        real = getattr(module, name)

        def then(*args, real=real, **options):
            totals = real(*args, **options)
            act()
            return totals

        monkeypatch.setattr(squeeze, name, then)


def edit():
    with Path("note.txt").open("r+b") as file:
        file.write(b"B")


def replace():
    Path("other").write_bytes(b"newer")
    Path("other").rename("note.txt")


@pytest.mark.parametrize("rm", [(), ("--rm",)])
@pytest.mark.parametrize("act", [edit, replace])
def test_a_source_that_changes_is_kept_and_reported(monkeypatch, act, rm):
    meanwhile(monkeypatch, act)
    line = "Error: note.txt: changed while it was read; note.txt.sqz holds what was read\n"
    assert said("compress", "-1", *rm, "note.txt") == (1, line)
    assert Path("note.txt").read_bytes() == (b"newer" if act is replace else b"B" + TEXT[1:])
    assert squeeze.decompress(Path("note.txt.sqz").read_bytes()) == TEXT


def test_a_coded_source_that_changes_is_kept(monkeypatch):
    assert said("compress", "-1", "--rm", "note.txt") == (0, "")
    meanwhile(monkeypatch, lambda: Path("note.txt.sqz").write_bytes(b"newer"))
    line = "Error: note.txt.sqz: changed while it was read; note.txt holds what was read\n"
    assert said("decompress", "--rm", "note.txt.sqz") == (1, line)
    assert (Path("note.txt").read_bytes(), Path("note.txt.sqz").read_bytes()) == (TEXT, b"newer")


def test_a_source_that_changes_is_reported_on_standard_output_too(monkeypatch):
    meanwhile(monkeypatch, edit)
    assert said("compress", "-1", "-c", "note.txt") == (1, "Error: note.txt: changed while it was read\n")


def test_a_source_that_changes_is_reported_to_machines(monkeypatch):
    meanwhile(monkeypatch, edit)
    done = call("compress", "-1", "--json", "note.txt")
    assert (done.exit_code, json.loads(done.stdout)["changed"]) == (1, True)


def test_a_source_that_vanishes_is_not_lost(monkeypatch):
    meanwhile(monkeypatch, lambda: Path("note.txt").unlink())
    assert said("compress", "-1", "note.txt")[0] == 1
    assert squeeze.decompress(Path("note.txt.sqz").read_bytes()) == TEXT


def test_a_source_that_cannot_be_deleted_is_named(monkeypatch):
    real = Path.unlink

    def unlink(path, **options):
        if path.name == "note.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        real(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink)
    line = "Error: note.txt: Permission denied; note.txt.sqz was written nevertheless\n"
    assert said("compress", "-1", "--rm", "note.txt") == (1, line)
    assert names() == ["note.txt", "note.txt.sqz"]


def test_the_disk_has_all_before_the_source_goes(monkeypatch):
    done = []
    real_sync, real_unlink = os.fsync, Path.unlink

    def sync(handle):
        done.append("folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file")
        real_sync(handle)

    def unlink(path, **options):
        done.append(path.name)
        real_unlink(path, **options)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "unlink", unlink)
    assert said("compress", "-1", "--rm", "note.txt") == (0, "")
    assert done == ["file", "folder", "note.txt"]


def test_nothing_is_lost_to_a_device(monkeypatch):
    done = said("compress", "-1", "--rm", "-o", "/dev/null", "note.txt")
    assert done == (1, "Error: note.txt: /dev/null is not a regular file, so --rm would lose the source\n")
    assert names() == ["note.txt"]


def test_an_output_that_appears_is_kept(monkeypatch):
    meanwhile(monkeypatch, lambda: Path("note.txt.sqz").write_bytes(b"theirs"))
    assert said("compress", "-1", "--rm", "note.txt") == (1, IN_THE_WAY)
    assert (Path("note.txt").read_bytes(), Path("note.txt.sqz").read_bytes()) == (TEXT, b"theirs")
    assert said("compress", "-1", "-f", "note.txt") == (0, "")
    assert names() == ["note.txt", "note.txt.sqz"]


def test_a_dangling_link_at_the_output():
    Path("note.txt.sqz").symlink_to("nothing")
    assert said("compress", "-1", "note.txt") == (1, IN_THE_WAY)
    assert said("compress", "-1", "-f", "note.txt") == (0, "")
    assert names() == ["note.txt", "note.txt.sqz"] and not Path("note.txt.sqz").is_symlink()


def test_errors_of_the_output_name_it(monkeypatch):
    line = "Error: no/x.sqz: the folder no does not exist; make it first\n"
    assert said("compress", "-1", "note.txt", "-o", "no/x.sqz") == (1, line)

    def read_only(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), ".note.txt.sqz.abc.tmp")

    monkeypatch.setattr(temporary.tempfile, "mkstemp", read_only)
    assert said("compress", "-1", "note.txt") == (1, "Error: note.txt.sqz: Read-only file system\n")


def test_folders_that_cannot_be_read_are_reported_at_the_end(monkeypatch):
    for name in ("tree/a/x", "tree/b/x", "tree/c/x"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(TEXT)
    real = os.scandir

    def scan(path):
        if str(path) == "tree/b":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "tree/b")
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert said("compress", "-1", "-r", "tree") == (1, "Error: tree/b: Permission denied\n")
    assert [Path(f"tree/{name}/x.sqz").exists() for name in "abc"] == [True, False, True]


def test_a_file_that_vanishes_from_a_folder_stops_nothing(monkeypatch):
    Path("tree").mkdir()
    for name in "abc":
        Path("tree", name).write_bytes(TEXT)
    real = files.reason_to_skip

    def reason(path):
        if path.name == "b":
            path.unlink(missing_ok=True)
        return real(path)

    monkeypatch.setattr(files, "reason_to_skip", reason)
    assert said("compress", "-1", "-r", "tree") == (1, "Error: tree/b: No such file or directory\n")
    assert sorted(path.name for path in Path("tree").iterdir()) == ["a", "a.sqz", "c", "c.sqz"]
