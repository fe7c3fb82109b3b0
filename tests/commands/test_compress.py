"""`squeeze compress`: levels, blocks, and the check of what was written."""

from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.stream import compressor, encoding, levels
from tests.makers import wrapped
from tests.makers.command import TEXT, call, fails, listed, names, run, usage_error
from tests.makers.inputs import random_bytes

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.mark.parametrize("level", [n for n in levels.LEVELS if n < 4])
def test_a_file_comes_back_at_every_fast_level(note: Path, level: int):
    run("compress", f"-{level}", note)
    assert names() == ["note.txt", "note.txt.sqz"]
    note.unlink()
    run("decompress", "note.txt.sqz")
    assert note.read_bytes() == TEXT


def test_last_level_wins(note: Path):
    run("compress", "-3", "--level", "1", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


@pytest.mark.parametrize(
    ("arguments", "level"),
    [(("--level=0",), 0), (("--level", "10"), 10), (("-10",), 10), (("-12",), 12), (("-0",), 0), (("-qf19",), 19)],
)
def test_a_level_that_does_not_exist_is_a_usage_error(note: Path, arguments: tuple[str, ...], level: int):
    """-12 is not -1 and -2."""
    for command in ("compress", "c", "explain", "train"):
        result = call(command, *arguments, note)
        assert (result.exit_code, result.stderr) == (2, f"Error: the level must be from 1 to 9, got {level}\n")
    assert names() == ["note.txt"]


def test_a_filter_names_a_level_that_does_not_exist():
    result = call("-10", stdin=TEXT)
    assert (result.exit_code, result.stderr) == (2, "Error: the level must be from 1 to 9, got 10\n")


def test_numbers_of_two_digits_in_other_options_are_not_levels(note: Path):
    run("compress", "-T12", "-1qf", note)
    Path("-10").write_bytes(TEXT)
    run("compress", "-1", "--", "-10")
    assert names() == ["-10", "-10.sqz", "note.txt", "note.txt.sqz"]


def test_a_dash_is_standard_output(note: Path):
    coded = run("compress", "-1", "-o", "-", note).stdout_bytes
    assert squeeze.decompress(coded) == TEXT
    Path("a.sqz").write_bytes(coded)
    assert run("decompress", "-o", "-", "a.sqz").stdout_bytes == TEXT
    assert names() == ["a.sqz", "note.txt"]
    assert usage_error("train", "-o", "-", note).endswith("name a file (one called - is ./-)")
    run("compress", "-1", "-o", "./-", note)
    assert "-" in names()


TREE = ("tree/a", "tree/sub/b", "tree/sub/c")


@pytest.fixture
def tree(in_folder: None) -> list[Path]:
    for name in TREE:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(TEXT)
    return [Path(f"{name}.sqz") for name in TREE]


def files_in_tree() -> list[str]:
    return sorted(str(path) for path in Path("tree").rglob("*") if path.is_file())


def test_a_folder_compressed_twice_is_passed_over(tree: list[Path]):
    run("compress", "-1", "-r", "tree")
    both = sorted([*TREE, *map(str, tree)])
    before = [path.stat().st_ino for path in tree]
    again = call("compress", "-1", "-r", "tree")
    said = "; 3 were done before (-f does them again); 3 .sqz files were left alone\n"
    assert again.exit_code == 0
    assert again.stderr.startswith("0 files, 0 -> 0 bytes, ") and again.stderr.endswith(said)
    assert [path.stat().st_ino for path in tree] == before
    assert call("compress", "-1", "-r", "-q", "tree").stderr == ""
    Path(TREE[0]).write_bytes(TEXT + b"more")
    changed = call("compress", "-1", "-r", "tree")
    assert changed.exit_code == 1 and changed.stderr.startswith("Error: tree/a: tree/a.sqz already exists")
    size = sum(path.stat().st_size for path in tree[1:]) + len(squeeze.compress(TEXT + b"more", 1))
    done = call("compress", "-1", "-r", "-f", "tree")
    raw = 3 * len(TEXT) + 4
    assert done.exit_code == 0
    assert done.stderr.startswith(f"3 files, {raw:,} -> {size:,} bytes ({100 * size / raw:.1f} %), ")
    assert done.stderr.endswith(" s; 3 .sqz files were left alone\n")
    assert files_in_tree() == both


def test_a_folder_restored_twice_is_passed_over(tree: list[Path]):
    run("compress", "-1", "-r", "--rm", "tree")
    run("decompress", "-r", "tree")
    again = call("decompress", "-r", "tree")
    assert again.exit_code == 0
    assert again.stderr.startswith("0 files, 0 -> 0 bytes, ")
    assert again.stderr.endswith(" s; 3 were done before (-f does them again)\n")


def test_a_file_that_is_not_a_dictionary_is_named(note: Path, packed: Path):
    Path("bad.sqzp").write_bytes(b"text")
    said = "Error: bad.sqzp: not a dictionary: it does not begin with the mark of .sqzp files\n"
    assert fails("compress", "-D", "bad.sqzp", note) == said
    assert fails("compress", "-D", "nope", note) == (
        "Error: there is no dictionary 'nope': give auto, none or text, or a file of `squeeze train`\n"
    )


def test_blocks_have_the_size_that_is_asked_for(note: Path):
    run("compress", "-1", "--block-size", "1K", note)
    assert [block["raw_length"] for block in listed("note.txt.sqz")["streams"][0]["blocks"]] == [1024, 1024, 912]


@pytest.mark.parametrize("size", ["", "K", "1T", "-1", "1.5M"])
def test_an_invalid_block_size_is_a_usage_error(note: Path, size: str):
    assert usage_error("compress", "--block-size", size, note) == (
        f"Error: Invalid value for '--block-size': {size!r} is not a size such as 65536, 64K or 4M"
    )


def test_no_verify_does_not_decode_the_result(note: Path, monkeypatch: pytest.MonkeyPatch):
    def decode_block(*_: object) -> object:
        raise squeeze.VerifyError("decoded")

    monkeypatch.setattr(encoding, "decode_block", decode_block)
    run("compress", "-1", "--no-verify", note)
    assert fails("compress", "-1", "-f", note) == "Error: note.txt: decoded\n"
    assert names() == ["note.txt", "note.txt.sqz"]


def test_a_slow_run_says_how_long_it_will_take(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "estimate_seconds", lambda level, *_: 50.0 * level)
    assert call("compress", "-2", note).stderr == "Level 2 will take about 100 s; -1 would take about 50 s.\n"
    assert call("compress", "-2", "-qf", note).stderr == ""


def test_contents_of_wrappers_count_in_that_time(in_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "estimate_seconds", lambda level, size, *_: size / 100)
    archive = wrapped.documents()["zip"]
    Path("archive.zip").write_bytes(archive)
    most = 12_406 + len(archive)  # opened and closed
    assert call("compress", "-1", "archive.zip").stderr == f"Level 1 will take about {most / 100:.0f} s.\n"
    assert call("compress", "-1", "-f", "--no-parse", "archive.zip").stderr == ""


def test_the_default_level_is_used_without_one(note: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(levels, "DEFAULT", 1)
    run("compress", note)
    assert listed("note.txt.sqz")["streams"][0]["header"]["level"] == 1


def test_too_little_memory_is_one_line(note: Path, monkeypatch: pytest.MonkeyPatch):
    def greedy(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(compressor, "compress_stream", greedy)
    assert fails("compress", "-1", note) == (
        "Error: note.txt: not enough memory: use fewer threads (-T) or a smaller --block-size\n"
    )


def test_repeats_far_apart_are_coded_once_and_listed(note: Path):
    noise = Path("noise.bin")
    noise.write_bytes(random_bytes(9_000) * 2)
    run("compress", "-1", "--block-size", "9000", "--long", "1M", noise, "-o", "with.sqz")
    run("compress", "-1", "--block-size", "9000", "--no-long", noise, "-o", "without.sqz")
    assert Path("with.sqz").stat().st_size < 9_200
    assert Path("without.sqz").stat().st_size > 18_000
    assert "               repeats bytes 0 to 9000\n" in run("list", "-v", "with.sqz").stdout
    assert run("decompress", "--range", "12000:12100", "with.sqz").stdout_bytes == noise.read_bytes()[12_000:12_100]
    assert [block["sources"] for block in listed("with.sqz")["streams"][0]["blocks"]] == [[], [[0, 9_000]]]


def test_options_of_repeats_that_exclude_others_are_usage_errors(note: Path):
    assert (
        usage_error("compress", "--long", "1M", "--no-long", note) == "Error: --long and --no-long exclude each other"
    )
    assert usage_error("compress", "--long", "1M", "--cluster", "local", note) == (
        "Error: workers code the parts of a file alone: leave out --long or --cluster"
    )
    assert fails("compress", "--long", "1K", note) == (
        "Error: note.txt: a window of repeats must be from 1 MiB to 1 TiB, got 1,024 bytes\n"
    )
