"""Passages shared with benchmarks are found from 50 bytes on, and only the passage is removed."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.training.conftest import manifest_of, prose
from training import corpus
from training.documents import Document
from training.exclude import WINDOW, Report, Windows, passages, without
from training.prepare import prepare

SECRET = b"It was the strangest of 1,234 mornings, and Zoe's quick brown fox jumped; over what?"


@pytest.fixture
def windows(tmp_path: Path) -> Windows:
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "short.txt").write_bytes(b"tiny")
    (folder / "text.txt").write_bytes(prose(7, 3_000) + SECRET + prose(8, 3_000) + b"=" * 200)
    return Windows.of([folder])


def planted(size: int) -> Document:
    return Document("docs", "a/one", "a.md", prose(1, 3_000) + b"\n#" + SECRET[:size] + b"#\n\n" + prose(2, 3_000))


def test_fifty_bytes_are_found_and_forty_nine_are_not(windows: Windows) -> None:
    assert len(windows.matches(planted(WINDOW).content)) == 1
    assert len(windows.matches(planted(WINDOW - 1).content)) == 0


def test_a_run_of_one_byte_does_not_count(windows: Windows) -> None:
    assert len(windows.matches(b"-" * 20 + b"=" * 100)) == 0


def test_the_passage_goes_and_the_rest_stays(windows: Windows) -> None:
    report = Report()
    kept = without(planted(80), windows, report)
    assert kept is not None
    assert not len(windows.matches(kept.content))
    assert kept.content.startswith(prose(1, 2_000)[:2_000])
    assert kept.content.endswith(prose(2, 3_000))
    assert report.passages["a/one"] == 1 and report.removed["a/one"] == len(planted(80).content) - len(kept.content)


def test_a_document_of_shared_text_goes_whole(windows: Windows) -> None:
    report = Report()
    assert without(Document("docs", "a/one", "a.md", prose(7, 3_000)), windows, report) is None
    assert report.described()["a/one"]["documents"] == 1


def test_a_document_without_shared_text_is_untouched(windows: Windows) -> None:
    document = Document("docs", "a/one", "a.md", prose(3, 3_000))
    assert without(document, windows, Report()) is document


def test_passages_end_at_blank_lines_and_do_not_overlap() -> None:
    content = b"first\n\n" + b"x" * 100 + b"\n\nlast"
    assert passages(content, [10, 11, 40]) == [(7, 109)]
    assert passages(b"y" * 5_000, [1_000, 1_400, 4_900]) == [(488, 1_562), (4_388, 5_000)]


def test_the_command_reports_and_a_prepared_corpus_passes(
    archive: Callable[[str, Mapping[str, bytes]], None], tmp_path: Path, windows: Windows
) -> None:
    archive("a/one", {"a.md": planted(80).content, **{f"{n}.py": prose(50 + n, 2_000) for n in range(5)}})
    manifest = manifest_of({"a/one": {}})
    for into, benchmarks, code in (("open", [], 1), ("clean", [tmp_path / "benchmarks"], 0)):
        prepare(manifest, tmp_path / "sources", tmp_path / into, 20_000, benchmarks)
        command = [sys.executable, "-m", "training.exclude", "--corpus", tmp_path / into, tmp_path / "benchmarks"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert f"; {code} documents share one" in done.stdout
    assert corpus.read(tmp_path / "clean", "train").size.min() > 0
