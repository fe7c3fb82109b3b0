"""Checkpoints by calls of an engine: the bytes that one machine writes, in parts, going on, faults named."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import squeeze
from squeeze.cluster import engine as engines
from squeeze.cluster.checkpoints import plan
from squeeze.cluster.run import ATTEMPTS
from tests.makers.checkpoints import content, model_folder, tensors, write
from tests.makers.command import call, fails, names, run, usage_error
from tests.makers.inline import Inline
from tests.makers.remote import Store

pytestmark = pytest.mark.usefixtures("in_folder")
CLUSTER = ("-q", "--cluster", "local")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Inline:
    made = Inline()
    monkeypatch.setattr(engines, "connect", lambda address: made)
    Store.reset()
    return made


@pytest.fixture
def in_parts(monkeypatch):
    """Parts are so small that each tensor of some size is one."""
    monkeypatch.setattr(plan, "_MOST", 20_000)


def a_folder(name: str = "model", tied: bool = True) -> Path:
    model_folder(name, tied=tied)
    torch = pytest.importorskip("torch")
    torch.save({"moments": torch.arange(60_000, dtype=torch.float32)}, Path(name, "optimizer.pt"))
    return Path(name)


def to_store(folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            Store.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def in_store(prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(f"{prefix}/"): data for key, data in Store.objects.items() if key.startswith(f"{prefix}/")}


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
def test_a_folder_there_and_back(engine, in_parts, level):
    a_folder()
    squeeze.pack("model", "one", level=level)
    run("pack", "--level", level, *CLUSTER, "model", "packed")
    assert content("packed") == content("one") and engine.calls > 10
    engine.calls = 0
    run("unpack", *CLUSTER, "packed", "back")
    assert content("back") == content("model") and engine.calls > 5
    run("verify", *CLUSTER, "packed")
    assert names() == ["back", "model", "one", "packed"]


def test_from_url_to_url(engine, in_parts):
    to_store(a_folder(tied=False), "bucket/model")  # at URLs, equal tensors are not looked for
    squeeze.pack("model", "one")
    Store.requests.clear()
    run("pack", *CLUSTER, "fake://bucket/model", "fake://bucket/packed")
    assert in_store("bucket/packed") == content("one")
    done = [key for kind, key, *_ in Store.requests if kind == "complete"]
    assert done[-1] == "bucket/packed/squeeze.json" and not Store.uploads
    run("unpack", *CLUSTER, "fake://bucket/packed", "fake://bucket/back")
    assert in_store("bucket/back") == in_store("bucket/model")
    run("verify", *CLUSTER, "fake://bucket/packed")
    assert names() == [".back.unpack.jsonl", ".packed.pack.jsonl", "model", "one"]
    for _ in range(2):
        assert "already exists" in fails("pack", *CLUSTER, "fake://bucket/model", "fake://bucket/packed")
        assert "already exists" in fails("pack", *CLUSTER, "fake://bucket/model", "fake://bucket/back")
    assert ".back.pack.jsonl" not in names()
    Store.put("bucket/packed/stale", b"")
    run("pack", "-f", *CLUSTER, "fake://bucket/model", "fake://bucket/packed")
    assert "stale" not in in_store("bucket/packed")


def test_one_file_and_a_difference(engine, in_parts):
    base = tensors()
    write("base.safetensors", base)
    values = np.frombuffer(base["layer.weight"][2], np.uint16).copy()
    values[::50] ^= 1
    write("tuned.safetensors", base | {"layer.weight": ("BF16", (64, 256), values.tobytes())})
    squeeze.pack("tuned.safetensors", "one.safetensors", base="base.safetensors")
    run("pack", "--base", "base.safetensors", *CLUSTER, "tuned.safetensors", "two.safetensors")
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()
    run("unpack", "--base", "base.safetensors", *CLUSTER, "two.safetensors", "back.safetensors")
    assert Path("back.safetensors").read_bytes() == Path("tuned.safetensors").read_bytes()
    run("verify", "--base", "base.safetensors", *CLUSTER, "two.safetensors")
    write("unlike.safetensors", {"layer.weight": base["wide"]})
    notes = squeeze.pack("unlike.safetensors", "one.safetensors", base="base.safetensors", overwrite=True).notes
    result = call("pack", "-f", "--base", "base.safetensors", *CLUSTER[1:], "unlike.safetensors", "two.safetensors")
    assert result.exit_code == 0 and f"Note: {notes[0]}\n" in result.stderr
    assert Path("one.safetensors").read_bytes() == Path("two.safetensors").read_bytes()
    run("verify", *CLUSTER, "two.safetensors")


@pytest.mark.parametrize("place", ["", "fake://bucket/"])
def test_the_same_command_goes_on(engine, in_parts, place):
    to_store(a_folder(tied=False), "bucket/model")  # at URLs, equal tensors are not looked for
    squeeze.pack("model", "one")

    def stops(call):
        if call.name.startswith("join model-00002"):
            raise KeyboardInterrupt

    engine.breaks = stops
    command = ("pack", *CLUSTER, f"{place}model", f"{place}packed")
    assert call(*command).exit_code == 1
    engine.waiting.clear()
    engine.breaks, engine.calls = lambda call: None, 0
    Store.requests.clear()
    run(*command)
    if place:
        written = {key for kind, key, *_ in Store.requests if kind == "complete"}
        assert not any(".parts/" in key for key in written)
        assert in_store("bucket/packed") == content("one")
    else:
        assert content("packed") == content("one")
        assert names() == ["model", "one", "packed"]


def test_parts_that_fail_are_named_and_the_others_go_on(engine, in_parts):
    a_folder()

    def breaks(call):
        if call.function.__name__ == "part" and call.arguments[0].file.source.name.startswith("model-00001"):
            raise RuntimeError("killed")

    engine.breaks = breaks
    said = fails("pack", *CLUSTER, "model", "packed")
    assert said == (
        f"Error: model/model-00001-of-00002.safetensors: its worker was lost, {ATTEMPTS} times: killed\n"
        f"Error: 1 of 7 files failed; finished work is kept in {Path.cwd()}/.packed.packing: "
        "repeat the command to resume\n"
    )
    assert not Path("packed").exists()
    engine.breaks, engine.calls = lambda call: None, 0
    run("pack", *CLUSTER, "model", "packed")
    assert engine.calls < 10
    run("verify", "-q", "packed")


def test_lost_calls_leave_nothing(engine, in_parts):
    a_folder()
    squeeze.pack("model", "one")
    lost = []

    def breaks(call):
        lost.append(call)
        if len(lost) % 3 == 1:
            mark = call.arguments[-1].value.mark
            place = call.arguments[-1].value.options["root"].parent / ".packed.packing/content"
            place.mkdir(exist_ok=True)
            (place / f".x.abcdefgh{mark}.tmp").write_bytes(b"half")
            raise RuntimeError("killed")

    engine.breaks = breaks
    run("pack", *CLUSTER, "model", "packed")
    assert content("packed") == content("one") and names() == ["model", "one", "packed"]


def test_a_damaged_tensor_is_named(engine, in_parts):
    a_folder()
    run("pack", *CLUSTER, "model", "packed")
    path = Path("packed/model-00002-of-00002.safetensors")
    data = bytearray(path.read_bytes())
    data[-500] ^= 1
    path.write_bytes(data)
    for command in (("verify", *CLUSTER, "packed"), ("unpack", *CLUSTER, "packed", "back")):
        said = fails(*command)
        assert "model-00002-of-00002.safetensors: tensor" in said and "1 of" in said
    assert not Path("back").exists()
    model_folder("other", seed=2)
    squeeze.pack("other", "other-packed")
    shutil.copy(Path("other-packed", path.name), path)
    assert "it is not the file that its folder lists" in fails("verify", *CLUSTER, "packed")
    Path("packed/tokenizer.json").write_text("{ }")
    assert "tokenizer.json: the restored file has another SHA-256" in fails("verify", *CLUSTER, "packed")
    Path("packed/tokenizer.json").unlink()
    assert "tokenizer.json is missing" in fails("verify", *CLUSTER, "packed")


def test_refuses_options_and_sources_that_do_not_fit(engine):
    model_folder("model")
    assert "--manifest belongs" in usage_error("pack", "--manifest", "m", "model", "packed")
    assert "--manifest belongs" in usage_error("unpack", "--manifest", "m", "model", "packed")
    assert "leave out --cluster" in usage_error("pack", "--follow", "--cluster", "local", "model", "packed")
    assert "next to the target" in fails("pack", "--manifest", "m", *CLUSTER, "model", "packed")
    assert "No such file" in fails("pack", *CLUSTER, "nothing", "packed")
    run("pack", *CLUSTER, "model", "packed")
    assert "packed already" in fails("pack", *CLUSTER, "packed/model-00001-of-00002.safetensors", "x.safetensors")
    assert "not a packed folder" in fails("unpack", *CLUSTER, "model", "x")
    assert "would be written, and the limit is 1,000" in fails(
        "unpack", "--max-output", "1000", *CLUSTER, "packed", "x"
    )
    assert names() == ["model", "packed"]
