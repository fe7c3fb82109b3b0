"""Objects that the store makes of others: the same bytes, few of which pass through a worker."""

import random
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.checkpoints import plan
from squeeze.errors import SqueezeError
from squeeze.system import files, s3_composing, storage
from squeeze.system.upload import copier
from tests.makers.cases import every
from tests.makers.checkpoints import write
from tests.makers.command import run
from tests.makers.faulty import Faulty
from tests.makers.inline import Inline, shorten_calls
from tests.makers.s3 import body, counted, keys, uploads
from tests.makers.s3_server import listening, stores as server

pytestmark = [pytest.mark.usefixtures("in_folder"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
LEAST = 50_000
TARGET = "s3://bucket/made"


@pytest.fixture(autouse=True)
def small_parts(s3, monkeypatch):
    """5 MiB are 50 KB."""
    set_least(monkeypatch, LEAST)


def set_least(monkeypatch, size: int) -> None:
    """Let the store take parts from this number of bytes on."""
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", size)
    monkeypatch.setattr(s3_composing, "_LEAST", size)


@pytest.fixture
def counting(s3, monkeypatch):
    with counted(monkeypatch) as made:
        yield made


def stored(s3, *sizes: int) -> list[Path]:
    """Create objects of these sizes."""
    chance = random.Random(0)
    for number, size in enumerate(sizes):
        s3.put_object(Bucket="bucket", Key=f"parts/{number:03d} [a]?versionId=1", Body=chance.randbytes(size))
    return [storage.path_of("s3://bucket/parts") / f"{number:03d} [a]?versionId=1" for number in range(len(sizes))]


def put_together(paths: list[Path], skip: int = 0, overwrite: bool = True, size: int = 1 << 20) -> bytes:
    """Write an object of others, each without its first bytes, and some bytes before, after and between them."""
    made = bytearray()
    with files.replacing(storage.path_of(TARGET), overwrite=overwrite, composed=size) as sink:
        for number, path in enumerate(paths):
            made += b"between" * number
            sink.write(b"between" * number)
            with path.open("rb") as file:
                data = file.read()
                file.seek(skip)
                sink.copy(file, len(data) - skip)
                assert file.tell() == len(data)
            made += data[skip:]
            assert sink.tell() == len(made)
        sink.write(b"end")
    return bytes(made + b"end")


@pytest.mark.parametrize("sizes", [(60_000, 100, 400_000, 70_000), (10_000,) * 9, (49_999, 500_000), (100,)])
def test_what_is_put_together_has_the_same_bytes(s3, monkeypatch, sizes):
    monkeypatch.setattr(s3_composing, "_COPIED", 120_000)
    paths = stored(s3, *sizes)
    for skip in (0, 77):
        assert put_together(paths, skip) == body(s3, "made")
    assert not uploads(s3)


def test_large_ones_are_copied_by_the_store_as_they_were_read(s3, counting):
    paths = stored(s3, 300_000, 900_000, 20_000, 200_000)
    etags = [s3.head_object(Bucket="bucket", Key=f"parts/{number:03d} [a]?versionId=1")["ETag"] for number in (0, 1, 3)]
    assert put_together(paths) == body(s3, "made")
    assert [copy["HTTP_X_AMZ_COPY_SOURCE_IF_MATCH"] for copy in counting.copies] == etags


def test_a_large_object_has_no_more_parts_than_the_store_takes(s3, monkeypatch):
    monkeypatch.setattr(s3_composing, "_PARTS", 5)
    paths = stored(s3, *[60_000] * 10)
    assert put_together(paths, size=600_000) == body(s3, "made")
    number = int(s3.head_object(Bucket="bucket", Key="made")["ETag"].strip('"').split("-")[1])
    assert number <= 6


@pytest.mark.parametrize("after", [0, 1])
def test_a_store_that_copies_nothing_and_one_that_fails_later(s3, counting, monkeypatch, after):
    monkeypatch.setattr("squeeze.system.remote_errors._WAITS", (0.0,))
    counting.refuses = lambda headers: len(counting.copies) > after
    paths = stored(s3, 300_000, 300_000, 300_000)
    if not after:
        assert put_together(paths) == body(s3, "made")
        return
    with pytest.raises(OSError, match="s3://bucket/made: the connection broke: No such function"):
        put_together(paths)
    assert "made" not in keys(s3) and not uploads(s3)


@pytest.mark.parametrize("seed", every(2, range(4)))
def test_storage_that_fails_at_random(s3, monkeypatch, seed):
    """It is whole, or not there, as often as it is tried."""
    import s3fs

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")  # of botocore, which waits for seconds before the fifth
    monkeypatch.setattr("squeeze.system.remote_errors._WAITS", (0.0, 0.0))
    paths, made = stored(s3, 60_000, 100, 400_000, 70_000), b""
    with listening(Faulty(server(), 0.25, seed)) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for _ in range(50):
            s3fs.S3FileSystem.clear_instance_cache()
            with suppress(OSError):
                made = put_together([type(path)(*path.url_and_key) for path in paths])
                break
            assert "made" not in keys(s3) or len(body(s3, "made")) == 530_100 + 3 + 7 * 6
    assert made == body(s3, "made")
    for left in uploads(s3):  # whose begin was not answered
        s3.abort_multipart_upload(Bucket="bucket", Key=left["Key"], UploadId=left["UploadId"])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_fails_is_aborted(s3, error):
    (path,) = stored(s3, 300_000)
    with pytest.raises(error), files.replacing(storage.path_of(TARGET), composed=1 << 20) as sink, path.open() as file:
        sink.copy(file, 300_000)
        assert len(uploads(s3)) == 1
        raise error
    assert "made" not in keys(s3) and not uploads(s3)


def test_what_came_meanwhile_is_kept(s3):
    (path,) = stored(s3, 300_000)
    with (
        pytest.raises(SqueezeError, match="s3://bucket/made already exists"),
        files.replacing(storage.path_of(TARGET), overwrite=False, composed=1 << 20) as sink,
        path.open() as file,
    ):
        sink.copy(file, 300_000)
        s3.put_object(Bucket="bucket", Key="made", Body=b"theirs")
    assert body(s3, "made") == b"theirs" and not uploads(s3)


def test_a_local_file_and_one_that_is_short(s3):
    Path("local").write_bytes(b"x" * 200_000)
    with Path("local").open("rb") as file, files.replacing(storage.path_of(TARGET), composed=1 << 20) as sink:
        sink.copy(file, 200_000)
    assert body(s3, "made") == b"x" * 200_000
    (path,) = stored(s3, 1_000)
    with (
        pytest.raises(OSError, match="what it is made of has become shorter"),
        files.replacing(storage.path_of(TARGET), composed=1 << 20) as sink,
        path.open() as file,
    ):
        sink.copy(file, 2_000)


def test_only_large_parts_in_the_same_store_are_copied(s3):
    small, large = stored(s3, LEAST, 2 * LEAST)
    for target, size, of_small, of_large in (
        (TARGET, 1 << 20, True, True),
        (TARGET, LEAST, False, False),
        ("memory://made", 1 << 20, False, False),
    ):
        with files.replacing(storage.path_of(target), composed=size) as sink, small.open() as one, large.open() as two:
            assert bool(copier(sink, one, LEAST)) == of_small
            sink.write(b"before")
            assert copier(sink, one, LEAST) is None
            assert bool(copier(sink, two, 2 * LEAST)) == of_large


@pytest.fixture
def joining(counting, monkeypatch):
    """Return a function for the bytes sent and received since the last call of a run began, which joins the parts."""
    monkeypatch.setattr("squeeze.system.remote_file._LEAST", 1000)  # as small beside a part as it is beside 5 MiB
    engine = Inline(breaks=lambda call: counting.taken() and None)
    monkeypatch.setattr(engines, "connect", lambda address: engine)
    return counting.taken


def test_parts_of_a_file_are_put_together_by_the_store(s3, joining, monkeypatch):
    """Compressed, few of their bytes pass through the worker; restored, they are read for the checksum."""
    least = LEAST // 2
    set_least(monkeypatch, least)
    shorten_calls(monkeypatch, 0.25)
    data = np.random.default_rng(0).integers(97, 110, 400_077, np.uint8).tobytes()
    s3.put_object(Bucket="bucket", Key="corpus/large", Body=data)
    run("compress", "-1", "--block-size", "150K", "-q", "--rm", "--cluster", "local", "s3://bucket/corpus/large")
    read, written = joining()
    coded = body(s3, "corpus/large.sqz")
    assert coded == squeeze.compress(data, 1, block_size=150 << 10)
    assert written < least + 2_000 and read < least + 30_000 < len(coded) / 3
    run("decompress", "-q", "--rm", "--cluster", "local", "s3://bucket/corpus/large.sqz")
    read, written = joining()
    assert written < 2_000 and len(data) < read < 1.1 * len(data) + 30_000
    assert keys(s3) == ["corpus/large"] and body(s3, "corpus/large") == data and not uploads(s3)


def test_parts_of_a_checkpoint_are_put_together_by_the_store(s3, joining, monkeypatch):
    monkeypatch.setattr(plan, "_MOST", 500_000)
    values = np.random.default_rng(0).normal(size=(8, 100_000)).astype(np.float32)
    write("x.safetensors", {f"layer.{number}": ("F32", (100_000,), row.tobytes()) for number, row in enumerate(values)})
    data = Path("x.safetensors").read_bytes()
    s3.put_object(Bucket="bucket", Key="x.safetensors", Body=data)
    run("pack", "-q", "--cluster", "local", "s3://bucket/x.safetensors", "s3://bucket/y.safetensors")
    read, written = joining()
    squeeze.pack("x.safetensors", "y.safetensors")
    coded = Path("y.safetensors").read_bytes()
    assert body(s3, "y.safetensors") == coded
    assert written < LEAST + 2_000 and read < LEAST + 60_000 < len(coded) / 3
    run("unpack", "-q", "--cluster", "local", "s3://bucket/y.safetensors", "s3://bucket/back.safetensors")
    read, written = joining()
    assert written < 2_000 and len(data) < read < 1.1 * len(data) + 30_000
    assert body(s3, "back.safetensors") == data
