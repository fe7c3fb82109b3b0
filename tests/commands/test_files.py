"""The command: every option, every exit code, and the exact words on standard error."""

import errno
import hashlib
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import squeeze
from squeeze import cli
from squeeze.codecs.stream import coding, compressor, levels, writer
from squeeze.system import files

ROOT = Path(__file__).parents[2]
TEXT = b"A coder spends few bits on what a model expects, and many for a surprise.\n" * 40
SQUEEZE = [sys.executable, "-m", "squeeze"]


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def note() -> Path:
    path = Path("note.txt")
    path.write_bytes(TEXT)
    return path


@pytest.fixture
def packed(note: Path) -> Path:
    run("compress", "-1", note)
    return Path("note.txt.sqz")


def call(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, [str(a) for a in arguments], input=stdin, prog_name="squeeze")


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    """Run a command that must succeed in silence."""
    result = call(*arguments, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, "")
    return result


def fails(*arguments: object, stdin: bytes | None = None) -> str:
    """Run a command that must fail with exit code 1; what it says."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.stderr


def usage_error(*arguments: object) -> str:
    """Run a command that must fail with exit code 2; the last line of what it says."""
    result = call(*arguments)
    assert result.exit_code == 2
    return result.stderr.splitlines()[-1]


def names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def big_text(size: int) -> bytes:
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(3000)]
    return " ".join(chance.choices(words, k=size // 5)).encode()[:size]


def test_help_imports_nothing_heavy():
    code = "import sys, squeeze.cli; print({'numba', 'numpy', 'torch', 'tqdm'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_version():
    assert run("--version").stdout == "squeeze, version 0.1.0\n"


def test_help_of_every_command_ends_in_an_example():
    for name in cli.COMMANDS:
        assert f"Example: squeeze {name}" in run(name, "--help").stdout


def test_readme_names_every_command():
    readme = (ROOT / "README.md").read_text()
    assert [name for name in cli.COMMANDS if f"squeeze {name}" not in readme] == []


@pytest.mark.parametrize("level", [n for n in levels.LEVELS if n < 4])
def test_round_trip(note: Path, level: int):
    run("compress", f"-{level}", note)
    assert names() == ["note.txt", "note.txt.sqz"]
    note.unlink()
    run("decompress", "note.txt.sqz")
    assert note.read_bytes() == TEXT


def test_one_letter_names(note: Path):
    run("c", "-1", note)
    run("d", "-f", "note.txt.sqz")
    assert note.read_bytes() == TEXT


def test_no_command_is_a_usage_error():
    assert call().exit_code == 2


def test_unknown_command_is_a_usage_error():
    assert usage_error("squash") == "Error: No such command 'squash'."


def test_unknown_option_is_a_usage_error():
    assert usage_error("compress", "--fast").startswith("Error: No such option")


def test_last_level_wins(note: Path):
    run("compress", "-3", "--level", "1", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


@pytest.mark.parametrize("level", ["--level=0", "--level=10"])
def test_level_that_does_not_exist(note: Path, level: str):
    assert fails("compress", level, note).startswith("Error: level")
    assert names() == ["note.txt"]


def listed(path: str) -> dict:
    return json.loads(run("list", "--json", path).stdout)


def test_output(note: Path):
    run("compress", "-1", note, "-o", "other")
    run("decompress", "other", "--output", "back")
    assert Path("back").read_bytes() == TEXT


def test_output_takes_one_file(note: Path):
    assert usage_error("compress", note, note, "-o", "x") == "Error: -o takes one file"


def test_output_and_stdout_exclude_each_other(note: Path):
    assert usage_error("compress", note, "-c", "-o", "x") == "Error: -c and -o exclude each other"


def test_output_to_a_special_file_leaves_it_there(note: Path):
    run("compress", "-1", note, "-o", "/dev/null")
    assert not Path("/dev/null").is_file()


def test_output_to_the_source(note: Path):
    assert fails("compress", "-1", "-f", note, "-o", note) == ("Error: note.txt: input and output are the same file\n")
    assert note.read_bytes() == TEXT


def test_stdout(note: Path):
    coded = run("compress", "-1", "-c", note).stdout_bytes
    assert run("decompress", "-c", stdin=coded).stdout_bytes == TEXT
    assert names() == ["note.txt"]


@pytest.mark.parametrize("name", [[], ["-"]])
def test_stdin_to_stdout(name: list[str]):
    coded = run("compress", "-1", *name, stdin=TEXT).stdout_bytes
    assert run("decompress", *name, stdin=coded).stdout_bytes == TEXT
    run("test", *name, stdin=coded)


def test_pipes_between_processes(note: Path):
    first = subprocess.Popen([*SQUEEZE, "compress", "-1", "-c", note], stdout=subprocess.PIPE)
    second = subprocess.run([*SQUEEZE, "decompress"], stdin=first.stdout, capture_output=True, check=True)
    first.communicate()
    assert (first.returncode, second.stdout, second.stderr) == (0, TEXT, b"")


def test_stdin_to_a_file():
    run("compress", "-1", "-o", "x.sqz", stdin=TEXT)
    assert run("decompress", "-c", "x.sqz").stdout_bytes == TEXT
    mask = os.umask(0)
    os.umask(mask)
    assert Path("x.sqz").stat().st_mode & 0o777 == 0o666 & ~mask


def test_several_files_go_on_after_a_failing_one(note: Path):
    Path("b.txt").write_bytes(b"b")
    assert fails("compress", "-1", "missing", note, "b.txt") == "Error: missing: No such file or directory\n"
    assert names() == ["b.txt", "b.txt.sqz", "note.txt", "note.txt.sqz"]


def test_double_dash():
    Path("-1").write_bytes(TEXT)
    run("compress", "-1", "--", "-1")
    assert names() == ["-1", "-1.sqz"]


def test_existing_output(note: Path, packed: Path):
    expected = "Error: note.txt: note.txt.sqz already exists; use -f to overwrite\n"
    assert fails("compress", "-1", note) == expected
    run("compress", "-1", "-f", note)
    assert fails("decompress", packed) == "Error: note.txt.sqz: note.txt already exists; use -f to overwrite\n"


def test_output_is_a_folder(note: Path):
    Path("note.txt.sqz").mkdir()
    assert fails("compress", "-1", note) == "Error: note.txt: note.txt.sqz is a directory\n"


def test_name_without_suffix(packed: Path):
    packed.rename("note.zip")
    assert fails("decompress", "note.zip") == (
        "Error: note.zip: the name does not end in .sqz; say where to write with -o or -c\n"
    )


def test_compressed_file_is_skipped(packed: Path):
    result = call("compress", "-1", packed)
    assert (result.exit_code, result.stderr) == (
        0,
        "Warning: note.txt.sqz: already ends in .sqz; skipped (use -f to compress it)\n",
    )
    run("compress", "-1", "-f", packed)
    assert "note.txt.sqz.sqz" in names()


def test_link_is_skipped(note: Path):
    Path("link").symlink_to(note)
    result = call("compress", "-1", "link")
    assert (result.exit_code, result.stderr) == (0, "Warning: link: is a symbolic link; skipped (use -f to take it)\n")
    assert call("compress", "-1", "-q", "link").stderr == ""
    run("compress", "-1", "-f", "link")
    assert run("decompress", "-c", "link.sqz").stdout_bytes == TEXT


def test_special_file_is_skipped():
    os.mkfifo("pipe")
    assert call("compress", "-1", "pipe").stderr == (
        "Warning: pipe: is not a regular file; skipped (use -f to take it)\n"
    )


def test_folder(note: Path):
    Path("folder/below").mkdir(parents=True)
    for name in ("folder/a", "folder/below/b"):
        Path(name).write_bytes(TEXT)
    assert fails("compress", "-1", "folder") == "Error: folder: is a directory; use -r to take every file in it\n"
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


def test_rm_and_keep(note: Path):
    run("compress", "-1", "-k", note)
    run("compress", "-1", "-f", "--rm", note)
    assert names() == ["note.txt.sqz"]
    run("decompress", "--rm", "note.txt.sqz")
    assert names() == ["note.txt"]


def test_rm_with_stdout(note: Path):
    assert usage_error("compress", "--rm", "-c", note) == "Error: --rm and -c exclude each other"


def test_rm_keeps_a_source_that_failed(note: Path, packed: Path):
    fails("compress", "-1", "--rm", note)
    assert note.exists()


def test_threads_write_the_same_bytes(note: Path):
    coded = {run("compress", "-1", "--block-size", "1K", "-T", n, "-c", note).stdout_bytes for n in (0, 1, 2)}
    assert len(coded) == 1
    assert run("decompress", "-T2", stdin=coded.pop()).stdout_bytes == TEXT


def test_block_size(note: Path):
    run("compress", "-1", "--block-size", "1K", note)
    assert [block["raw_length"] for block in listed("note.txt.sqz")["streams"][0]["blocks"]] == [1024, 1024, 912]


@pytest.mark.parametrize("size", ["", "K", "1T", "-1", "1.5M"])
def test_block_size_that_is_none(note: Path, size: str):
    assert usage_error("compress", "--block-size", size, note) == (
        f"Error: Invalid value for '--block-size': {size!r} is not a size such as 65536, 64K or 4M"
    )


def test_no_verify(note: Path, monkeypatch: pytest.MonkeyPatch):
    def decode_block(*_: object) -> object:
        raise squeeze.VerifyError("decoded")

    monkeypatch.setattr(coding, "decode_block", decode_block)
    run("compress", "-1", "--no-verify", note)
    assert fails("compress", "-1", "-f", note) == "Error: note.txt: decoded\n"
    assert names() == ["note.txt", "note.txt.sqz"]


def test_verbose_and_quiet(note: Path):
    said = call("compress", "-1", "-v", note).stderr
    coded = Path("note.txt.sqz").stat().st_size
    assert said.startswith(f"note.txt: 2960 -> {coded} bytes ({100 * coded / 2960:.1f} %), ")
    assert call("decompress", "-vf", "note.txt.sqz").stderr.startswith(f"note.txt.sqz: {coded} -> 2960 bytes")
    assert call("compress", "-1vqf", note).stderr == ""


def test_json(note: Path):
    record = json.loads(run("compress", "-1", "--json", note).stdout)
    assert record.pop("seconds") >= 0
    coded = Path("note.txt.sqz").stat().st_size
    sizes = {"raw_size": 2960, "coded_size": coded}
    assert record == {"file": "note.txt", "level": 1, "output": "note.txt.sqz", **sizes}
    record = json.loads(run("test", "--json", "note.txt.sqz").stdout)
    assert record.pop("seconds") >= 0
    assert record == {"file": "note.txt.sqz", **sizes}


def test_json_of_a_failure():
    result = call("decompress", "--json", "missing.sqz")
    assert (result.exit_code, result.stderr) == (1, "Error: missing.sqz: No such file or directory\n")
    assert json.loads(result.stdout) == {"file": "missing.sqz", "error": "missing.sqz: No such file or directory"}


def test_json_and_stdout(note: Path):
    assert usage_error("compress", "--json", "-c", note) == "Error: --json and -c both write to standard output"
    assert usage_error("compress", "--json") == "Error: --json and -c both write to standard output"


def test_slow_run_says_so(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "estimate_seconds", lambda level, *_: 50.0 * level)
    assert call("compress", "-2", note).stderr == "Level 2 will take about 100 s; -1 would take about 50 s.\n"
    assert call("compress", "-2", "-qf", note).stderr == ""


def test_the_default_level(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "DEFAULT", 1)
    run("compress", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


@pytest.mark.parametrize(
    ("span", "expected"),
    [
        ("10:20", TEXT[10:20]),
        (":5", TEXT[:5]),
        ("2950:", TEXT[2950:]),
        (":", TEXT),
        ("2K:99K", TEXT[2048:]),
        ("7:7", b""),
    ],
)
def test_range(packed: Path, span: str, expected: bytes):
    assert run("decompress", "--range", span, packed).stdout_bytes == expected
    run("decompress", "--range", span, packed, "-o", "part")
    assert Path("part").read_bytes() == expected


def test_range_that_is_none(packed: Path):
    said = "Error: Invalid value for '--range': "
    assert usage_error("decompress", "--range", "5", packed) == said + (
        "'5' is not a range such as 100:200, 100: or :200"
    )
    assert usage_error("decompress", "--range", "5:1", packed) == said + "'5:1' ends before it starts"
    assert usage_error("decompress", "--range", "1:5") == ("Error: --range takes files, and neither --salvage nor --rm")


def damage(path: Path, block: int) -> None:
    """Flip a bit in the middle of a block's payload."""
    found = listed(str(path))["streams"][0]["blocks"][block]
    data = bytearray(path.read_bytes())
    data[found["coded_offset"] + found["coded_length"] // 2 + 8] ^= 1
    path.write_bytes(data)


def test_salvage(note: Path):
    run("compress", "-1", "--block-size", "1K", note, "--rm")
    damage(Path("note.txt.sqz"), 1)
    assert fails("decompress", "note.txt.sqz").startswith("Error: note.txt.sqz: a block's c")
    assert names() == ["note.txt.sqz"]
    assert fails("decompress", "--salvage", "--rm", "note.txt.sqz") == (
        "Error: note.txt.sqz: bytes 1024 to 2048 are lost: their block is damaged\n"
    )
    assert note.read_bytes() == TEXT[:1024] + bytes(1024) + TEXT[2048:]
    assert names() == ["note.txt", "note.txt.sqz"]


def test_salvage_of_a_whole_file(packed: Path):
    run("decompress", "-f", "--salvage", packed)
    assert Path("note.txt").read_bytes() == TEXT


def test_test(packed: Path):
    run("test", packed)
    assert names() == ["note.txt", "note.txt.sqz"]
    packed.write_bytes(packed.read_bytes()[:-20])
    assert fails("test", packed, "note.txt") == (
        "Error: note.txt.sqz: the file ends too early: it was cut off, and its end is missing\n"
        "Error: note.txt: not a .sqz file: it does not begin with the .sqz mark\n"
    )


def test_list(packed: Path):
    lines = run("list", packed).stdout.splitlines()
    stream = listed("note.txt.sqz")["streams"][0]
    size = packed.stat().st_size
    assert lines[0].split() == ["compressed", "raw", "ratio", "level", "codec", "checksum", "file"]
    ratio = f"{100 * size / 2960:.1f}"
    assert lines[1].split() == [str(size), "2960", ratio, "%", "1", "bytewise", stream["checksum"], "note.txt.sqz"]
    assert len(lines) == 2


def test_list_of_blocks(note: Path):
    run("compress", "-1", "--block-size", "2K", note)
    lines = run("list", "-v", "note.txt.sqz").stdout.splitlines()
    blocks = listed("note.txt.sqz")["streams"][0]["blocks"]
    assert lines[2] == "  parameters: level 1, numerics 1"
    for line, block in zip(lines[4:], blocks, strict=True):
        numbers = [str(block[name]) for name in ("raw_offset", "raw_length", "coded_length")]
        assert line.split() == [*numbers, "bytewise", "text", block["checksum"]]


def test_list_of_an_empty_file():
    Path("empty").touch()
    run("compress", "-1", "empty")
    assert run("list", "empty.sqz").stdout.splitlines()[1].split()[1:4] == ["0", "-", "-"]


def test_list_needs_files():
    assert usage_error("list") == "Error: list takes files: it reads their ends first"


def test_info():
    facts = json.loads(run("info", "--json").stdout)
    assert facts["squeeze"] == "0.1.0"
    assert facts["levels"] == "1, 2, 3, 4, 5, 6, 7, 8, 9"
    text = run("info").stdout
    assert f"processor:       {facts['processor']}\n" in text
    assert f"compiled code:   {facts['compiled_code']}\n" in text


def test_bench(note: Path):
    Path("b").write_bytes(b"b" * 1000)
    lines = run("bench", "-1", "-2", note, "b").stdout.splitlines()
    assert [line.split()[0] for line in lines[4:]] == ["note.txt", "note.txt", "b", "b", "total", "total"]
    assert lines[4].split()[1:3] == ["squeeze", "-1"]


def test_bench_of_processes_as_json(note: Path):
    record = json.loads(run("bench", "-1", "--processes", "--runs", "1", "--json", note).stdout)
    run("compress", "-1", note)
    assert record["coded_size"] == Path("note.txt.sqz").stat().st_size
    assert record["error"] is None


def fake_rival(folder: Path, name: str, script: str) -> None:
    folder.mkdir()
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_bench_with_rivals(note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake_rival(tmp_path / "bin", "xz", 'for last; do :; done; cat "$last"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    record = json.loads(run("bench", "-1", "--against", "xz", "--json", note).stdout.splitlines()[1])
    assert (record["tool"], record["coded_size"], record["error"]) == ("xz -9e", 2960, None)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert call("bench", "-1", "--against", "zstd", note).stderr == "Note: zstd is not installed; skipped\n"
    assert fails("bench", "-1", "--against", "arj", note) == (
        "Error: unknown rival 'arj'; choose from xz, zstd, brotli, bzip2, zpaq, lpaq1, 7z\n"
    )


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("echo nonsense", "the round trip changed the bytes"),
        ("echo broken >&2; exit 3", "xz exited with 3: broken"),
    ],
)
def test_bench_reports_a_rival_that_fails(
    note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: str
):
    fake_rival(tmp_path / "bin", "xz", script)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    assert fails("bench", "-1", "--against", "xz", note) == f"Error: note.txt: xz -9e: {error}\n"


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer.Writer, "_put", full_disk)
    assert fails("compress", "-1", "--rm", note) == (
        "Error: note.txt: no space is left on the disk; nothing was replaced\n"
    )
    assert names() == ["note.txt"]


