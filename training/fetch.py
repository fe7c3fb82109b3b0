"""Fetch the sources of the manifest: clone each at its commit, and keep the chosen files in one archive per source.

Nothing of a source is executed, and no work tree is made: files are read from git's object store.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from training.manifest import Manifest, ManifestError, Source, load

LARGEST = 2_000_000  # bytes of a file; larger ones are data or generated


def chosen(git: Path, manifest: Manifest, source: Source) -> Iterator[tuple[str, str]]:
    """Yield (path, blob) of the files to take, sorted by path.

    Args:
        git: bare repository
        manifest: manifest of all sources
        source: the source
    """
    listing = _git(git, "ls-tree", "-r", "-l", "-z", source.commit)
    for line in sorted(listing.split(b"\0")[:-1], key=lambda line: line.split(b"\t", 1)[1]):
        entry, raw = line.split(b"\t", 1)
        mode, kind, blob, size = entry.decode().split()
        path = raw.decode("utf-8", "replace")
        if kind != "blob" or mode == "120000" or not manifest.kind_of(source, path):
            continue
        if not size.isdecimal():
            raise ManifestError(f"{source.name}: the repository lacks {path}; name it under `leave`")
        if int(size) <= LARGEST:
            yield path, blob


def fetch(source: Source, manifest: Manifest, into: Path, git: Path, *, check: bool = True) -> tuple[int, int, str]:
    """Write the source's archive from a bare repository. Return the number of files, bytes and their SHA-256.

    Args:
        source: the source
        manifest: manifest of all sources
        into: folder of the archives
        git: bare repository
        check: whether to compare the hash with the manifest's

    Raises:
        ManifestError: if the hash is not the manifest's
    """
    digest, files, size = hashlib.sha256(), 0, 0
    archive = into / source.file_name
    part = archive.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for path, content in _contents(git, list(chosen(git, manifest, source))):
            packed.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
            digest.update(content)
            files, size = files + 1, size + len(content)
    if check and digest.hexdigest() != source.sha256:
        part.unlink()
        raise ManifestError(f"{source.name}: what was taken has SHA-256 {digest.hexdigest()}, not {source.sha256}")
    part.replace(archive)
    return files, size, digest.hexdigest()


def clone(source: Source, into: Path) -> None:
    """Fetch one commit of a source, without history, into a bare repository."""
    _git(into, "init", "--quiet", "--bare")
    _git(into, "fetch", "--quiet", "--depth", "1", source.address, source.commit)


def _contents(git: Path, files: list[tuple[str, str]]) -> Iterator[tuple[str, bytes]]:
    command = ["git", "-C", str(git), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for path, blob in files:
            process.stdin.write(blob.encode() + b"\n")
            process.stdin.flush()
            header = process.stdout.readline().split()
            if header[1:2] != [b"blob"]:
                raise ManifestError(f"the repository lacks {path}; name it under `leave`")
            content = process.stdout.read(int(header[2]) + 1)[:-1]
            yield path, content
        process.stdin.close()


def _git(folder: Path, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=False)
    if done.returncode:
        raise ManifestError(f"git {arguments[0]} in {folder}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _bring(source: Source, manifest: Manifest, into: Path, mirror: Path | None) -> str:
    if mirror:
        files, size, digest = fetch(source, manifest, into, mirror / source.name.replace("/", "+") / "repo")
    else:
        with tempfile.TemporaryDirectory() as folder:
            clone(source, Path(folder))
            files, size, digest = fetch(source, manifest, into, Path(folder))
    return f"{source.name:60} {files:6} files {size / 1e6:8.2f} MB  {digest[:16]}"


def main() -> None:
    """Fetch every source that the folder lacks. Print one line per source."""
    parser = argparse.ArgumentParser(prog="python -m training.fetch", description=main.__doc__)
    parser.add_argument("--into", type=Path, required=True, help="folder for one archive per source")
    parser.add_argument(
        "--mirror", type=Path, help="folder of repositories MIRROR/OWNER+NAME/repo, to use instead of the network"
    )
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    manifest, failed = load(), 0
    for source in manifest.sources.values():
        if (arguments.into / source.file_name).exists():
            continue
        try:
            print(_bring(source, manifest, arguments.into, arguments.mirror), flush=True)
        except ManifestError as error:
            failed += 1
            print(f"Error: {error}", file=sys.stderr)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
