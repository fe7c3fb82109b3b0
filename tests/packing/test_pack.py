"""Packed checkpoints: files and folders come back byte for byte, and everything wrong has a named error."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.packing import codings, container
from squeeze.packing.record import Record
from squeeze.system.work import work_folder
from tests.makers.checkpoints import content, model_folder, same, tensors, write
from tests.makers.command import call, names, run
from tests.makers.floats import as_bf16, weights

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "note": 'a "quoted" ö'}, {"squeeze": "adapter 1"}])
@pytest.mark.parametrize("pad", [0, 5])
def test_files_are_restored_byte_for_byte(level, metadata, pad):
    write("a.safetensors", tensors(), metadata, pad)
    totals = squeeze.pack("a.safetensors", "b.safetensors", level=level)
    assert totals.coded == Path("b.safetensors").stat().st_size < totals.raw == Path("a.safetensors").stat().st_size
    assert squeeze.unpack("b.safetensors", "c.safetensors") == totals
    assert same("a.safetensors", "c.safetensors")
    assert squeeze.verify("b.safetensors") == totals
    assert names() == ["a.safetensors", "b.safetensors", "c.safetensors"]


def test_packed_files_are_safetensors_with_the_same_names():
    write("a.safetensors", tensors())
    squeeze.pack("a.safetensors", "b.safetensors")
    payloads = safetensors.numpy.load_file("b.safetensors")
    assert set(payloads) == set(tensors())
    assert all(payload.dtype == np.uint8 for payload in payloads.values())
    described = json.loads(tensorfile.read(Path("b.safetensors")).metadata["squeeze"])
    assert described["sha256"] == hashlib.sha256(Path("a.safetensors").read_bytes()).hexdigest()
    assert described["tensors"][0][:3] == ["BF16", [64, 256], "rans"]


def test_restores_a_header_in_another_order_than_the_data():
    parts = list(tensors().items())
    write("a.safetensors", dict(parts))
    header = tensorfile.read(Path("a.safetensors")).header
    entries = json.loads(header[8:])
    turned = json.dumps(dict(reversed(entries.items()))).encode()
    body = Path("a.safetensors").read_bytes()[len(header) :]
    Path("a.safetensors").write_bytes(len(turned).to_bytes(8, "little") + turned + body)
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


def test_restores_a_file_without_tensors():
    write("a.safetensors", {}, {"format": "pt"})
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


def test_threads_and_verification_make_no_difference():
    write("a.safetensors", tensors(rows=600))
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.pack("a.safetensors", "c.safetensors", threads=2, verify=False)
    assert same("b.safetensors", "c.safetensors")


@pytest.mark.parametrize("level", ["fast", "runtime", "archive"])
def test_deltas_are_small_and_need_their_base(level):
    base = tensors()
    tuned = dict(base)
    values = np.frombuffer(base["layer.weight"][2], np.uint16).copy()
    values[::50] ^= 1
    tuned["layer.weight"] = ("BF16", (64, 256), values.tobytes())
    tuned["new"] = ("F16", (40, 100), weights(4_000).astype(np.float16).tobytes())
    tuned["half"] = ("F16", (32, 200), base["half"][2])
    write("base.safetensors", base)
    write("tuned.safetensors", tuned)
    write("other.safetensors", tensors(seed=9))
    alone = squeeze.pack("tuned.safetensors", "alone.safetensors", level=level).coded
    delta = squeeze.pack("tuned.safetensors", "delta.safetensors", base="base.safetensors", level=level).coded
    assert delta < 0.7 * alone
    squeeze.unpack("delta.safetensors", "back.safetensors", base="base.safetensors")
    assert same("back.safetensors", "tuned.safetensors")
    squeeze.verify("delta.safetensors", base="base.safetensors")
    with pytest.raises(SqueezeError, match="or name the base"):
        squeeze.verify("delta.safetensors")
    with pytest.raises(SqueezeError, match=r"other.safetensors is not the base"):
        squeeze.unpack("delta.safetensors", "no.safetensors", base="other.safetensors")
    with pytest.raises(SqueezeError, match="is not a difference: leave out the base"):
        squeeze.verify("alone.safetensors", base="base.safetensors")
    assert not Path("no.safetensors").exists()


def unlike(seed):
    return {"w": ("BF16", (50, 200), as_bf16(weights(10_000, seed)).tobytes())}


def test_a_base_that_saves_nothing_is_left_out():
    """Nor told of by the file, and that is said."""
    for number, name in enumerate(("one", "two")):
        write(f"{name}.safetensors", unlike(number))
        Path(name).mkdir()
        write(f"{name}/model.safetensors", unlike(number))
    for suffix in (".safetensors", ""):
        result = call("pack", f"two{suffix}", f"out{suffix}", "--base", f"one{suffix}")
        assert result.exit_code == 0
        assert result.stderr.splitlines()[-1] == (
            f"Note: two{suffix}: packed without the base, since no tensor is smaller as the difference from one{suffix}"
        )
        run("verify", f"out{suffix}")
    run("unpack", "out.safetensors", "back.safetensors")
    assert same("back.safetensors", "two.safetensors")
    run("unpack", "out", "back")
    assert content("back") == content("two")
    assert [json.loads(line)["base"] for line in call("history", "--json", "out").stdout.splitlines()] == [[]]


def test_one_file_of_several_may_be_a_difference():
    for name, seed in (("one", 1), ("two", 2)):
        Path(name).mkdir()
        write(f"{name}/a.safetensors", {"same": unlike(5)["w"]})
        write(f"{name}/b.safetensors", unlike(seed))
    assert squeeze.pack("two", "packed", base="one").notes == ()
    described = [container.read(Path("packed", name)).description.base for name in ("a.safetensors", "b.safetensors")]
    assert len(described[0]) == 2 and described[1] == ()
    squeeze.unpack("packed", "back", base="one")
    assert content("back") == content("two")


class Stop(KeyboardInterrupt):
    pass


def test_a_stopped_pack_continues_where_it_was(monkeypatch):
    model_folder("model")
    coded = []
    original = codings.encode_in_memory

    def encode(subject, level):
        if len(coded) == 7:
            raise Stop
        coded.append(subject.form.shape)
        return original(subject, level)

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    with pytest.raises(Stop):
        squeeze.pack("model", "packed")
    assert not Path("packed").exists()
    monkeypatch.setattr(
        codings, "encode_in_memory", lambda subject, level: coded.append(subject.form.shape) or original(subject, level)
    )
    squeeze.pack("model", "packed")
    assert coded == [shape for _, shape, _ in tensors().values()]
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")
    assert names() == ["back", "model", "packed"]


@pytest.mark.parametrize("change", ["cut", "byte", "journal", "source"])
def test_a_stopped_packs_damaged_work_is_done_again(monkeypatch, change):
    write("a.safetensors", tensors())
    original, count = codings.encode_in_memory, iter(range(100))

    def encode(*rest):
        if next(count) == 4:
            raise Stop
        return original(*rest)

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    with pytest.raises(Stop):
        squeeze.pack("a.safetensors", "b.safetensors")
    monkeypatch.setattr(codings, "encode_in_memory", original)
    work = Path(".b.safetensors.packing")
    partial = work / "content.partial"
    if change == "cut":
        os.truncate(partial, partial.stat().st_size - 100)
    elif change == "byte":
        data = bytearray(partial.read_bytes())
        data[-5_000] ^= 1
        partial.write_bytes(data)
    elif change == "journal":
        (work / "journal").write_text((work / "journal").read_text()[:-20])
    else:
        write("a.safetensors", tensors(seed=5))
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


def test_a_source_changed_while_packing_was_stopped_is_noticed(monkeypatch):
    """Even where its size and times are as before."""
    path = write("a.safetensors", tensors())
    original = codings.encode_in_memory

    def encode(subject, level):
        if subject.form.dtype == "F16":
            raise Stop
        return original(subject, level)

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    with pytest.raises(Stop):
        squeeze.pack("a.safetensors", "b.safetensors")
    monkeypatch.setattr(codings, "encode_in_memory", original)
    times = path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[2_000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times, times))
    with pytest.raises(SqueezeError, match="changed since packing was stopped"):
        squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


def test_an_interrupt_tells_how_to_continue(monkeypatch):
    write("a.safetensors", tensors())

    def encode(*rest):
        raise Stop

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    result = call("pack", "a.safetensors", "b.safetensors")
    assert result.exit_code == 1
    place = Path.cwd() / ".b.safetensors.packing"
    assert result.stderr == (
        "Error: interrupted; unfinished files were left unchanged; "
        f"finished work is kept in {place}: repeat the command to resume\n"
    )
    assert place.is_dir()


def test_two_packs_of_one_target_exclude_each_other():
    write("a.safetensors", tensors())
    with (
        work_folder(Path("b.safetensors"), "packing", {}),
        pytest.raises(SqueezeError, match="is being written by another process"),
    ):
        squeeze.pack("a.safetensors", "b.safetensors")


def test_mutated_packed_files_never_restore_wrong_bytes():
    write("a.safetensors", tensors(rows=8))
    squeeze.pack("a.safetensors", "b.safetensors")
    whole, generator = Path("b.safetensors").read_bytes(), np.random.default_rng(6)
    for number in range(300):
        hurt = bytearray(whole)
        if number % 3 == 0:
            hurt = hurt[: generator.integers(0, len(hurt))]
        for _ in range(number % 3):
            hurt[generator.integers(0, len(hurt))] = generator.integers(0, 256)
        Path("hurt.safetensors").write_bytes(hurt)
        try:
            squeeze.unpack("hurt.safetensors", "c.safetensors", overwrite=True)
        except (SqueezeError, MemoryError):
            continue
        assert same("a.safetensors", "c.safetensors")


def test_every_damaged_payload_is_named():
    write("a.safetensors", tensors())
    squeeze.pack("a.safetensors", "b.safetensors")
    for tensor in container.read(Path("b.safetensors")).file.tensors:
        if not tensor.size:
            continue
        hurt = bytearray(Path("b.safetensors").read_bytes())
        hurt[tensor.begin + tensor.size // 2] ^= 0x10
        Path("hurt.safetensors").write_bytes(hurt)
        with pytest.raises(DamagedError, match=f"tensor {tensor.name!r}"):
            squeeze.verify("hurt.safetensors")


def test_refuses_names_that_are_not_of_checkpoints():
    Path("model.onnx").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FormatError, match=r"^model.onnx: not a checkpoint: expected a .safetensors file, "):
        squeeze.pack("model.onnx", "b.safetensors")
    Path("m").mkdir()
    Path("m/model.onnx").write_bytes(b"PK")
    with pytest.raises(FormatError, match=r"^m: no safetensors or PyTorch file in this folder$"):
        squeeze.pack("m", "packed")


def test_refuses_targets_that_cannot_be_written():
    write("a.safetensors", tensors())
    model_folder("model")
    squeeze.pack("a.safetensors", "b.safetensors")
    before = Path("b.safetensors").read_bytes()
    for source, target, words in (
        ("a.safetensors", "b.safetensors", "already exists; use `overwrite=True` to overwrite"),
        ("a.safetensors", "a.safetensors", "input and output are the same"),
        ("a.safetensors", "model", "is a folder"),
        ("model", "a.safetensors", "is a file"),
        ("model", "model/packed", "cannot be in the input"),
        ("a.safetensors", "no/b.safetensors", "the folder no does not exist"),
        ("b.safetensors", "c.safetensors", "is packed already"),
    ):
        with pytest.raises(SqueezeError, match=words):
            squeeze.pack(source, target, overwrite=source == target)
    assert Path("b.safetensors").read_bytes() == before
    squeeze.pack("a.safetensors", "b.safetensors", overwrite=True)
    with pytest.raises(FileNotFoundError):
        squeeze.pack("nothing.safetensors", "c.safetensors")
    with pytest.raises(FormatError, match="not a packed checkpoint"):
        squeeze.unpack("a.safetensors", "c.safetensors")
    with pytest.raises(FormatError, match="not a packed folder"):
        squeeze.unpack("model", "c")
    with pytest.raises(SqueezeError, match="level must be one of fast, runtime, archive, got 'best'"):
        squeeze.pack("a.safetensors", "c.safetensors", level="best")


def test_a_source_that_changes_is_an_error(monkeypatch):
    path = write("a.safetensors", tensors())
    original = codings.encode_in_memory

    def encode(*rest):
        os.utime(path, ns=(1, 1))
        return original(*rest)

    monkeypatch.setattr(codings, "encode_in_memory", encode)
    with pytest.raises(SqueezeError, match="changed while it was read"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert names() == ["a.safetensors"]


def test_verification_finds_a_fault_of_the_machine(monkeypatch):
    write("a.safetensors", tensors())
    original = Record.decode
    monkeypatch.setattr(Record, "decode", lambda *rest: original(*rest) ^ 1)
    with pytest.raises(SqueezeError, match="memory or processor is faulty"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert names() == ["a.safetensors"]


def test_the_callback_gets_the_bytes_of_each_tensor():
    model_folder("model")
    told = []
    totals = squeeze.pack("model", "packed", on_tensor=lambda *sizes: told.append(sizes))
    raw, coded = map(sum, zip(*told, strict=True))
    assert 0 < coded < raw <= totals.raw and coded < totals.coded


def test_progress_counts_every_raw_byte():
    model_folder("model")
    for use in (
        lambda tick: squeeze.pack("model", "packed", progress=tick),
        lambda tick: squeeze.unpack("packed", "back", progress=tick),
        lambda tick: squeeze.verify("packed", progress=tick),
    ):
        counts = []
        use(counts.append)
        assert sum(counts) == sum(map(len, content("model").values()))


def test_pack_unpack_and_verify_work_on_the_command_line():
    model_folder("model")
    for command in (
        ("pack", "-T", "2", "model", "packed"),
        ("unpack", "packed", "back"),
        ("verify", "packed"),
    ):
        result = call(*command)
        assert (result.exit_code, result.output) == (0, "")
    assert content("back") == content("model")
    result = call("verify", "--json", "packed")
    assert json.loads(result.stdout)["raw_size"] == sum(map(len, content("model").values()))
    result = call("pack", "model", "packed")
    assert (result.exit_code, result.stderr) == (1, "Error: packed already exists; use -f to overwrite\n")
    result = call("verify", "model")
    assert (result.exit_code, result.stderr) == (1, "Error: model: not a packed folder: it has no squeeze.json\n")
    result = call("verify", "nothing")
    assert result.exit_code == 1
    assert "No such file" in result.stderr
