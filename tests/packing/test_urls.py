"""Checkpoints at URLs in Python: what is fetched of them, and what lies on the disk meanwhile."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.packing.safe_open import OpenError
from squeeze.system import remote_errors
from tests.makers.checkpoints import model_folder, tensors, write
from tests.makers.remote import Store

pytestmark = pytest.mark.usefixtures("in_folder")
LEAST = 1 << 16


@pytest.fixture(autouse=True)
def store(in_folder):
    Store.reset()


def packed(rows=2_000, **options):
    """A packed file at a URL and on the disk; the tensors that it is of."""
    kept = tensors(rows=rows)
    write("x.safetensors", kept)
    squeeze.pack("x.safetensors", "packed.safetensors", **options)
    Store.put("bucket/packed.safetensors", Path("packed.safetensors").read_bytes())
    return kept


@pytest.mark.parametrize("level", ["runtime", "fast"])
def test_one_tensor_fetches_only_its_bytes(level):
    kept = packed(level=level)
    with squeeze.safe_open("fake://bucket/packed.safetensors", framework="np") as file:
        header = Store.ranges()
        assert file.get_tensor("half").tobytes() == kept["half"][2]
        taken = Store.ranges()[len(header) :]
    assert header == [(0, LEAST)] and len(taken) == 1
    with squeeze.safe_open("packed.safetensors", framework="np") as file:
        assert taken[0][1] - taken[0][0] == file._records["half"][0].size
    with pytest.raises(OpenError, match="File is closed"):
        file.get_tensor("half")


def test_slices_of_a_tensor_at_a_url():
    kept = packed()
    half = np.frombuffer(kept["half"][2], np.float16).reshape(kept["half"][1])
    with squeeze.safe_open("fake://bucket/packed.safetensors", framework="np") as file:
        part = file.get_slice("half")
        for index in (slice(3, 9), slice(-5, None), 7, (slice(1_000, 1_001), slice(5))):
            assert np.array_equal(part[index].view(np.uint16), half[index].view(np.uint16))
        assert np.array_equal(file.get_slice("noise")[5:9], np.frombuffer(kept["noise"][2], np.uint8)[5:9])


@pytest.mark.parametrize(
    ("dtype", "level"),
    [*((dtype, "runtime") for dtype in ("bfloat16", "float32", "float64", "int32", "uint8")), ("bfloat16", "fast")],
)
def test_rows_fetch_only_their_segments(dtype, level):
    import torch
    from safetensors.torch import save_file

    drawn = torch.randn((3_000, 400), generator=torch.Generator().manual_seed(1)) * 3
    save_file({"x": drawn.abs().to(getattr(torch, dtype))}, "x.safetensors")
    squeeze.pack("x.safetensors", "packed.safetensors", level=level)
    coded = Path("packed.safetensors").read_bytes()
    Store.put("bucket/packed.safetensors", coded)
    with (
        squeeze.safe_open("fake://bucket/packed.safetensors", framework="pt") as there,
        squeeze.safe_open("packed.safetensors", framework="pt") as here,
    ):
        rows, same = there.get_slice("x"), here.get_slice("x")
        before = len(Store.ranges())
        assert torch.equal(rows[1_500:1_510], same[1_500:1_510])
        taken = Store.ranges()[before:]
        assert torch.equal(rows[2_990:], same[2_990:]) and torch.equal(rows[:1], same[:1])
        assert torch.equal(rows[:], same[:])
    with pytest.raises(OpenError, match="File is closed"):
        rows[100:200]
    assert sum(end - begin for begin, end in taken) < len(coded) / 3


def test_rows_of_an_unpacked_file_are_fetched_alone():
    kept = tensors(rows=4_000)
    Store.put("bucket/x.safetensors", write("x.safetensors", kept).read_bytes())
    with squeeze.safe_open("fake://bucket/x.safetensors", framework="np") as file:
        header = Store.ranges()
        rows = file.get_slice("half")[1_000:1_400]
        taken = Store.ranges()[len(header) :]
        assert file.get_tensor("half").tobytes() == kept["half"][2]
        whole = Store.ranges()[len(header) + len(taken) :]
    assert rows.tobytes() == kept["half"][2][1_000 * 200 : 1_400 * 200]
    assert [end - begin for begin, end in header + taken + whole] == [LEAST, 400 * 200, 4_000 * 200]


def test_refuses_urls_that_cannot_be_opened(monkeypatch):
    monkeypatch.setattr(remote_errors, "_WAITS", (0.0,))
    Store.put("bucket/text.safetensors", b"no checkpoint at all")
    with pytest.raises(OpenError, match=r"^fake://bucket/text.safetensors: not a safetensors file: "):
        squeeze.safe_open("fake://bucket/text.safetensors", framework="np")
    packed()
    Store.put("bucket/x.safetensors", Path("x.safetensors").read_bytes())
    for name in ("x", "packed"):
        said = f"^fake://bucket/{name}.safetensors: the connection broke: reset; run again$"
        with squeeze.safe_open(f"fake://bucket/{name}.safetensors", framework="np") as file:
            part = file.get_slice("half")
            Store.fail("get", ConnectionResetError("reset"))
            with pytest.raises(OpenError, match=said):
                file.get_tensor("half")
            with pytest.raises(OpenError, match=r"the connection broke: reset; run again$"):
                part[5:9]
        with pytest.raises(OpenError, match=said):
            squeeze.safe_open(f"fake://bucket/{name}.safetensors", framework="np")
        Store.failing.clear()
    with pytest.raises(FileNotFoundError):
        squeeze.safe_open("fake://bucket/none.safetensors", framework="np")


def test_load_reads_a_url():
    kept = packed()
    weights = squeeze.load("fake://bucket/packed.safetensors")
    assert set(weights) == set(kept)
    assert weights["half"].numpy().tobytes() == kept["half"][2]
    assert squeeze.verify("fake://bucket/packed.safetensors") == squeeze.verify("packed.safetensors")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_packing_streams_its_source(suffix, monkeypatch):
    """Each byte is read about once, and nothing of the source lies on the disk."""
    if suffix == "pt":
        import torch

        torch.save({"weight": torch.randn(400, 1_000), "other": torch.randn(300, 500)}, "x.pt")
    else:
        write("x.safetensors", tensors(rows=4_000))
    data = Path(f"x.{suffix}").read_bytes()
    Store.put(f"bucket/x.{suffix}", data)
    Path("scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(Path("scratch").resolve()))
    seen = []

    def look(count):
        seen.append(sum(path.stat().st_size for path in Path("scratch").rglob("*") if path.is_file()))

    totals = squeeze.pack(f"fake://bucket/x.{suffix}", f"fake://bucket/packed.{suffix}", progress=look)
    assert sum(end - begin for begin, end in Store.ranges()) < 1.3 * len(data)
    assert 0 < max(seen) < totals.coded + 4_096 and not list(Path("scratch").iterdir())
    squeeze.unpack(f"fake://bucket/packed.{suffix}", f"back.{suffix}")
    assert Path(f"back.{suffix}").read_bytes() == data


def test_a_source_that_changes_while_it_is_packed_is_an_error():
    write("x.safetensors", tensors(rows=3_000))
    data = Path("x.safetensors").read_bytes()
    Store.put("bucket/x.safetensors", data)
    with pytest.raises((squeeze.VerifyError, OSError), match="changed"):
        squeeze.pack(
            "fake://bucket/x.safetensors", "out.safetensors", progress=lambda n: Store.put("bucket/x.safetensors", data)
        )
    assert not Path("out.safetensors").exists()


def test_a_stopped_run_from_a_url_continues():
    model_folder("model")
    for path in Path("model").rglob("*.*"):
        Store.put(f"hub/model/{path.relative_to('model').as_posix()}", path.read_bytes())

    def stop(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        squeeze.pack("fake://hub/model", "packed", progress=stop)
    assert Path(".packed.packing").is_dir()
    squeeze.pack("fake://hub/model", "packed")
    squeeze.unpack("packed", "back")
    for path in Path("model").rglob("*.*"):
        assert (Path("back") / path.relative_to("model")).read_bytes() == path.read_bytes()


def test_packs_from_a_hub_url(monkeypatch):
    """hf:// as huggingface_hub has it, by a filesystem that stands for it."""
    from fsspec.registry import _registry

    class Hub(Store):
        protocol = "hf"

    monkeypatch.setitem(_registry, "hf", Hub)
    model_folder("model")
    for path in Path("model").rglob("*.*"):
        Store.put(f"owner/model/{path.relative_to('model').as_posix()}", path.read_bytes())
    squeeze.pack("hf://owner/model", "packed")
    squeeze.pack("model", "other")
    assert Path("packed/squeeze.json").read_bytes() == Path("other/squeeze.json").read_bytes()


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("fake://m/x", "fake://m/x", "input and output are the same"),
        ("fake://m/x", "fake://m", "the input cannot be in the output folder"),
        ("fake://m/x", "fake://m/x/packed", "the output cannot be in the input folder"),
    ],
)
def test_refuses_a_source_and_target_that_contain_each_other(source, target, said):
    model_folder(Path("model"))
    for path in Path("model").rglob("*"):
        if path.is_file():
            Store.put(f"m/x/{path.relative_to('model')}", path.read_bytes())
    Store.put("m/other", b"unrelated")
    before = dict(Store.objects)
    for act in (squeeze.pack, squeeze.unpack):
        with pytest.raises(squeeze.SqueezeError, match=said):
            act(source, target, overwrite=True)
    assert Store.objects == before
