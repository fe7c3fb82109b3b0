"""Packed checkpoints: files and folders come back byte for byte, and everything wrong has a named error."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from click.testing import CliRunner

import squeeze
from squeeze import cli
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, SqueezeError, TruncatedError
from squeeze.packing import container, folder
from squeeze.system.in_order import in_order
from squeeze.system.work import work_folder
from tests.codecs.tensors.test_floats import as_bf16, weights


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(path, tensors, metadata=None, pad=0):
    """A safetensors file of {name: (dtype, shape, bytes)}, its header padded with `pad` spaces."""
    entries, at = {}, 0
    if metadata is not None:
        entries["__metadata__"] = metadata
    for name, (dtype, shape, data) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(entries).encode() + b" " * pad
    body = b"".join(data for _, _, data in tensors.values())
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + body)
    return Path(path)


def tensors(seed=1, rows=64):
    layer = as_bf16(weights(rows * 256, seed))
    return {
        "layer.weight": ("BF16", (rows, 256), layer.tobytes()),
        "empty": ("F32", (0, 7), b""),
        "scalar": ("F32", (), np.float32(2.5).tobytes()),
        "half": ("F16", (rows, 100), weights(rows * 100, seed + 1).astype(np.float16).tobytes()),
        "ids": ("I64", (1, 512), np.arange(512).tobytes()),
        "mask": ("BOOL", (300,), bytes(300)),
        "wide": ("F32", (3, 50, 60), weights(9_000, seed + 2).astype(np.float32).tobytes()),
        "tied ö": ("BF16", (rows, 256), layer.tobytes()),
        "fp8": ("F8_E4M3", (64, 64), (as_bf16(weights(4_096)) >> 4).astype(np.uint8).tobytes()),
        "noise": ("U8", (999,), np.random.default_rng(0).bytes(999)),
    }


def model_folder(path, seed=1):
    """A sharded folder as Hugging Face has it."""
    path = Path(path)
    (path / "sub").mkdir(parents=True)
    all_tensors = tensors(seed)
    order = list(all_tensors)
    shards = {
        "model-00001-of-00002.safetensors": order[:5],
        "model-00002-of-00002.safetensors": order[5:],
    }
    for shard, part in shards.items():
        write(path / shard, {name: all_tensors[name] for name in part}, {"format": "pt"})
    index = {
        "metadata": {"total_size": sum(len(data) for _, _, data in all_tensors.values())},
        "weight_map": {name: shard for shard, part in shards.items() for name in part},
    }
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text('{"model_type": "llama",   "hidden_size": 64}\n')
    (path / "tokenizer.json").write_text("{}")
    (path / "sub" / "notes.txt").write_bytes(b"\0\1\2")
    return path


def names():
    return sorted(path.name for path in Path().iterdir())


def same(one, other):
    return Path(one).read_bytes() == Path(other).read_bytes()


def content(root):
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(Path(root).rglob("*")) if p.is_file()}


@pytest.mark.parametrize("level", ["runtime", "archive"])
@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "note": 'a "quoted" ö'}])
@pytest.mark.parametrize("pad", [0, 5])
def test_files_come_back_byte_for_byte(level, metadata, pad):
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


def test_a_header_in_another_order_than_the_data():
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


def test_a_file_without_tensors():
    write("a.safetensors", {}, {"format": "pt"})
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.unpack("b.safetensors", "c.safetensors")
    assert same("a.safetensors", "c.safetensors")


def test_threads_and_verification_make_no_difference():
    write("a.safetensors", tensors(rows=600))
    squeeze.pack("a.safetensors", "b.safetensors")
    squeeze.pack("a.safetensors", "c.safetensors", threads=2, verify=False)
    assert same("b.safetensors", "c.safetensors")


def test_folders_come_back_byte_for_byte():
    model_folder("model")
    totals = squeeze.pack("model", "packed")
    assert totals.coded == sum(map(len, content("packed").values()))
    assert squeeze.unpack("packed", "back") == totals
    assert content("back") == content("model")
    assert squeeze.verify("packed") == totals
    assert names() == ["back", "model", "packed"]


def test_a_packed_folder_keeps_its_index_true():
    model_folder("model")
    squeeze.pack("model", "packed")
    index = json.loads(Path("packed/model.safetensors.index.json").read_text())
    sizes = 0
    for name, shard in index["weight_map"].items():
        sizes += tensorfile.read(Path("packed") / shard).by_name[name].size
    assert index["metadata"]["total_size"] == sizes
    config = json.loads(Path("packed/config.json").read_text())
    assert config.pop("quantization_config") == {"quant_method": "squeeze", "dtype": "bfloat16"}
    assert config == json.loads(Path("model/config.json").read_text())


@pytest.mark.parametrize("level", ["runtime", "archive"])
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
    with pytest.raises(SqueezeError, match="name its base with --base"):
        squeeze.verify("delta.safetensors")
    with pytest.raises(SqueezeError, match=r"other.safetensors is not the base"):
        squeeze.unpack("delta.safetensors", "no.safetensors", base="other.safetensors")
    with pytest.raises(SqueezeError, match="needs no base"):
        squeeze.verify("alone.safetensors", base="base.safetensors")
    assert not Path("no.safetensors").exists()


def test_a_folder_as_the_base_of_a_folder():
    model_folder("base", seed=1)
    model_folder("tuned", seed=1)
    squeeze.pack("tuned", "delta", base="base")
    assert sum(map(len, content("delta").values())) < 0.6 * sum(map(len, content("tuned").values()))
    squeeze.unpack("delta", "back", base="base")
    assert content("back") == content("tuned")


class Stop(KeyboardInterrupt):
    pass


def test_a_stopped_pack_goes_on_where_it_was(monkeypatch):
    model_folder("model")
    coded = []
    original = container.encode_tensor

    def encode(data, tensor, *rest):
        if len(coded) == 7:
            raise Stop
        coded.append(tensor.name)
        return original(data, tensor, *rest)

    monkeypatch.setattr(container, "encode_tensor", encode)
    with pytest.raises(Stop):
        squeeze.pack("model", "packed")
    assert not Path("packed").exists()
    monkeypatch.setattr(container, "encode_tensor", lambda *rest: coded.append(rest[1].name) or original(*rest))
    squeeze.pack("model", "packed")
    assert coded == list(tensors())
    squeeze.unpack("packed", "back")
    assert content("back") == content("model")
    assert names() == ["back", "model", "packed"]


@pytest.mark.parametrize("change", ["cut", "byte", "journal", "source"])
def test_what_a_stopped_pack_left_is_not_trusted(monkeypatch, change):
    write("a.safetensors", tensors())
    original, count = container.encode_tensor, iter(range(100))

    def encode(*rest):
        if next(count) == 4:
            raise Stop
        return original(*rest)

    monkeypatch.setattr(container, "encode_tensor", encode)
    with pytest.raises(Stop):
        squeeze.pack("a.safetensors", "b.safetensors")
    monkeypatch.setattr(container, "encode_tensor", original)
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
    original = container.encode_tensor

    def encode(data, tensor, *rest):
        if tensor.name == "half":
            raise Stop
        return original(data, tensor, *rest)

    monkeypatch.setattr(container, "encode_tensor", encode)
    with pytest.raises(Stop):
        squeeze.pack("a.safetensors", "b.safetensors")
    monkeypatch.setattr(container, "encode_tensor", original)
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


def test_an_interrupt_says_how_to_go_on(monkeypatch):
    write("a.safetensors", tensors())

    def encode(*rest):
        raise Stop

    monkeypatch.setattr(container, "encode_tensor", encode)
    result = call("pack", "a.safetensors", "b.safetensors")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Stopped; the same command goes on from here.",
        "Error: interrupted; nothing was replaced",
    ]


def test_two_packs_of_one_target_exclude_each_other():
    write("a.safetensors", tensors())
    with (
        work_folder(Path("b.safetensors"), "packing", {}),
        pytest.raises(SqueezeError, match="is being written by another process"),
    ):
        squeeze.pack("a.safetensors", "b.safetensors")


def header(entries):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


def entry(begin, end, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


BAD = {
    "": (TruncatedError, "within the first 8 bytes"),
    "ff" * 8: (FormatError, "header would be"),
    (1000).to_bytes(8, "little").hex(): (TruncatedError, "within its header"),
    header(b"nonsense").hex(): (FormatError, "not JSON"),
    header(b"\xff\xfe{}").hex(): (FormatError, "not JSON"),
    header(b"[" * 200_000).hex(): (FormatError, "not JSON"),
    header(b"[]").hex(): (FormatError, "not a JSON object"),
    header({"__metadata__": {"a": 1}}).hex(): (FormatError, "not a table of strings"),
    header(b'{"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}, "a": 2}').hex(): (FormatError, "twice"),
    header({"a": 7}).hex(): (FormatError, "not one of dtype"),
    (header({"a": entry(0, 8)}) + bytes(3)).hex(): (TruncatedError, "5 bytes too early"),
    (header({"a": entry(0, 8)}) + bytes(9)).hex(): (FormatError, "1 bytes follow the last tensor"),
    (header({"a": entry(0, 8), "b": entry(4, 12)}) + bytes(12)).hex(): (FormatError, "overlaps the one before"),
    (header({"a": entry(0, 8), "b": entry(9, 12)}) + bytes(12)).hex(): (FormatError, "leaves a hole"),
    (header({"a": entry(0, 8, "F32")}) + bytes(8)).hex(): (FormatError, "do not fit F32"),
    (header({"a": entry(0, 8, "F99")}) + bytes(8)).hex(): (FormatError, "dtype 'F99' is unknown"),
    header({"a": entry(0, 8, shape=[1 << 70])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 8, shape=[-8])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 8, shape=[True])}).hex(): (FormatError, "is impossible"),
    header({"a": entry(0, 1 << 62, shape=[1 << 62])}).hex(): (TruncatedError, "too early"),
    header({"a": {"dtype": "U8", "shape": [8], "data_offsets": [0]}}).hex(): (FormatError, "offsets"),
    header({"a": {"dtype": "U8", "shape": [8], "data_offsets": [8, 0]}}).hex(): (FormatError, "do not fit"),
}


@pytest.mark.parametrize("bad", list(BAD), ids=range(len(BAD)))
def test_bad_files_have_named_errors(bad):
    error, words = BAD[bad]
    Path("bad.safetensors").write_bytes(bytes.fromhex(bad))
    with pytest.raises(error, match=words) as caught:
        squeeze.pack("bad.safetensors", "b.safetensors")
    assert type(caught.value) is error
    assert "bad.safetensors" in str(caught.value)
    assert names() == ["bad.safetensors"]


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


def test_folders_with_faults_have_named_errors():
    root = model_folder("model")
    (root / "model-00002-of-00002.safetensors").rename("elsewhere")
    with pytest.raises(FormatError, match=r"the shard model-00002-of-00002.safetensors is missing"):
        squeeze.pack("model", "packed")
    write(root / "model-00002-of-00002.safetensors", {})
    with pytest.raises(FormatError, match=r"tensor '.*' is not in model-00002"):
        squeeze.pack("model", "packed")
    Path("elsewhere").replace(root / "model-00002-of-00002.safetensors")
    os.truncate(root / "model-00002-of-00002.safetensors", 5_000)
    with pytest.raises(TruncatedError, match=r"model-00002-of-00002.safetensors: the file ends"):
        squeeze.pack("model", "packed")
    assert names() == ["model"]


def test_a_changed_packed_folder_is_refused():
    model_folder("model")
    squeeze.pack("model", "packed")
    Path("packed/tokenizer.json").write_text("{ }")
    with pytest.raises(DamagedError, match=r"tokenizer.json: the SHA-256"):
        squeeze.unpack("packed", "back")
    Path("packed/tokenizer.json").unlink()
    with pytest.raises(DamagedError, match=r"tokenizer.json is missing"):
        squeeze.verify("packed")
    assert names() == ["model", "packed"]


@pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil", "", "a//b", "."])
def test_a_manifest_cannot_write_outside_its_folder(name):
    model_folder("model")
    squeeze.pack("model", "packed")
    manifest = json.loads(Path("packed/squeeze.json").read_text())
    manifest["files"][name] = "0" * 64
    Path("packed/squeeze.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedError, match="is damaged"):
        squeeze.unpack("packed", "back")


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "other"])
def test_pytorch_files_are_refused_with_the_way_to_convert_them(name):
    Path(name).write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(FormatError, match=r"weights_only=True.*save_file"):
        squeeze.pack(name, "b.safetensors")
    Path("m").mkdir()
    Path("m/pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(FormatError, match="weights_only=True"):
        squeeze.pack("m", "packed")


def test_targets_that_may_not_be_written():
    write("a.safetensors", tensors())
    model_folder("model")
    squeeze.pack("a.safetensors", "b.safetensors")
    before = Path("b.safetensors").read_bytes()
    for source, target, words in (
        ("a.safetensors", "b.safetensors", "already exists; use -f"),
        ("a.safetensors", "a.safetensors", "input and output are the same"),
        ("a.safetensors", "model", "is a folder"),
        ("model", "a.safetensors", "is a file"),
        ("model", "model/packed", "may not lie in the input"),
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
    with pytest.raises(SqueezeError, match="level 'best' is unknown"):
        squeeze.pack("a.safetensors", "c.safetensors", level="best")


def test_overwriting_a_folder():
    model_folder("model")
    squeeze.pack("model", "packed")
    before = content("packed")
    with pytest.raises(SqueezeError, match="already exists"):
        squeeze.pack("model", "packed")
    Path("packed/more").write_text("left over")
    squeeze.pack("model", "packed", overwrite=True)
    assert content("packed") == before


def test_a_source_that_changes_is_noticed(monkeypatch):
    path = write("a.safetensors", tensors())
    original = container.encode_tensor

    def encode(*rest):
        os.utime(path, ns=(1, 1))
        return original(*rest)

    monkeypatch.setattr(container, "encode_tensor", encode)
    with pytest.raises(SqueezeError, match="changed while it was read"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert names() == ["a.safetensors"]


def test_a_fault_of_the_machine_is_noticed(monkeypatch):
    write("a.safetensors", tensors())
    original = container.decode_tensor
    monkeypatch.setattr(container, "decode_tensor", lambda *rest: original(*rest) ^ 1)
    with pytest.raises(SqueezeError, match="memory or processor is faulty"):
        squeeze.pack("a.safetensors", "b.safetensors")
    assert names() == ["a.safetensors"]


def test_progress_counts_every_raw_byte():
    model_folder("model")
    for run in (
        lambda tick: squeeze.pack("model", "packed", progress=tick),
        lambda tick: squeeze.unpack("packed", "back", progress=tick),
        lambda tick: squeeze.verify("packed", progress=tick),
    ):
        counts = []
        run(counts.append)
        assert sum(counts) == sum(map(len, content("model").values()))


def call(*arguments):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments], prog_name="squeeze")


def test_commands():
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


def test_inspect_of_packed_and_plain_files_agrees():
    write("a.safetensors", tensors())
    squeeze.pack("a.safetensors", "b.safetensors")
    plain, packed = (json.loads(call("inspect", "--json", f"{name}.safetensors").stdout) for name in "ab")
    assert plain == packed
    layer = plain["tensors"][0]
    assert (layer["name"], layer["coding"], layer["values"], layer["raw"]) == ("layer.weight", "rans", 16384, 32768)
    values = np.frombuffer(tensors()["layer.weight"][2], np.uint16)
    shares = np.bincount(values >> 7 & 0xFF) / values.size
    shares = shares[shares > 0]
    assert layer["fields"]["exponent"] == pytest.approx(-(shares * np.log2(shares)).sum())
    assert layer["bound"] == pytest.approx(sum(layer["fields"].values()) * 16384 / 8)
    assert layer["gap"] == pytest.approx(100 * (layer["coded"] / layer["bound"] - 1))
    assert plain["totals"][-1]["coded"] == sum(entry["coded"] for entry in plain["tensors"])
    table = call("inspect", "b.safetensors").stdout
    assert len(table.splitlines()) == 1 + len(plain["tensors"]) + len(plain["totals"])
    assert "exponent" in table


def test_inspect_knows_the_base():
    write("base.safetensors", tensors())
    write("tuned.safetensors", tensors())
    squeeze.pack("tuned.safetensors", "delta.safetensors", base="base.safetensors")
    found = [
        json.loads(call("inspect", "--json", "--base", "base.safetensors", f"{name}.safetensors").stdout)
        for name in ("tuned", "delta")
    ]
    assert found[0] == found[1]
    assert found[0]["tensors"][0]["coding"] == "delta+rans"


def test_manifest_of_a_future_version_is_refused():
    model_folder("model")
    squeeze.pack("model", "packed")
    path = Path("packed") / folder.MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2 is unknown: use a newer squeeze"):
        squeeze.verify("packed")


@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_come_in_order_whatever_their_sizes(threads):
    sizes = [100, 5 << 20, 3 << 20, 1, 3 << 20, 3 << 20, 6 << 20, 7]
    taken, given = [], []

    def tasks():
        for number, size in enumerate(sizes):
            taken.append(number)
            yield size, lambda threads, number=number: (number, threads)

    for result in in_order(tasks(), threads):
        given.append(result)
        ahead = sum(sizes[number] for number in taken[len(given) :])
        assert ahead <= (8 << 20) + max(sizes)
    assert [number for number, _ in given] == list(range(len(sizes)))
    assert {sizes[number] for number, used in given if used > 1} == ({5 << 20, 6 << 20} if threads > 1 else set())


def test_a_failure_among_tensors_side_by_side_is_raised():
    def fails(threads):
        raise DamagedError("no")

    results = in_order([(1 << 21, lambda threads: 0), (1, fails), (1, lambda threads: 1)], 2)
    assert next(results) == 0
    with pytest.raises(DamagedError, match="no"):
        next(results)
