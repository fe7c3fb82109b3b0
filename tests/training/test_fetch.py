"""Sources are read from a git repository as they are in the commit, and only with the right hash."""

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.conftest import manifest_of
from training.fetch import LARGEST, clone, fetch
from training.manifest import Manifest, ManifestError, Source

FILES = {
    "b.py": b"print('b')\n",
    "a/a.md": b"# A\n\n\xff\n",
    "a/skipped.png": b"\x89PNG",
    "kept-out/x.md": b"no\n",
    "empty.py": b"",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    for path, content in {**FILES, "large.md": b"x" * (LARGEST + 1)}.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    (folder / "link.md").symlink_to("a/a.md")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=n", "-c", "user.email=e", "commit", "--quiet", "-m", "one")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def described(repository: Path) -> tuple[Manifest, Source]:
    manifest = manifest_of({"a/one": {}})
    digest = hashlib.sha256(FILES["a/a.md"] + FILES["b.py"]).hexdigest()
    commit = git(repository, "rev-parse", "HEAD")
    return manifest, replace(manifest.sources["a/one"], commit=commit, sha256=digest, address=str(repository))


def test_chosen_files_are_taken_unchanged(repository: Path, tmp_path: Path) -> None:
    manifest, source = described(repository)
    files, size, digest = fetch(source, manifest, tmp_path, repository)
    assert (files, size, digest) == (3, len(FILES["a/a.md"] + FILES["b.py"]), source.sha256)
    with zipfile.ZipFile(tmp_path / "a+one.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            n: FILES[n] for n in ("a/a.md", "b.py", "empty.py")
        }


def test_a_clone_of_one_commit_is_enough(repository: Path, tmp_path: Path) -> None:
    manifest, source = described(repository)
    into = tmp_path / "clone"
    into.mkdir()
    clone(source, into)
    assert fetch(source, manifest, tmp_path, into)[0] == 3


def test_another_hash_is_refused_and_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    manifest, source = described(repository)
    with pytest.raises(ManifestError, match="has SHA-256"):
        fetch(replace(source, sha256="0" * 64), manifest, tmp_path, repository)
    assert not list(tmp_path.glob("a+one*"))


def test_an_unknown_commit_is_named(repository: Path, tmp_path: Path) -> None:
    manifest, source = described(repository)
    with pytest.raises(ManifestError, match="git ls-tree"):
        fetch(replace(source, commit="1" * 40), manifest, tmp_path, repository)
