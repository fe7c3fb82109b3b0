"""Packing a checkpoint at a URL: each byte is fetched once, what breaks is asked again, and a stopped run goes on."""

import tempfile
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import squeeze
from squeeze.errors import StorageError
from squeeze.packing import fetch_cache, run
from squeeze.packing.fetch_cache import FetchCache
from squeeze.packing.tensors import content
from squeeze.packing.tensors.content import InMemory
from squeeze.system import parallel, remote_errors, remote_file
from tests.makers.checkpoints import same, write
from tests.makers.floats import as_bf16, weights
from tests.makers.remote import Store
from tests.makers.web import serving

pytestmark = pytest.mark.usefixtures("in_folder")
URL = "fake://bucket/x.safetensors"


@pytest.fixture(autouse=True)
def small(in_folder, monkeypatch):
    """Large is what has 256 KiB; what has more than 512 KiB waits in a file."""
    Store.reset()
    for module in (run, parallel):
        monkeypatch.setattr(module, "LARGE", 1 << 18)
    for module in (content, fetch_cache):
        monkeypatch.setattr(module, "PART", 1 << 16)
    monkeypatch.setattr(fetch_cache, "_IN_MEMORY", 1 << 19)
    monkeypatch.setattr(remote_file, "_AHEAD", 1 << 18)
    monkeypatch.setattr(remote_errors, "_WAITS", (0.0, 0.0, 0.0))


@pytest.fixture
def one_file(monkeypatch):
    """Asserts that there is one temporary file at a time; the number of all."""
    made = []

    def make():
        assert all(file.closed for file in made)
        made.append(tempfile.TemporaryFile())  # noqa: SIM115
        return made[-1]

    monkeypatch.setattr(fetch_cache, "TemporaryFile", make)
    return made


def checkpoint(path="x.safetensors", seed=1):
    """Large tensors beside each other, in memory and in files, and small ones."""
    kept = {}
    for number, rows in enumerate((2_200, 1_100, 100, 3, 900, 40, 40, 1_300)):
        values = weights(rows * 256, seed + number)
        kept[f"bf16 {number}"] = ("BF16", (rows, 256), as_bf16(values).tobytes())
    kept["f32"] = ("F32", (300, 256), weights(300 * 256).astype(np.float32).tobytes())
    kept["zeros"] = ("F16", (900, 256), (weights(900 * 256) * (weights(900 * 256, 2) > 0)).astype("f2").tobytes())
    kept["noise"] = ("U8", (600_000,), np.random.default_rng(0).bytes(600_000))
    return write(path, kept)


def put(path, key):
    data = Path(path).read_bytes()
    Store.put(key, data)
    return data


@pytest.mark.parametrize(("level", "threads"), [("fast", 1), ("fast", 2), ("runtime", 2), ("archive", 1)])
def test_each_byte_is_fetched_once(level, threads, one_file):
    data = put(checkpoint(), "bucket/x.safetensors")
    squeeze.pack(URL, "packed.safetensors", level=level, threads=threads)
    assert len(data) < Store.fetched("bucket/x.safetensors") < 1.1 * len(data)
    assert len(one_file) == 4 and all(file.closed for file in one_file)
    squeeze.pack("x.safetensors", "expected.safetensors", level=level)
    assert same("packed.safetensors", "expected.safetensors")


@pytest.mark.parametrize("level", ["runtime", "archive"])
def test_a_base_is_fetched_once_for_its_hash_and_once_for_its_tensors(level):
    base, data = put(checkpoint("b.safetensors"), "bucket/b"), put(checkpoint(), "bucket/x.safetensors")
    changed = bytearray(data)
    changed[-2_000_000::1_000] = bytes(2_000)
    Store.put("bucket/x.safetensors", changed)
    Store.put("bucket/b.safetensors", base)
    Path("x.safetensors").write_bytes(changed)
    squeeze.pack(URL, "packed.safetensors", level=level, base="fake://bucket/b.safetensors")
    assert Store.fetched("bucket/x.safetensors") < 1.1 * len(data)
    assert Store.fetched("bucket/b.safetensors") < 2.3 * len(data)
    squeeze.pack("x.safetensors", "expected.safetensors", level=level, base="b.safetensors")
    assert same("packed.safetensors", "expected.safetensors")


