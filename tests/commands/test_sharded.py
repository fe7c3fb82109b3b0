"""`squeeze compress --shards`, and members of what it wrote by `list` and `decompress`."""

import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import squeeze
from tests.makers.command import TEXT, call, fails, listed, names, run, usage_error
from tests.makers.remote import Store

pytestmark = pytest.mark.usefixtures("in_folder")
FILES = {f"sub/{number:02d}.{kind}": TEXT[number:] for number in range(12) for kind in ("json", "txt")} | {"top": b""}


@pytest.fixture
def tree():
    for name, data in FILES.items():
        path = Path("tree", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    Path("out").mkdir()
    return Path("tree")


SHARDS = ("compress", "-1", "-r", "tree", "--shards", "40K", "-o")


def shards():
    return sorted(Path("out").glob("*.tar.sqz"))


def restored(names):
    """Return the members that tar finds in a restored shard."""
    found = {}
    for name in names:
        run("decompress", "-o", "restored.tar", name)
        with tarfile.open("restored.tar") as tar:
            found |= {one.name: tar.extractfile(one).read() for one in tar}
        Path("restored.tar").unlink()
    return found


def test_a_tree_comes_back_from_shards(tree):
    lines = [json.loads(line) for line in run(*SHARDS, "out/part-{}.tar.sqz", "--json").stdout.splitlines()]
    paths = shards()
    assert [line["output"] for line in lines] == [str(path) for path in paths] and len(paths) > 1
    assert len(list(Path("out").iterdir())) == 2 * len(paths) + 1  # the manifest
    assert sum(line["members"] for line in lines) == len(FILES)
    assert [line["coded_size"] for line in lines] == [path.stat().st_size for path in paths]
    assert restored(paths) == FILES
    run("test", "-r", "out")
    assert all(path.exists() for path in map(tree.joinpath, FILES))


def test_members_of_a_shard_are_listed_and_taken_out(tree):
    run(*SHARDS, "out/part-{:03d}.tar.sqz")
    members = listed("out/part-001.tar.sqz")["members"]
    assert {one["name"] for one in members} < set(FILES)
    one = members[0]
    assert one["size"] == len(FILES[one["name"]]) and len(one["checksum"]) == 16
    lines = run("list", "out/part-001.tar.sqz").stdout.splitlines()
    assert lines[2].split() == ["raw", "offset", "raw", "length", "checksum", "member"]
    assert lines[3].split() == [str(one["offset"]), str(one["size"]), one["checksum"], one["name"]]
    assert len(lines) == 3 + len(members)
    member = ("decompress", "out/part-001.tar.sqz", "--member", one["name"])
    assert run(*member).stdout_bytes == FILES[one["name"]]
    run(*member, "-o", "one")
    assert Path("one").read_bytes() == FILES[one["name"]]
    assert "members" not in json.loads(run("list", "--json", packed("note")).stdout)


def packed(name):
    Path(name).write_bytes(TEXT)
    run("compress", "-1", name)
    return f"{name}.sqz"


def test_a_member_needs_an_index_that_belongs_to_the_shard(tree):
    run(*SHARDS, "out/part-{}.tar.sqz")
    shard = Path("out/part-0.tar.sqz")
    assert (
        fails("decompress", shard, "--member", "no\n")
        == f"Error: {shard}: no member no\\n: `squeeze list` shows the members\n"
    )
    assert fails("decompress", packed("note"), "--member", "a") == (
        "Error: note.sqz: there is no index of members: use an archive or a shard of `squeeze compress`\n"
    )
    index = Path("out/part-0.tar.members.sqz")
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    for said in (fails("decompress", shard, "--member", "top", "-o", "x"), fails("list", shard)):
        assert said.startswith(f"Error: {shard}: the index of members, {index}: ") and said.count("\n") == 1
    assert "x" not in names()
    assert "exclude each other" in usage_error("decompress", shard, "--member", "a", "--range", "1:2")
    assert "--member takes files" in usage_error("decompress", "--member", "a")
    assert "leave out --member" in usage_error("decompress", shard, "--member", "a", "--cluster", "local")


def test_shards_go_from_a_store_to_a_store():
    Store.reset()
    for name, data in FILES.items():
        Store.put(f"bucket/tree/{name}", data)
    Store.requests.clear()
    url = ("compress", "-1", "-r", "fake://bucket/tree", "--shards", "40K", "-o", "fake://bucket/out/part-{}.tar.sqz")
    run(*url)
    gets = [request for request in Store.requests if request[0] == "get" and request[1].startswith("bucket/tree")]
    assert len(gets) == len(FILES) - 1  # one is empty
    made = sorted(key for key in Store.objects if key.endswith(".tar.sqz"))
    assert restored(f"fake://{key}" for key in made) == FILES and not Store.uploads
    before = {key: Store.objects.pop(key) for key in list(Store.objects) if key.startswith("bucket/out")}
    Path("part-manifest.jsonl").unlink()
    Store.fail("put", ConnectionResetError("reset"), after=3)
    assert "reset" in fails(*url)
    assert not Store.uploads and sorted(key for key in Store.objects if key.startswith("bucket/out")) == [
        "bucket/out/part-0.tar.members.sqz",
        "bucket/out/part-0.tar.sqz",
        "bucket/out/part-1.tar.members.sqz",  # the shard's upload failed
    ]
    Store.failing.clear()
    said = call(*url)
    assert said.exit_code == 0 and "files were done before" in said.stderr
    assert {key: data for key, data in Store.objects.items() if key.startswith("bucket/out")} == before
    run("test", "--manifest", "part-manifest.jsonl", "fake://bucket/out")


def test_objects_that_changed_after_they_were_listed_are_named(monkeypatch):
    Store.reset()
    for name in ("a", "b", "c"):
        Store.put(f"bucket/tree/{name}", TEXT)
    ranges = Store.cat_ranges

    def changing(self, *arguments, **options):
        Store.put("bucket/tree/b", TEXT + b"more")
        del Store.objects["bucket/tree/c"]
        return ranges(self, *arguments, **options)

    monkeypatch.setattr(Store, "cat_ranges", changing)
    said = fails("compress", "-1", "-r", "fake://bucket/tree", "--shards", "1M", "-o", "part-{}.tar.sqz")
    assert said.splitlines() == [
        "Error: fake://bucket/tree/b: it was replaced after it was listed",
        "Error: fake://bucket/tree/c: No such file or directory",
    ]
    assert restored(["part-0.tar.sqz"]) == {"a": TEXT}


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
def test_tar_reads_shards(tree):
    run(*SHARDS, "out/part-{}.tar.sqz")
    Path("squeeze").write_text(f'#!/bin/sh\nexec {sys.executable} -m squeeze "$@"\n')
    Path("squeeze").chmod(0o755)
    Path("back").mkdir()
    for shard in shards():
        program = f"--use-compress-program={Path('squeeze').resolve()}"
        done = subprocess.run(["tar", program, "-C", "back", "-xf", shard], check=True, capture_output=True)
        assert done.stderr == b""
    assert {name: Path("back", name).read_bytes() for name in FILES} == FILES


def test_options_that_shards_do_not_take_are_usage_errors(tree):
    out = "out/part-{}.tar.sqz"
    shards = ("compress", "-1", "tree", "--shards", "40K")
    for arguments in (
        (*shards, "-o", out),
        (*shards, "-r"),
        (*shards, "-r", "out", "-o", out),
        ("compress", "-r", "--shards", "1M", "-o", out),
        ("compress", "-r", "tree", "--shards", "0", "-o", out),
    ):
        assert usage_error(*arguments).startswith("Error: --shards takes ")
    for option in ("--rm", "-c"):
        assert "takes neither" in usage_error(*shards, "-r", "-o", out, option)
    assert "belongs to --shards" in usage_error("compress", "--train-dictionary", "tree/top")
    assert "exclude each other" in usage_error(*SHARDS, out, "--train-dictionary", "-D", "x")
    assert "needs exactly one {} for their number" in usage_error(*SHARDS, "out/part.tar.sqz")
    assert "is in tree, whose files go into the shards" in fails(*SHARDS, "tree/sub/part-{}.tar.sqz")
    assert "make it first" in fails(*SHARDS, "none/part-{}.tar.sqz")
    assert fails("compress", "-r", "tree/top", "--shards", "1M", "-o", out) == "Error: tree/top: expected a folder\n"
    Path("empty").mkdir()
    assert "holds no files" in fails("compress", "-r", "empty", "--shards", "1M", "-o", out)
    assert not list(Path("out").iterdir())


def test_shards_that_exist_need_force(tree):
    run(*SHARDS, "out/part-{}.tar.sqz")
    manifest = Path("out/part-manifest.jsonl")
    manifest.unlink()
    before = sorted(Path("out").iterdir())
    assert "out/part-0.tar.sqz already exists; use -f" in fails(*SHARDS, "out/part-{}.tar.sqz")
    assert not manifest.exists()
    larger = [*SHARDS, "out/part-{}.tar.sqz", "-f"]
    larger[larger.index("40K")] = "80K"
    said = fails(*larger)
    assert said.startswith("Error: out/part-") and "it is a shard of another run" in said
    assert sorted(Path("out").iterdir()) == sorted([*before, manifest])


def test_a_dictionary_is_learned_first(tree):
    small = ("--block-size", "4K", "--train-dictionary")
    run("compress", "-4", "-r", "tree", "--shards", "40K", "-o", "out/part-{}.tar.sqz", *small)
    assert Path("out/part-dictionary.sqzp").exists()
    assert "needs the dictionary" in fails("decompress", "-c", "out/part-0.tar.sqz")
    member = ("decompress", "out/part-0.tar.sqz", "-D", "out/part-dictionary.sqzp", "--member")
    assert run(*member, "sub/00.txt").stdout_bytes == FILES["sub/00.txt"]
    assert listed("out/part-0.tar.sqz")["streams"][0]["header"]["dictionary"]
    with squeeze.open("out/part-0.tar.sqz", dictionary="out/part-dictionary.sqzp") as file:
        assert file.member("top").read() == b""
    assert "levels 4 to 6" in fails(*SHARDS, "out/x-{}.tar.sqz", "--train-dictionary")
    again = ("compress", "-r", "tree", "--shards", "1M", *small, "-o")
    assert "is of a run with other options" in fails(*again, "out/part-{}.tar.sqz")
    Path("out/part-manifest.jsonl").unlink()
    assert "part-0.tar.sqz already exists" in fails(*again, "out/part-{}.tar.sqz")
    assert "part-dictionary.sqzp already exists" in fails(*again, "out/part-{}")


def test_links_are_left_out_unless_forced(tree):
    Path("tree/link").symlink_to("top")
    done = call(*SHARDS, "out/part-{}.tar.sqz")
    assert done.exit_code == 0 and done.stderr.count("is a symbolic link; skipped") == 1
    again = call(*SHARDS, "out/part-{}.tar.sqz", "-f")
    assert (again.exit_code, again.stderr) == (0, f"{len(FILES)} files were done before.\n")
    assert set(restored(shards())) == {*FILES, "link"}
