"""Commands that read and write files: what they take, skip, keep and replace, and what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import squeeze
from tests.makers.command import SQUEEZE, TEXT, call, fails, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_commands_have_names_of_one_letter(note: Path):
    run("c", "-1", note)
    run("d", "-f", "note.txt.sqz")
    assert note.read_bytes() == TEXT


def test_o_names_the_result(note: Path):
    run("compress", "-1", note, "-o", "other")
    run("decompress", "other", "--output", "back")
    assert Path("back").read_bytes() == TEXT


def test_output_takes_one_file(note: Path):
    assert usage_error("compress", note, note, "-o", "x") == "Error: -o takes one file: use --output-dir for several"


def test_output_and_stdout_exclude_each_other(note: Path):
    assert usage_error("compress", note, "-c", "-o", "x") == "Error: -c and -o exclude each other"


def test_output_to_a_special_file_leaves_it_there(note: Path):
    run("compress", "-1", note, "-o", "/dev/null")
    assert not Path("/dev/null").is_file()


def test_the_source_is_never_overwritten_by_its_result(note: Path):
    assert fails("compress", "-1", "-f", note, "-o", note) == ("Error: note.txt: input and output are the same file\n")
    assert note.read_bytes() == TEXT


def test_c_writes_to_standard_output(note: Path):
    coded = run("compress", "-1", "-c", note).stdout_bytes
    assert run("decompress", "-c", stdin=coded).stdout_bytes == TEXT
    assert names() == ["note.txt"]


@pytest.mark.parametrize("name", [[], ["-"]])
def test_standard_input_goes_to_standard_output(name: list[str]):
    coded = run("compress", "-1", *name, stdin=TEXT).stdout_bytes
    assert run("decompress", *name, stdin=coded).stdout_bytes == TEXT
    run("test", *name, stdin=coded)


def test_pipes_connect_two_processes(note: Path):
    first = subprocess.Popen([*SQUEEZE, "compress", "-1", "-c", note], stdout=subprocess.PIPE)
    second = subprocess.run([*SQUEEZE, "decompress"], stdin=first.stdout, capture_output=True, check=True)
    first.communicate()
    assert (first.returncode, second.stdout, second.stderr) == (0, TEXT, b"")


def test_standard_input_goes_to_a_file():
    run("compress", "-1", "-o", "x.sqz", stdin=TEXT)
    assert run("decompress", "-c", "x.sqz").stdout_bytes == TEXT
    mask = os.umask(0)
    os.umask(mask)
    assert Path("x.sqz").stat().st_mode & 0o777 == 0o666 & ~mask


def test_several_files_go_on_after_a_failing_one(note: Path):
    Path("b.txt").write_bytes(b"b")
    assert fails("compress", "-1", "missing", note, "b.txt") == "Error: missing: No such file or directory\n"
    assert names() == ["b.txt", "b.txt.sqz", "note.txt", "note.txt.sqz"]


def test_names_after_two_dashes_are_files():
    Path("-1").write_bytes(TEXT)
    run("compress", "-1", "--", "-1")
    assert names() == ["-1", "-1.sqz"]


def test_an_existing_result_needs_force(note: Path, packed: Path):
    expected = "Error: note.txt: note.txt.sqz already exists; use -f to overwrite\n"
    assert fails("compress", "-1", note) == expected
    run("compress", "-1", "-f", note)
    assert fails("decompress", packed) == "Error: note.txt.sqz: note.txt already exists; use -f to overwrite\n"


def test_a_folder_in_the_place_of_the_result_is_an_error(note: Path):
    Path("note.txt.sqz").mkdir()
    assert fails("compress", "-1", note) == "Error: note.txt: note.txt.sqz is a directory\n"


def test_compressed_file_is_skipped(packed: Path):
    result = call("compress", "-1", packed)
    assert (result.exit_code, result.stderr) == (
        2,
        "Warning: note.txt.sqz: already ends in .sqz; skipped (use -f to compress it)\n",
    )
    run("compress", "-1", "-f", packed)
    assert "note.txt.sqz.sqz" in names()


def test_link_is_skipped(note: Path):
    Path("link").symlink_to(note)
    result = call("compress", "-1", "link")
    assert (result.exit_code, result.stderr) == (2, "Warning: link: is a symbolic link; skipped (use -f to take it)\n")
    result = call("compress", "-1", "-q", "link")
    assert (result.exit_code, result.stderr) == (2, "")
    run("compress", "-1", "-f", "link")
    assert run("decompress", "-c", "link.sqz").stdout_bytes == TEXT


def test_links_to_folders_are_skipped(note: Path):
    Path("tree").mkdir()
    note.rename("tree/note.txt")
    Path("tree/loop").symlink_to(".")
    assert call("compress", "-1", "-r", "tree").stderr == "Warning: tree/loop: is a link to a folder; skipped\n"
    assert sorted(path.name for path in Path("tree").iterdir()) == ["loop", "note.txt", "note.txt.sqz"]


def test_special_file_is_skipped():
    os.mkfifo("pipe")
    assert call("compress", "-1", "pipe").stderr == (
        "Warning: pipe: is not a regular file; skipped (use -f to take it)\n"
    )


def test_r_takes_every_file_of_a_folder(note: Path):
    Path("folder/below").mkdir(parents=True)
    for name in ("folder/a", "folder/below/b"):
        Path(name).write_bytes(TEXT)
    assert fails("compress", "-1", "folder") == (
        "Error: folder: is a folder: use -o NAME.tar.sqz for one archive, or -r for each file in it\n"
    )
    run("compress", "-1", "-r", "folder", "--rm")
    assert sorted(str(p) for p in Path("folder").rglob("*") if p.is_file()) == ["folder/a.sqz", "folder/below/b.sqz"]
    Path("folder/other").write_bytes(b"")
    run("decompress", "-r", "folder")
    assert Path("folder/below/b").read_bytes() == TEXT


def test_mode_and_times_are_kept(note: Path):
    note.chmod(0o640)
    os.utime(note, ns=(1_500_000_000_123_456_789, 1_400_000_000_987_654_321))
    run("compress", "-1", note, "--rm")
    run("decompress", "note.txt.sqz")
    for path in (note, Path("note.txt.sqz")):
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.stat().st_mtime_ns == 1_400_000_000_987_654_321


def test_rm_deletes_and_keep_keeps_the_source(note: Path):
    run("compress", "-1", "-k", note)
    run("compress", "-1", "-f", "--rm", note)
    assert names() == ["note.txt.sqz"]
    run("decompress", "--rm", "note.txt.sqz")
    assert names() == ["note.txt"]


def test_rm_and_c_exclude_each_other(note: Path):
    assert usage_error("compress", "--rm", "-c", note) == "Error: --rm and -c exclude each other"


def test_rm_keeps_a_source_that_failed(note: Path, packed: Path):
    fails("compress", "-1", "--rm", note)
    assert note.exists()


def test_threads_write_the_same_bytes(note: Path):
    coded = {run("compress", "-1", "--block-size", "1K", "-T", n, "-c", note).stdout_bytes for n in (0, 1, 2)}
    assert len(coded) == 1
    assert run("decompress", "-T2", stdin=coded.pop()).stdout_bytes == TEXT


def test_verbose_prints_sizes_and_quiet_prints_nothing(note: Path):
    said = call("compress", "-1", "-v", note).stderr
    coded = Path("note.txt.sqz").stat().st_size
    assert said.startswith(f"note.txt: 2,960 -> {coded} bytes ({100 * coded / 2960:.1f} %), ")
    assert call("decompress", "-vf", "note.txt.sqz").stderr.startswith(f"note.txt.sqz: {coded} -> 2,960 bytes")
    assert call("compress", "-1vqf", note).stderr == ""


def test_json_has_sizes_and_time(note: Path):
    record = json.loads(run("compress", "-1", "--json", note).stdout)
    assert record.pop("seconds") >= 0
    coded = Path("note.txt.sqz").stat().st_size
    sizes = {"raw_size": 2960, "coded_size": coded}
    assert record == {"file": "note.txt", "level": 1, "output": "note.txt.sqz", **sizes}
    record = json.loads(run("test", "--json", "note.txt.sqz").stdout)
    assert record.pop("seconds") >= 0
    assert record == {"file": "note.txt.sqz", **sizes}


def test_json_of_a_failure_has_the_error():
    result = call("decompress", "--json", "missing.sqz")
    assert (result.exit_code, result.stderr) == (1, "Error: missing.sqz: No such file or directory\n")
    assert json.loads(result.stdout) == {"file": "missing.sqz", "error": "missing.sqz: No such file or directory"}


def test_json_and_c_exclude_each_other(note: Path):
    assert usage_error("compress", "--json", "-c", note) == "Error: --json and -c both write to standard output"
    assert usage_error("compress", "--json") == "Error: --json and -c both write to standard output"


def test_a_name_of_250_letters_is_taken():
    name = "n" * 250
    Path(name).write_bytes(TEXT)
    run("compress", "-1", name)
    assert names() == [name, name + ".sqz"]


def test_the_name_of_an_open_file_is_written_to(note: Path):
    Path("stdout").symlink_to("/proc/self/fd/1")
    names = ("/dev/stdout", "stdout", "/dev/fd/1")
    code = "import sys; from squeeze.cli import main; "
    code += "[main(['compress', '-1', 'note.txt', '-o', name], standalone_mode=False) for name in sys.argv[1:]]"
    with open("out", "wb") as out:  # noqa: PTH123
        out.write(b"before")
        out.flush()
        subprocess.run([sys.executable, "-c", code, *names], check=True, stdout=out)
    said = Path("out").read_bytes()
    assert said.startswith(b"before") and squeeze.decompress(said.removeprefix(b"before")) == TEXT * len(names)
    assert Path("stdout").is_symlink() and Path("/dev/stdout").exists()


def test_bytes_after_a_stream_are_named(note: Path):
    run("compress", "-1", "-q", note)
    coded = Path("note.txt.sqz")
    size = coded.stat().st_size
    coded.write_bytes(coded.read_bytes() + b"x" * 512)
    for command in ("test", "list"):
        assert fails(command, "-q", coded) == (
            f"Error: note.txt.sqz: the bytes after the first {size:,} are not a .sqz stream: cut them off\n"
        )


def test_advice_names_arguments_in_python_and_options_on_the_command_line(note: Path, packed: Path):
    with pytest.raises(squeeze.SqueezeError, match=r"the limit is 10: raise it with `limits\.output`$"):
        squeeze.decompress(packed.read_bytes(), limits=squeeze.Limits(output=10))
    assert fails("test", "--max-output", "10", packed).endswith("the limit is 10: raise it with --max-output\n")


def test_output_dir_keeps_the_folders_of_r(note: Path):
    Path("tree/sub").mkdir(parents=True)
    for name in ("tree/a", "tree/sub/b", "tree/sub/c.tmp"):
        Path(name).write_bytes(TEXT)
    run("compress", "-1", "-r", "tree", note, "--output-dir", "out", "--exclude", "*.tmp")
    assert files_below("out") == ["note.txt.sqz", "tree/a.sqz", "tree/sub/b.sqz"] and files_below("tree")[0] == "a"
    run("decompress", "-r", "out/tree", "--output-dir", "back")
    assert files_below("back") == ["tree/a", "tree/sub/b"] and Path("back/tree/sub/b").read_bytes() == TEXT
    again = call("compress", "-1", "-r", "tree", "--output-dir", "out", "--exclude", "*.tmp")
    assert again.exit_code == 0 and "; 2 were done before (-f does them again)" in again.stderr


def files_below(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_two_files_never_share_a_place_in_output_dir(note: Path):
    Path("other").mkdir()
    Path("other/note.txt").write_bytes(b"other")
    said = fails("compress", "-1", "-f", note, "other/note.txt", "--output-dir", "out")
    assert said == (
        "Error: other/note.txt: out/note.txt.sqz is the result of another file already: "
        "use another --output-dir for this one\n"
    )
    assert squeeze.decompress(Path("out/note.txt.sqz").read_bytes()) == TEXT
    assert usage_error("compress", "-c", note, "--output-dir", "out").startswith("Error: --output-dir takes files")


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.tmp", ["a", "sub/b", "sub/deep/a"]),
        ("sub", ["a", "c.tmp"]),
        ("sub/*", ["a", "c.tmp"]),
        ("deep", ["a", "c.tmp", "sub/b", "sub/c.tmp"]),
        ("sub/deep/a", ["a", "c.tmp", "sub/b", "sub/c.tmp"]),
        ("a", ["c.tmp", "sub/b", "sub/c.tmp"]),
    ],
)
def test_exclude_compares_names_and_paths_in_folders(in_folder: None, pattern: str, left: list[str]):
    for name in ("a", "c.tmp", "sub/b", "sub/c.tmp", "sub/deep/a"):
        Path("tree", name).parent.mkdir(parents=True, exist_ok=True)
        Path("tree", name).write_bytes(TEXT)
    run("compress", "-1", "-r", "tree", "--exclude", pattern, "--output-dir", "out")
    assert [name.removesuffix(".sqz") for name in files_below("out/tree")] == left


def test_a_named_file_is_never_excluded(note: Path):
    run("compress", "-1", note, "--exclude", "*.txt")
    assert "note.txt.sqz" in names()


def test_test_prints_ok_for_each_file(note: Path):
    run("compress", "-1", note)
    assert run("test", "note.txt.sqz").stdout == "note.txt.sqz: OK\n"
    assert run("test", "-q", "note.txt.sqz").stdout == ""
    assert run("test", stdin=Path("note.txt.sqz").read_bytes()).stdout == "-: OK\n"


def test_several_files_end_in_a_line_of_totals(note: Path):
    Path("b.txt").write_bytes(TEXT)
    said = call("compress", "-1", "-v", note, "b.txt").stderr.splitlines()
    coded = 2 * Path("b.txt.sqz").stat().st_size
    assert len(said) == 3 and said[2].startswith(f"2 files, 5,920 -> {coded} bytes ({100 * coded / 5920:.1f} %), ")