def test_a_pack_over_http_fetches_each_byte_once():
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'squeeze-neural[cloud]'")
    data = checkpoint().read_bytes()
    with serving({"/x.safetensors": data}) as (url, sent):
        squeeze.pack(f"{url}/x.safetensors", "packed.safetensors", level="fast", threads=2)
        assert len(data) < sum(sent) < 1.1 * len(data)
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == data


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_any_order_is_fetched_in_order(limit, monkeypatch):
    monkeypatch.setattr(fetch_cache, "_IN_MEMORY", limit)
    data, asked, wrong = np.frombuffer(np.random.default_rng(1).bytes(1_000_000), np.uint8), [], []

    class Source(InMemory):
        def fill(self, begin, out):
            asked.append((begin, begin + out.size))
            super().fill(begin, out)

    kept = FetchCache(Source(data))

    def read(seed):
        generator = np.random.default_rng(seed)
        for begin in generator.integers(0, data.size, 50):
            out = np.empty(min(30_000, data.size - begin), np.uint8)
            kept.fill(int(begin), out)
            wrong.extend([begin] if out.tobytes() != data[begin : begin + out.size].tobytes() else [])

    threads = [Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [begin for begin, _ in asked] == [0, *(end for _, end in asked[:-1])] and asked[-1][1] <= data.size
    kept.close()
    with pytest.raises(ValueError, match="the cached tensor is closed"):
        kept.fill(0, np.empty(1, np.uint8))


def test_a_broken_request_is_repeated():
    data = put(checkpoint(), "bucket/x.safetensors")
    Store.fail("get", ConnectionResetError("reset"), after=5, times=3)
    squeeze.pack(URL, "packed.safetensors", level="fast")
    assert Store.failures["get"] == 0
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == data


@pytest.mark.parametrize("level", ["fast", "runtime"])
def test_a_resumed_run_does_not_fetch_packed_tensors(level):
    data = put(checkpoint(), "bucket/x.safetensors")
    Store.fail("get", ConnectionResetError("reset"), after=12)
    with pytest.raises(
        StorageError,
        match=r"^fake://bucket/x.safetensors: the connection broke: reset; repeat the command to resume "
        r"\(with /.*/\.packed\.safetensors\.packing\)$",
    ):
        squeeze.pack(URL, "packed.safetensors", level=level)
    before = Store.fetched("bucket/x.safetensors")
    assert before > 0.4 * len(data)
    Store.failing.clear()
    squeeze.pack(URL, "packed.safetensors", level=level)
    assert Store.fetched("bucket/x.safetensors") < 1.5 * len(data)  # and the tensor at which it broke
    squeeze.pack("x.safetensors", "expected.safetensors", level=level)
    assert same("packed.safetensors", "expected.safetensors")


def test_a_resumed_run_does_not_fetch_finished_files():
    for number in range(2):
        put(checkpoint(f"{number}.safetensors", 20 * number), f"bucket/model/{number}.safetensors")
    Store.put("bucket/model/0.bin", bytes(400_000))
    Store.fail("get", ConnectionResetError("reset"), after=26)
    with pytest.raises(StorageError, match="repeat the command to resume"):
        squeeze.pack("fake://bucket/model", "packed", level="fast")
    assert Store.fetched("bucket/model/1.safetensors") > 0
    Store.failing.clear()
    Store.requests.clear()
    squeeze.pack("fake://bucket/model", "packed", level="fast")
    assert Store.fetched("bucket/model/0.safetensors") < 200_000
    assert Store.fetched("bucket/model/0.bin") < 200_000
    squeeze.unpack("packed", "back")
    for name in ("0.safetensors", "1.safetensors", "0.bin"):
        assert (Path("back") / name).read_bytes() == Store.objects[f"bucket/model/{name}"]


def test_a_changed_object_is_packed_from_the_start():
    put(checkpoint(), "bucket/x.safetensors")
    Store.fail("get", ConnectionResetError("reset"), after=12)
    with pytest.raises(StorageError):
        squeeze.pack(URL, "packed.safetensors", level="fast")
    Store.failing.clear()
    data = put(checkpoint(seed=5), "bucket/x.safetensors")
    squeeze.pack(URL, "packed.safetensors", level="fast")
    squeeze.unpack("packed.safetensors", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == data


def test_a_stopped_run_to_a_url_starts_from_the_beginning():
    put(checkpoint(), "bucket/x.safetensors")
    Store.fail("get", ConnectionResetError("reset"), after=12)
    with pytest.raises(StorageError, match=r"the connection broke: reset; run again$"):
        squeeze.pack(URL, "fake://bucket/packed.safetensors", level="fast")
