"""Archives of folders: what they hold, in which order, and that other tools read them."""

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import squeeze
from squeeze.codecs.archive.write import listed, write
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.members import read_tail
from squeeze.errors import DamagedError, FormatError, SqueezeError

pytestmark = pytest.mark.usefixtures("in_folder")
Said = list[tuple[str, str]]


@pytest.fixture
def tree() -> Path:
    Path("tree/sub/empty").mkdir(parents=True)
    for name, content in {"b": b"b" * 600, "a é.txt": b"text", os.fsdecode(b"sub/\xff"): b"raw", "none": b""}.items():
        Path("tree", name).write_bytes(content)
        os.utime(Path("tree", name), (1_500_000_000, 1_500_000_000))
    Path("tree/b").chmod(0o640)
    os.link("tree/b", "tree/sub/hard")
    Path("tree/link").symlink_to("sub")
    return Path("tree")


def archive(*roots: Path, exclude: str = "", target: Path | None = None) -> tuple[bytes, Said, int]:
    said: Said = []
    items = listed(
        roots,
        target,
        lambda root, path: bool(exclude) and path.name == exclude,
        lambda path, error: said.append((str(path), str(error))),
        lambda path, reason: said.append((str(path), reason)),
    )
    sink = io.BytesIO()
    _, members = write(items, sink, lambda path, error: said.append((str(path), str(error))), level=1)
    return sink.getvalue(), said, members


def names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(squeeze.decompress(data))) as tar:
        return tar.getnames()


def test_members_are_in_the_order_of_their_names_with_modes_times_and_links(tree: Path):
    data, said, count = archive(tree)
    with tarfile.open(fileobj=io.BytesIO(squeeze.decompress(data))) as tar:
        found = {info.name: info for info in tar}
    wanted = ["tree", "tree/a é.txt", "tree/b", "tree/link", "tree/none", "tree/sub", "tree/sub/empty"]
    assert list(found) == [*wanted, "tree/sub/hard", os.fsdecode(b"tree/sub/\xff")] and len(found) == count
    assert said == [] and {info.uid for info in found.values()} == {0}
    assert (found["tree/b"].mode, found["tree/b"].mtime) == (0o640, 1_500_000_000)
    assert found["tree/link"].linkname == "sub" and found["tree/sub/hard"].linkname == "tree/b"


def test_the_same_files_give_the_same_bytes_in_any_folder(tree: Path):
    first = archive(tree)[0]
    Path("elsewhere").mkdir()
    shutil.copytree(tree, "elsewhere/tree", symlinks=True)
    Path("elsewhere/tree/sub/hard").unlink()
    os.link("elsewhere/tree/b", "elsewhere/tree/sub/hard")
    shutil.copystat("tree/sub", "elsewhere/tree/sub")
    assert archive(Path("elsewhere/tree"))[0] == first == archive(tree)[0]


def test_one_member_is_read_without_the_others(tree: Path):
    data = archive(tree)[0]
    with squeeze.open(io.BytesIO(data)) as file:
        assert list(file.members()) == [
            "tree/a é.txt", "tree/b", "tree/none", "tree/sub/hard", os.fsdecode(b"tree/sub/\xff")
        ]  # fmt: skip
        assert file.member("tree/sub/hard").read() == b"b" * 600
        assert file.member("tree/none").read() == b""
        with pytest.raises(SqueezeError, match="no member nothing"):
            file.member("nothing")


def test_an_index_of_another_archive_is_refused(tree: Path):
    data, other = archive(tree)[0], archive(Path("tree/sub"))[0]
    first, last = (read_index(io.BytesIO(one)) for one in (data, other))
    mixed = data[: first[1].offset] + other[last[1].offset :]
    with pytest.raises(FormatError, match="the index of members is that of another archive"):
        read_tail(io.BytesIO(mixed), read_index(io.BytesIO(mixed)))


def test_a_damaged_index_is_named(tree: Path):
    data = bytearray(archive(tree)[0])
    data[-20] ^= 1
    with pytest.raises(DamagedError), squeeze.open(io.BytesIO(bytes(data))) as file:
        file.members()


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_files_that_are_no_archives_have_no_index(streams: int):
    data = squeeze.compress(bytes(5000), 1) * streams
    assert read_tail(io.BytesIO(data), read_index(io.BytesIO(data))) is None


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
def test_tar_reads_an_archive(tree: Path):
    Path("tree/sub", os.fsdecode(b"\xff")).unlink()
    Path("tree.tar").write_bytes(squeeze.decompress(archive(tree)[0]))
    Path("out").mkdir()
    done = subprocess.run(["tar", "-xf", "tree.tar", "-C", "out"], capture_output=True, check=True)
    assert done.stderr == b""
    assert subprocess.run(["diff", "-r", "tree", "out/tree"], check=False).returncode == 0


def test_links_that_lead_out_and_pipes_are_left_out(tree: Path):
    Path("tree/out").symlink_to("/etc")
    Path("tree/up").symlink_to("../../x")
    os.mkfifo("tree/pipe")
    data, said, _ = archive(tree, exclude="sub")
    assert {"tree/out", "tree/up", "tree/pipe", "tree/sub"}.isdisjoint(names(data))
    assert dict(said) == {
        "tree/out": "is a link that leads out of the archive, to /etc",
        "tree/pipe": "is not a regular file",
        "tree/up": "is a link that leads out of the archive, to ../../x",
    }


def test_an_unreadable_file_is_named_and_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch):
    opened = Path.open

    def refuse(path: Path, *arguments: str) -> object:
        if path.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    data, said, _ = archive(tree)
    monkeypatch.undo()
    assert [path for path, _ in said] == ["tree/b"]
    assert "tree/b" not in names(data) and "tree/sub/hard" in names(data)


def test_an_archive_is_no_member_of_itself(tree: Path):
    target = tree / "tree.tar.sqz"
    target.write_bytes(b"")
    Path("tree/.tree.tar.sqz.abcdefgh.squeeze.tmp").write_bytes(b"")
    assert "tree/tree.tar.sqz" not in names(archive(tree, target=target)[0])
    assert not [name for name in names(archive(tree, target=target)[0]) if name.endswith(".tmp")]


def test_two_roots_of_one_name_are_refused(tree: Path):
    Path("other/tree").mkdir(parents=True)
    with pytest.raises(SqueezeError, match="two files or folders are called tree"):
        archive(tree, Path("other/tree"))


def test_a_file_that_becomes_shorter_ends_the_archive(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "squeeze.system.files.status", lambda file: os.stat_result((0o100644, 1, 1, 1, 0, 0, 10_000, 0, 0, 0))
    )
    with pytest.raises(SqueezeError, match=r"^tree/a é.txt became shorter while it was read"):
        archive(tree)