def test_full_device(note: Path):
    assert fails("compress", "-1", note, "-o", "/dev/full") == (
        "Error: note.txt: no space is left on the disk; nothing was replaced\n"
    )


def test_too_little_memory(note: Path, monkeypatch: pytest.MonkeyPatch):
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compressor, "compress_stream", greedy)
    assert fails("compress", "-1", note) == (
        "Error: note.txt: not enough memory; use fewer threads (-T) or a smaller --block-size\n"
    )


def test_failed_rename_leaves_no_temporary(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "replace", full_disk)
    fails("compress", "-1", note)
    assert names() == ["note.txt"]


def on_terminal(*arguments: str, reads: bool) -> tuple[int, bytes]:
    """Exit code and words of a command whose standard input (or else output) is a terminal."""
    master, slave = pty.openpty()
    stdin, stdout = (slave, subprocess.PIPE) if reads else (subprocess.DEVNULL, slave)
    try:
        done = subprocess.run(
            [*SQUEEZE, *arguments], stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(slave)
        os.close(master)
    return done.returncode, done.stderr


def test_coded_data_and_terminals(note: Path):
    assert on_terminal("compress", "-c", "note.txt", reads=False) == (
        1,
        b"Error: compressed data is not written to a terminal; use -o or redirect it\n",
    )
    expected = b"Error: compressed data is not read from a terminal; name a file or redirect one\n"
    assert on_terminal("decompress", reads=True) == (1, expected)
    assert on_terminal("test", "-", reads=True) == (1, expected)


def test_progress_on_a_terminal(note: Path):
    master, slave = pty.openpty()
    subprocess.run([*SQUEEZE, "compress", "-1", note], stderr=slave, check=True)
    os.close(slave)
    said = os.read(master, 65536)
    os.close(master)
    assert b"note.txt:" in said
    assert b"2960 -> " in said


def start_long_run(*options: str) -> subprocess.Popen[bytes]:
    """A compression that has begun to write its temporary file."""
    Path("big.txt").write_bytes(big_text(6_000_000))
    process = subprocess.Popen(
        [*SQUEEZE, "compress", "-3", "--rm", "--block-size", "256K", *options, "big.txt"], stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size for path in Path().glob(".big.txt.sqz.*.tmp")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("threads", ["-T1", "-T2"])
def test_interrupt(number: signal.Signals, threads: str):
    process = start_long_run(threads)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (1, b"Error: interrupted; nothing was replaced\n")
    assert names() == ["big.txt"]


def test_kill():
    process = start_long_run()
    process.kill()
    process.communicate()
    assert Path("big.txt").read_bytes() == big_text(6_000_000)
    assert not Path("big.txt.sqz").exists()


def test_reader_that_goes_away():
    Path("noise").write_bytes(random.Random(2).randbytes(1 << 20))
    process = subprocess.Popen(
        [*SQUEEZE, "compress", "-1", "-c", "noise"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (1, b"")


def test_long_name():
    name = "n" * 250
    Path(name).write_bytes(TEXT)
    run("compress", "-1", name)
    assert names() == [name, name + ".sqz"]


def test_signal_handlers_are_given_back(note: Path):
    before = signal.getsignal(signal.SIGTERM)
    run("compress", "-1", note)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not files.interrupted.is_set()


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
