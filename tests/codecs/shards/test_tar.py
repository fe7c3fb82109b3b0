"""Tars: the same bytes from the same files, and the readers of Python and GNU restore them."""

import io
import json
import tarfile

import pytest
import xxhash

from squeeze.codecs.shards.tar import Entry, Tar, sample_key

NAMES = ["a.txt", "sub/b.json", "sub/ö.bin", "x" * 150 + "/" + "y" * 120, "\udcff.raw", "empty"]


def entries(names=NAMES):
    """Return entries of 0, 700, ... bytes."""
    return [Entry(name, 700 * number, [b"%d" % number * 700] * number) for number, name in enumerate(names)]


def whole(tar, piece=1 << 20):
    return b"".join(iter(lambda: tar.read(piece), b""))


@pytest.mark.parametrize("piece", [1, 511, 1 << 20])
def test_python_restores_all_files(piece):
    data = whole(Tar(entries()), piece)
    assert len(data) % 10240 == 0
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as found:
        assert found.getnames() == NAMES
        for number, one in enumerate(found):
            assert found.extractfile(one).read() == b"%d" % number * 700 * number
            assert (one.mtime, one.uid, one.gid, one.uname, one.mode) == (0, 0, 0, "", 0o644)


def test_the_index_has_the_places_of_members():
    tar = Tar(entries())
    data = whole(tar)
    lines = tar.lines.splitlines()
    assert tar.digest.intdigest() == xxhash.xxh3_64_intdigest(data)
    assert len(tar.checksums) == len(lines) == len(NAMES)
    for number, line in enumerate(lines):
        name, offset, size, digits = json.loads(line)
        assert digits == f"{xxhash.xxh3_64_intdigest(data[offset : offset + size]):016x}"
        assert (name, data[offset : offset + size]) == (NAMES[number], b"%d" % number * 700 * number)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a.jpg", "a."),
        ("a.seg.png", "a."),
        ("sub.d/a.jpg", "sub.d/a."),
        ("a", "a"),
        (".hidden", ".hidden"),
        ("sub/.hidden.txt", "sub/.hidden.txt"),
    ],
)
def test_sample_keys_are_those_of_webdataset(name, key):
    assert sample_key(name) == key
