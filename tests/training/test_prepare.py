"""A corpus has the same bytes each time, keeps shares and caps, has no duplicates, and separates held-out sources."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import manifest_of, prose
from training import corpus
from training.manifest import Manifest, ManifestError
from training.prepare import prepare

Archive = Callable[[str, Mapping[str, bytes]], None]


@pytest.fixture
def manifest(archive: Archive) -> Manifest:
    for number, name in enumerate(("a/one", "b/two", "c/held")):
        files = {f"{place}.md": prose(1000 * number + place, 20_000) for place in range(15)}
        files |= {f"{place}.py": prose(1000 * number + 100 + place, 20_000) for place in range(15)}
        archive(name, files)
    return manifest_of({"a/one": {}, "b/two": {}, "c/held": {"held_out": True}})


def made(manifest: Manifest, folder: Path, into: str = "corpus", size: int = 600_000) -> dict[str, Any]:
    return prepare(manifest, folder / "sources", folder / into, size, [])


def test_the_same_sources_give_the_same_bytes(manifest: Manifest, tmp_path: Path) -> None:
    first, second = made(manifest, tmp_path), made(manifest, tmp_path, "again")
    assert first == second
    for name in ("train.bin", "held_out.bin", "corpus.json"):
        assert (tmp_path / "corpus" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_shares_hold(manifest: Manifest, tmp_path: Path) -> None:
    train = made(manifest, tmp_path)["train"]
    for kind, share in {"docs": 0.4, "code": 0.4}.items():
        assert train["by_kind"][kind] == pytest.approx(600_000 * share, abs=45_000)  # two documents
    assert train["by_kind"]["logs"] >= 0.2 * 600_000 - 45_000


def test_too_little_of_a_kind_makes_the_corpus_smaller(manifest: Manifest, tmp_path: Path) -> None:
    described = made(manifest, tmp_path, size=10_000_000)
    assert described["target"] < 1_200_000
    assert described["train"]["by_source"]["a/one"] <= 2 * 220_000  # the cap, and the document that reached it


def test_held_out_sources_are_never_trained_on(manifest: Manifest, tmp_path: Path) -> None:
    described = made(manifest, tmp_path)
    assert "c/held" not in described["train"]["by_source"]
    assert "c/held" in described["held_out"]["by_source"]


def test_the_index_finds_every_document(manifest: Manifest, tmp_path: Path) -> None:
    described = made(manifest, tmp_path)
    names = corpus.names(tmp_path / "corpus")
    split = corpus.read(tmp_path / "corpus", "train")
    assert len(split) == described["train"]["documents"]
    assert b"".join(corpus.walk(split)) == (tmp_path / "corpus" / "train.bin").read_bytes()
    kinds = {names["kinds"][kind] for kind in split.kind}
    assert kinds == {"docs", "code", "logs"}
    assert json.loads((tmp_path / "corpus" / "corpus.json").read_text())["seed"] == described["seed"]


def test_duplicates_are_dropped(archive: Archive, tmp_path: Path) -> None:
    same = prose(1, 4_000)
    nearly = same.replace(b"\n", b"\n# a new line\n", 1) + b"and a last one\n"
    others = {f"{number}.py": prose(10 + number, 1_000) for number in range(3)}
    archive("a/one", {"a.md": same, "b.md": same, **others})
    archive("b/two", {"c.md": nearly, "d.md": prose(2, 4_000)})
    described = made(manifest_of({"a/one": {}, "b/two": {}}), tmp_path)
    assert described["dropped"]["duplicate"] == 2


def test_files_that_are_not_text_are_dropped(archive: Archive, tmp_path: Path) -> None:
    files = {
        "binary.md": b"text\0" * 50,
        "latin.md": "Käse ".encode("latin-1") * 50,
        "minified.py": b"x=1;" * 9_000,
        "short.py": b"x = 1\n",
        "copyleft.py": b"# GNU General Public License\n" * 20,
        "alike.md": prose(3, 9_000) + b"This is licensed under CC BY-SA 4.0.\n",
        "greek.md": "λόγος ".encode() * 50,
        "good.py": prose(1, 500),
        "good.md": prose(2, 500),
    }
    archive("a/one", files)
    dropped = made(manifest_of({"a/one": {}}), tmp_path)["dropped"]
    assert dropped == {"binary": 1, "not UTF-8": 1, "giant lines": 1, "short": 1, "licence": 2, "script": 1}


def test_a_source_that_was_not_fetched_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="a/one is not in"):
        made(manifest_of({"a/one": {}}), tmp_path)
