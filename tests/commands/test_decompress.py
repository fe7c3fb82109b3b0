"""`squeeze decompress`: names, ranges, and what is salvaged of a damaged file."""

from pathlib import Path

import pytest

import squeeze
from tests.makers import inputs
from tests.makers.command import TEXT, call, fails, listed, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_a_name_without_the_suffix_needs_o_or_c(packed: Path):
    packed.rename("note.zip")
    assert fails("decompress", "note.zip") == (
        "Error: note.zip: the name does not end in .sqz; say where to write with -o or -c\n"
    )


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
def test_a_range_gives_its_bytes(packed: Path, span: str, expected: bytes):
    assert run("decompress", "--range", span, packed).stdout_bytes == expected
    run("decompress", "--range", span, packed, "-o", "part")
    assert Path("part").read_bytes() == expected


def test_an_invalid_range_is_a_usage_error(packed: Path):
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


def test_salvage_restores_what_is_undamaged(note: Path):
    run("compress", "-1", "--block-size", "1K", note, "--rm")
    damage(Path("note.txt.sqz"), 1)
    assert fails("decompress", "note.txt.sqz").startswith("Error: note.txt.sqz: a block's c")
    assert names() == ["note.txt.sqz"]
    assert fails("decompress", "--salvage", "--rm", "note.txt.sqz") == (
        "Error: note.txt.sqz: bytes 1024 to 2048 are lost: their block is damaged\n"
        "Error: note.txt.sqz: the order of the other blocks in bytes 0 to 2960 is unproved: "
        "the checksum of all of them cannot be compared\n"
    )
    assert note.read_bytes() == TEXT[:1024] + bytes(1024) + TEXT[2048:]
    assert names() == ["note.txt", "note.txt.sqz"]


def test_salvage_restores_a_whole_file(packed: Path):
    run("decompress", "-f", "--salvage", packed)
    assert Path("note.txt").read_bytes() == TEXT


RANDOM = inputs.random_bytes(9_000)


@pytest.fixture
def stored() -> Path:
    path = Path("note.sqz")
    path.write_bytes(squeeze.compress(RANDOM, 1))
    return path


@pytest.mark.parametrize("command", ["decompress", "test"])
def test_more_output_than_is_allowed_is_refused_and_nothing_is_written(stored, command):
    said = "9,000 bytes or more would be written, and the limit is 1,024: raise it with --max-output\n"
    found = call(command, "--max-output", "1K", stored)
    assert (found.exit_code, found.stderr) == (1, f"Error: note.sqz: {said}")
    found = call(command, "--max-output", "1K", "-", stdin=stored.read_bytes())
    assert (found.exit_code, found.stderr) == (1, f"Error: -: {said}")
    assert [path.name for path in Path().iterdir()] == ["note.sqz"]


def test_more_memory_than_is_allowed_is_refused(stored):
    stored.write_bytes(squeeze.compress(inputs.words(5_000), 1))
    for command in ("decompress", "test"):
        found = call(command, "--memlimit", "1M", stored)
        assert found.exit_code == 1
        assert found.stderr.startswith("Error: note.sqz: a block of 5,000 bytes at level 1 needs ")
        assert " bytes of memory, and the limit is 1,048,576: raise it with --memlimit" in found.stderr


def test_a_range_is_limited_by_its_own_length(stored):
    assert call("decompress", "--range", "10:110", "--max-output", "100", stored).stdout_bytes == RANDOM[10:110]
    found = call("decompress", "--range", "10:111", "--max-output", "100", stored)
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)


def test_what_is_missing_can_be_left_out(stored):
    first = squeeze.compress(b"first", 1)
    hurt = bytearray(first + stored.read_bytes())
    hurt[len(first) + 100] ^= 1
    stored.write_bytes(hurt)
    found = call("decompress", "--salvage", "--missing", "skip", stored)
    assert found.exit_code == 1
    assert found.stderr == "Error: note.sqz: bytes 5 to 9005 are lost: their block is damaged\n"
    assert Path("note").read_bytes() == b"first"
    assert call("decompress", "--missing", "skip", stored).exit_code == 2
