"""squeeze.open with the modes of gzip.open: what it opens, writes and refuses."""

import io
import os
from pathlib import Path

import pytest

import squeeze
from squeeze.errors import LevelError, OptionError
from tests.makers.command import names

pytestmark = pytest.mark.usefixtures("in_folder")
RAW = b"first line\nsecond line\n" * 50
TEXT = "erste Zeile\nzweite Zeile, äöü\n" * 20


@pytest.mark.parametrize("named", [str, os.fsencode, Path], ids=["str", "bytes", "PathLike"])
def test_opens_paths_of_every_kind(named):
    with squeeze.open(named("a.sqz"), "wb", level=1) as file:
        assert file.writable() and not file.readable()
        assert file.write(RAW[:100]) == 100 and file.tell() == 100
        file.write(RAW[100:])
        assert names() == []
    assert Path("a.sqz").read_bytes() == squeeze.compress(RAW, 1)
    with squeeze.open(named("a.sqz")) as file:
        assert file.read() == RAW


def test_text_modes_encode_and_decode():
    with squeeze.open("a.sqz", "wt", encoding="latin-1", newline="\r\n", level=1) as file:
        file.write(TEXT)
    assert squeeze.decompress(Path("a.sqz").read_bytes()) == TEXT.replace("\n", "\r\n").encode("latin-1")
    with squeeze.open("a.sqz", "rt", encoding="latin-1") as file:
        assert list(file) == TEXT.splitlines(keepends=True)
        file.seek(0)
        assert file.read() == TEXT
    with squeeze.open("a.sqz", "rt", encoding="ascii", errors="replace") as file:
        assert "\ufffd" in file.read()


def test_files_stay_open_and_descriptors_are_closed():
    sink = io.BytesIO()
    with squeeze.open(sink, "wb", level=1) as file:
        file.write(RAW)
    source = io.BytesIO(sink.getvalue())
    with squeeze.open(source) as file:
        assert file.read(5) == RAW[:5]
    assert not source.closed
    number = os.open("a.sqz", os.O_WRONLY | os.O_CREAT)
    with squeeze.open(number, "wb", level=1) as file:
        file.write(RAW)
    number = os.open("a.sqz", os.O_RDONLY)
    with squeeze.open(number) as file:
        file.seek(11)
        assert file.readline() == b"second line\n"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


@pytest.mark.parametrize("mode", ["rb", "rt"])
def test_a_pipe_is_restored_as_a_whole(mode):
    reading, writing = os.pipe()
    os.write(writing, squeeze.compress(RAW, 1))
    os.close(writing)
    with squeeze.open(reading, mode) as file:
        assert file.read() == (RAW if mode == "rb" else RAW.decode())


@pytest.mark.parametrize("mode", ["wb", "wt", "xb"])
def test_a_block_that_raises_writes_nothing(mode):
    with pytest.raises(ZeroDivisionError), squeeze.open("a.sqz", mode, level=1) as file:
        file.write("half" if mode == "wt" else b"half")
        raise ZeroDivisionError
    assert names() == []


def test_an_exclusive_file_must_be_new():
    with squeeze.open("a.sqz", "xt", level=1) as file:
        file.write(TEXT)
    with pytest.raises(FileExistsError, match=r"a\.sqz"):
        squeeze.open("a.sqz", "xb")


@pytest.mark.parametrize(
    ("mode", "options", "said"),
    [
        ("ab", {}, "^mode must be one of r, rb, rt, w, wb, wt, x, xb, xt, got 'ab'$"),
        ("rb", {"encoding": "utf-8"}, "^`encoding` is for text: use mode rt, or leave it out$"),
        ("wb", {"newline": ""}, "^`newline` is for text: use mode wt, or leave it out$"),
        ("rb", {"level": 3}, "^`level` is for writing: leave it out$"),
        ("wb", {"limits": squeeze.Limits()}, "^`limits` is for reading: leave it out$"),
    ],
)
def test_what_does_not_go_together_is_refused(mode, options, said):
    Path("a.sqz").write_bytes(squeeze.compress(RAW, 1))
    with pytest.raises(OptionError, match=said):
        squeeze.open("a.sqz", mode, **options)


@pytest.mark.parametrize("level", [12, "3", True, 2.5, None])
def test_levels_are_checked_at_once(level):
    if level is None:
        squeeze.open("a.sqz", "wb", level=None).give_up()
        return
    with pytest.raises(LevelError, match="level"):
        squeeze.open("a.sqz", "wb", level=level)
    with pytest.raises(LevelError, match="level"):
        squeeze.compress(b"x", level)
    assert names() == []


def test_refuses_files_that_cannot_be_opened():
    with pytest.raises(FileNotFoundError):
        squeeze.open("missing.sqz")
    with pytest.raises(FileNotFoundError):
        squeeze.open("missing/a.sqz", "wb")
    with pytest.raises(TypeError):
        squeeze.open("a.sqz", "wb", nothing=1).close()


def test_pandas_reads_and_writes_it():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "ä"]})
    with squeeze.open("a.csv.sqz", "wt", encoding="utf-8", level=1) as file:
        frame.to_csv(file, index=False)
    with squeeze.open("a.csv.sqz", "rt", encoding="utf-8") as file:
        assert pandas.read_csv(file).equals(frame)
    with squeeze.open("a.csv.sqz") as file:
        assert pandas.read_csv(file).equals(frame)
