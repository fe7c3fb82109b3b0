"""`squeeze decompress`: names, ranges, and what is salvaged of a damaged file."""

from pathlib import Path

import pytest

from tests.makers.command import TEXT, fails, listed, names, run, usage_error

pytestmark = pytest.mark.usefixtures("in_folder")


def test_name_without_suffix(packed: Path):
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
