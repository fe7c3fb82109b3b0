import pytest

from bench.shared.texts import find_file


def test_a_file_of_the_corpus_is_found_by_its_name(tmp_path, monkeypatch):
    """Recorded commands of tables name files this way."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "corpus" / "text" / "a.txt"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"words")
    monkeypatch.delenv("SQUEEZE_CORPUS", raising=False)
    assert not find_file(place.relative_to(tmp_path / "corpus")).exists()
    monkeypatch.setenv("SQUEEZE_CORPUS", str(tmp_path / "corpus"))
    assert find_file(place.relative_to(tmp_path / "corpus")) == place
    with pytest.raises(SystemExit, match=r"there is no file b\.txt here, or in the corpus"):
        find_file(place.with_name("b.txt").relative_to(place.parent))
