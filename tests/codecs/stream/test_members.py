"""Members of shards: bytes that are read for one, and errors for a missing or damaged index."""

import base64
import io

import pytest
import xxhash

import squeeze
from squeeze.codecs.shards.tar import Entry, Tar
from squeeze.codecs.stream.compressor import compress_stream
from squeeze.codecs.stream.index import read_index
from squeeze.codecs.stream.members import index_bytes, index_name, read_members
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError
from squeeze.system.limits import Limits
from tests.makers.inputs import random_bytes
from tests.makers.remote import Store

FILES = {f"{number:03d}.txt": base64.b64encode(random_bytes(900 + number, number)) for number in range(200)}
BLOCK = 1 << 14


def shard(files=FILES):
    """Return a shard and its index."""
    tar, sink = tar_of(files), io.BytesIO()
    totals = compress_stream(tar, sink, level=1, block_size=BLOCK, verify=False)
    return sink.getvalue(), index_bytes(bytes(tar.lines), totals.raw, tar.digest.intdigest())


def tar_of(files):
    return Tar(Entry(name, len(data), [data]) for name, data in files.items())


def index_of(files):
    """Return the index of a shard, without the shard."""
    tar = tar_of(files)
    size = sum(map(len, iter(lambda: tar.read(BLOCK), b"")))
    return index_bytes(bytes(tar.lines), size, tar.digest.intdigest())


def put(path, data, index):
    path.write_bytes(data)
    index_name(path).write_bytes(index)
    return path


@pytest.fixture(scope="module")
def made():
    return shard()


@pytest.fixture
def path(made, tmp_path):
    return put(tmp_path / "part-0.tar.sqz", *made)


def test_members_are_file_objects(path):
    with squeeze.open(path) as file:
        assert list(file.members()) == list(FILES)
        assert file.read(3) == b"000"
        first, second = file.member("010.txt"), file.member("149.txt")
        assert first.read(7) == FILES["010.txt"][:7]
        assert second.read() == FILES["149.txt"]
        assert first.read() == FILES["010.txt"][7:] and first.read(1) == b""
        assert second.seek(-4, 2) == len(FILES["149.txt"]) - 4 and second.read() == FILES["149.txt"][-4:]
        assert file.read(4) == b".txt"  # each has a position of its own
        with pytest.raises(ValueError, match="before the start"):
            first.seek(-1)


def test_a_short_stream_can_be_a_shard(tmp_path):
    path = put(tmp_path / "part-0.tar.sqz", *shard({"one": b"", "two": b"few"}))
    with path.open("rb") as file:
        assert read_index(file)[0].short
    with squeeze.open(path) as file:
        assert file.member("one").read() == b"" and file.member("two").read() == b"few"
    assert squeeze.open(put(path, *shard({}))).members() == {}


def test_an_index_is_named_after_its_shard(tmp_path):
    assert index_name(tmp_path / "a.tar.sqz") == tmp_path / "a.tar.members.sqz"
    assert index_name(tmp_path / "a") == tmp_path / "a.members.sqz"


def test_one_member_takes_index_header_and_its_blocks(made):
    Store.reset()
    data, index = made
    Store.put("bucket/part.tar.sqz", data)
    Store.put("bucket/part.tar.members.sqz", index)
    assert len(data) > 3 << 16
    with squeeze.open("fake://bucket/part.tar.sqz") as file:
        assert file.member("100.txt").read() == FILES["100.txt"]
        found = file.members()["100.txt"]
    with io.BytesIO(data) as whole:
        blocks = [
            block
            for block in read_index(whole)[0].blocks
            if block.raw_offset < found.offset + found.size and block.raw_offset + block.raw_length > found.offset
        ]
    reads = [request[1:] for request in Store.requests if request[0] == "get"]
    shard, beside = "bucket/part.tar.sqz", "bucket/part.tar.members.sqz"
    ends = [(shard, len(data) - (1 << 16), len(data)), (shard, 0, 1 << 16)]
    own = [(shard, block.coded_offset, block.coded_offset + block.coded_length) for block in blocks]
    assert reads == [*ends, (beside, 0, len(index)), *own] and 1 <= len(own) <= 2


def test_refuses_a_name_that_is_not_a_member(path):
    with (
        squeeze.open(path) as file,
        pytest.raises(SqueezeError, match=r"^no member nothing\\n: `squeeze list` shows the members$"),
    ):
        file.member("nothing\n")


