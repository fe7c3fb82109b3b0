"""Runs that end early: signals, full disks, pipes that close or block, and terminals."""

import errno
import itertools
import os
import pty
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import writer
from squeeze.system import files, moving
from tests.makers import inputs
from tests.makers.cases import all_slow_but
from tests.makers.command import SQUEEZE, fails, names, run

pytestmark = pytest.mark.usefixtures("in_folder")


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_source_and_leaves_no_result(note: Path, monkeypatch: pytest.MonkeyPatch):
    note.write_bytes(inputs.words(70_000))  # more than a short stream holds
    monkeypatch.setattr(writer, "write_all", full_disk)
    assert fails("compress", "-1", "--rm", note) == (
        "Error: note.txt: no space is left on the disk; nothing was replaced\n"
    )
    assert names() == ["note.txt"]


def test_a_full_device_is_one_line(note: Path):
    assert fails("compress", "-1", note, "-o", "/dev/full") == (
        "Error: note.txt: no space is left on the disk; nothing was replaced\n"
    )


def test_a_failed_rename_leaves_no_temporary_file(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moving, "rename", full_disk)
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


def test_compressed_data_is_neither_written_to_a_terminal_nor_read_from_one(note: Path):
    assert on_terminal("compress", "-c", "note.txt", reads=False) == (
        1,
        b"Error: compressed data is not written to a terminal: use -o, or redirect standard output\n",
    )
    expected = b"Error: compressed data is not read from a terminal: name a file, or redirect standard input\n"
    assert on_terminal("decompress", reads=True) == (1, expected)
    assert on_terminal("test", "-", reads=True) == (1, expected)


def big_text(size: int) -> bytes:
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(3000)]
    text = " ".join(chance.choices(words, k=40_000)).encode()
    return (text * (size // len(text) + 1))[:size]


def start_long_run(*options: str) -> subprocess.Popen[bytes]:
    """Start a compression, and return when it has begun to write its temporary file."""
    return start_in(".", "compress", "-3", "--rm", "--block-size", "64K", *options, "big.txt")


def start_in(folder: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a command on a folder with a large file, and return when it has begun to write its temporary file."""
    Path(folder).mkdir(exist_ok=True)
    Path(folder, "big.txt").write_bytes(big_text(6_000_000))
    process = subprocess.Popen([*SQUEEZE, *arguments], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in Path().glob(".*.sqz.*.tmp")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.parametrize(
    ("number", "threads"),
    all_slow_but(
        [(signal.SIGINT, "-T2"), (signal.SIGTERM, "-T1")],
        itertools.product([signal.SIGINT, signal.SIGTERM], ["-T1", "-T2"]),
    ),
)
def test_an_interrupted_run_leaves_the_source_alone(number: signal.Signals, threads: str):
    process = start_long_run(threads)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (-number, b"Error: interrupted; unfinished files were left unchanged\n")
    assert names() == ["big.txt"]


def test_a_killed_run_leaves_no_result():
    process = start_long_run()
    before = Path("big.txt").read_bytes()
    process.kill()
    process.communicate()
    assert Path("big.txt").read_bytes() == before and len(before) == 6_000_000
    assert not Path("big.txt.sqz").exists()


def test_a_reader_that_goes_away_ends_the_run_by_sigpipe():
    Path("noise").write_bytes(random.Random(2).randbytes(1 << 20))
    process = subprocess.Popen(
        [*SQUEEZE, "compress", "-1", "-c", "noise"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (-signal.SIGPIPE, b"")


def test_signal_handlers_are_given_back(note: Path):
    before = signal.getsignal(signal.SIGTERM)
    run("compress", "-1", note)
    assert signal.getsignal(signal.SIGTERM) is before
    assert not files.interrupted.is_set()


def unbuffered(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # it would be cut off
    command = [*SQUEEZE, *map(str, arguments)]
    return subprocess.run(command, check=False, env=environment, stderr=subprocess.PIPE, **options)


def test_a_full_disk_behind_standard_output_without_a_buffer_is_an_error():
    data = random.Random(1).randbytes(300_000)
    Path("noise").write_bytes(data)
    run("compress", "-1", "-q", "noise")

    def limited():
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    for command, source in (("compress", "noise"), ("decompress", "noise.sqz")):
        with open("out", "wb") as out:  # noqa: PTH123
            done = unbuffered(command, "-c", source, stdout=out, preexec_fn=limited)
        assert done.returncode == 1 and b"File too large" in done.stderr, done


@pytest.mark.parametrize("command", ["compress", "decompress"])
def test_pipes_that_do_not_block(command: str):
    data = random.Random(1).randbytes(300_000)
    Path("noise").write_bytes(data)
    run("compress", "-1", "-q", "noise")
    given, expected = (data, Path("noise.sqz").read_bytes())[:: 1 if command == "compress" else -1]
    reading, feeding = os.pipe()
    for end in (reading, feeding):
        os.set_blocking(end, end != reading)
    process = subprocess.Popen(
        [*SQUEEZE, command, "-c", *["-1"] * (command == "compress")],
        stdin=reading,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    os.close(reading)
    assert process.stdout
    os.set_blocking(process.stdout.fileno(), True)
    with os.fdopen(feeding, "wb") as feed:
        feed.write(given[:1000])
        feed.flush()
        time.sleep(2)  # until it waits
        feed.write(given[1000:])
    out, _ = process.communicate()
    assert process.returncode == 0
    if command == "decompress":
        assert out == expected
    else:
        assert squeeze.decompress(out) == data