def test_refuses_a_file_without_an_index_of_members(path, made):
    index_name(path).unlink()
    for source in (path, io.BytesIO(made[0])):
        with squeeze.open(source) as file, pytest.raises(FormatError, match=r"^there is no index of members"):
            file.members()
    assert read_members(path) is None


def test_refuses_the_index_of_another_shard(path, made, tmp_path):
    others = {name: data[::-1] for name, data in FILES.items()}  # as long
    assert index_of(FILES) == made[1]
    for files in ({"a": b"b"}, others):
        index_name(path).write_bytes(index_of(files))
        with squeeze.open(path) as file, pytest.raises(FormatError, match="is that of another shard"):
            file.members()
    small = put(tmp_path / "small.tar.sqz", shard({"a": b"b"})[0], index_of({"a": b"c"}))
    with squeeze.open(small) as file, pytest.raises(FormatError, match="is that of another shard"):
        file.members()


FIRST = '{"format":"squeeze.members","version":1,"size":10240,"checksum":"0123456789abcdef"}\n'
LINE = '["a",512,3,"0123456789abcdef"]\n'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("squeeze.members", "another", "it is not an index of members"),
        (FIRST, "1\n", "it is not an index of members"),
        (FIRST, "", "it is not an index of members"),
        ('n":1', 'n":2', "its version 2 is unknown: use a newer squeeze"),
        ('n":1', 'n":"\\n"', r"its version \\n is unknown"),
        *(
            (old, new, "a line is invalid")
            for old, new in [
                (FIRST, "[" * 5000 + "\n"),
                ("10240", '"10240"'),
                (FIRST[-21:], "}\n"),
                (LINE, LINE[:-1]),
                (LINE, LINE + LINE),
                (LINE, "{}\n"),
                (LINE, "\n"),
                ('"a"', "1"),
                ("512", "-1"),
                ("3,", '"3",'),
                ("512", "5.5"),
                ("512", "true"),
                ("512", "10239"),
                ('3,"01', '3,"0X'),
                ('3,"01', '3,"1'),
                ('ef"]', 'ef",1]'),
            ]
        ),
    ],
)
def test_refuses_an_index_with_invalid_lines(tmp_path, old, new, said):
    path = tmp_path / "a.tar.sqz"
    text = FIRST + LINE
    assert old in text
    index_name(path).write_bytes(squeeze.compress(text.replace(old, new, 1).encode(), 1))
    with pytest.raises(FormatError, match=said) as raised:
        read_members(path)
    assert str(raised.value).startswith(f"the index of members, {index_name(path)}: ")
    assert "\n" not in str(raised.value)


def test_a_damaged_index_is_named(path):
    data = bytearray(index_name(path).read_bytes())
    data[len(data) // 2] ^= 1
    index_name(path).write_bytes(data)
    with squeeze.open(path) as file:
        with pytest.raises(DamagedError, match=r"^the index of members, "):
            file.members()
        assert file.read(3) == b"000"


def test_what_follows_an_index_is_named(path):
    index_name(path).write_bytes(index_name(path).read_bytes() + b"more")
    with (
        squeeze.open(path) as file,
        pytest.raises(FormatError, match=r"^the index of members, .*: the bytes after the first"),
    ):
        file.members()


def test_a_member_that_is_another_than_its_index_says(tmp_path):
    data, _ = shard({"a": b"abc"})
    raw = squeeze.decompress(data)
    lines = LINE.encode()
    path = put(tmp_path / "a.tar.sqz", data, index_bytes(lines, len(raw), xxhash.xxh3_64_intdigest(raw)))
    with squeeze.open(path) as file, pytest.raises(DamagedError, match="the checksum of the member a differs"):
        file.member("a").read()


def test_an_index_takes_no_more_memory_than_allowed(path, monkeypatch):
    monkeypatch.setattr("squeeze.codecs.stream.members._OF_LINE", 1 << 30)
    with pytest.raises(LimitError, match="an index of 202 members needs"):
        read_members(path, Limits(memory=1 << 30))


def test_an_index_larger_than_any_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("squeeze.codecs.stream.members.MAX_TEXT", 1000)
    shard = tmp_path / "part.tar.sqz"
    index_name(shard).write_bytes(bytes(1000 + 4097))
    with pytest.raises(FormatError, match="it is larger than an index can be"):
        read_members(shard)
    index_name(shard).write_bytes(bytes(5000))
    with pytest.raises(LimitError, match="an index of 5,000 bytes needs"):
        read_members(shard, Limits(memory=4000))
    index_name(shard).write_bytes(squeeze.compress(bytes(100_000), 1))
    with pytest.raises(LimitError, match="would be written"):
        read_members(shard)
