"""Files of torch.save and of torch.distributed.checkpoint: packed without running anything, and back byte for byte."""

import contextlib
import io
import json
import pickle
import random
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as distributed

import squeeze
from squeeze.checkpoint import pickled, torch_file, torch_storages
from squeeze.checkpoint.torch_storages import storages
from squeeze.errors import DamagedError, FormatError, LimitError, SqueezeError, TruncatedError
from squeeze.packing import container, training_run
from squeeze.packing.chain import history
from squeeze.packing.pack import Totals
from squeeze.system.limits import Limits
from tests.fuzz import mutations, tensorfiles
from tests.makers.checkpoints import content, model_folder, same
from tests.makers.command import call, fails, run

pytestmark = pytest.mark.usefixtures("in_folder")

DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "complex64", "complex128"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
]


class Training:
    """A network of some hundred kilobytes, and AdamW's state of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 128)).square().mean().backward()
        self.optimizer.step()


@pytest.fixture
def training() -> Training:
    made = Training()
    made.step()
    return made


@pytest.fixture
def state(training) -> Path:
    torch.save(training.optimizer.state_dict(), "optimizer.pt")
    return Path("optimizer.pt")


def comes_back(source: Path | str, **options: object) -> Totals:
    totals = squeeze.pack(source, "packed", overwrite=True, **options)
    squeeze.verify("packed")
    squeeze.unpack("packed", "back", overwrite=True)
    if Path(source).is_dir():
        assert content(source) == content("back")
    else:
        assert same(source, "back")
    return totals


@pytest.mark.parametrize("level", ["runtime", "archive"])
def test_an_optimizer_state_is_restored(state, level):
    totals = comes_back(state, level=level)
    assert totals.coded < 0.95 * totals.raw and not totals.notes
    records = {t.name: r for t, r in zip(*_tensors("packed"), strict=True)}
    assert records["state.0.exp_avg"].shape == (128, 128) and records["state.2.exp_avg_sq"].dtype == "F32"
    assert torch.load("back", weights_only=True)["param_groups"][0]["lr"] == 1e-5


def _tensors(path: str):
    packed = container.read(Path(path))
    return packed.file.tensors, packed.description.records


@pytest.mark.parametrize("is_zip", [True, False])
def test_every_dtype_and_view_is_restored(is_zip):
    made = {name: torch.arange(3000).to(getattr(torch, name)) for name in DTYPES if name != "bool"}
    made["bool"] = torch.arange(3000) % 3 == 0
    whole = torch.randn(40, 50)
    made |= {"whole": whole, "view": whole[3:9], "turned": whole.T, "parameter": torch.nn.Parameter(torch.ones(100))}
    torch.save({"weights": made, "step": 7, "more": [("a", {1, 2}), None, b"bytes", 1 << 80]}, "all.pt",
               _use_new_zipfile_serialization=is_zip)  # fmt: skip
    found = torch_file.read(Path("all.pt"))
    assert found.can_run == ()
    dtypes = {tensor.name.removeprefix("weights."): tensor.dtype for tensor in found.file.tensors}
    assert dtypes["bfloat16"] == "BF16" and dtypes["whole"] == "F32" and dtypes["complex128"] == "F64"
    assert dtypes["float8_e4m3fn"] == "F8_E4M3" and dtypes["uint32"] == "U32"
    assert "view" not in dtypes and "turned" not in dtypes  # of the same storage
    assert comes_back("all.pt").coded < Path("all.pt").stat().st_size


@pytest.mark.parametrize("value", [None, {}, 3, "text", torch.zeros(()), torch.zeros(0, 3), [torch.ones(3)] * 2])
def test_small_and_empty_files_are_restored(value):
    torch.save(value, "small.pth")
    comes_back("small.pth")


def test_a_distributed_checkpoint_is_restored(training):
    Path("step").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is one process
        saved = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        distributed.save(saved, checkpoint_id="step", no_dist=True)
    sizes = {path.name: path.stat().st_size for path in Path("step").iterdir()}
    totals = comes_back("step")
    assert totals.raw == sum(sizes.values())
    assert Path("packed/__0_0.distcp").stat().st_size < 0.95 * sizes["__0_0.distcp"]
    manifest = json.loads(Path("packed/squeeze.json").read_text())
    assert (manifest["format"], manifest["packed"]) == (1, ["__0_0.distcp"])


def trainer_folder(path: str, training: Training, seed: int = 1) -> Path:
    """Make a checkpoint as transformers' Trainer leaves it."""
    folder = model_folder(path, seed)
    torch.save(training.optimizer.state_dict(), folder / "optimizer.pt")
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    torch.save(states, folder / "rng_state.pth")
    return folder


def test_a_folder_of_the_trainer_is_restored(training):
    trainer_folder("one", training)
    totals = comes_back("one")
    assert not totals.notes
    assert Path("packed/optimizer.pt").stat().st_size < Path("one/optimizer.pt").stat().st_size
    assert same("packed/rng_state.pth", "one/rng_state.pth")  # too small to be coded
    assert "layer.weight" in squeeze.load("packed") and "state.0.exp_avg" not in squeeze.load("packed")
    found = {json.dumps(entry["name"]) for entry in json.loads(run("inspect", "--json", "packed").stdout)["tensors"]}
    assert {'"layer.weight"', '"state.0.exp_avg"'} <= found


def test_a_chain_of_folders_is_restored(training):
    Path("run").mkdir()
    for number in range(3):
        trainer_folder(f"{number}", training, seed=1)
        squeeze.pack(f"{number}", f"run/{number}", base=f"run/{number - 1}" if number else None)
        training.step()
    for number in range(3):
        squeeze.verify(f"run/{number}")
        squeeze.unpack(f"run/{number}", f"back-{number}")
        assert content(f"back-{number}") == content(f"{number}")
    sizes = [Path(f"run/{number}/optimizer.pt").stat().st_size for number in range(3)]
    assert max(sizes[1:]) < sizes[0]
    assert [link.path for link in history("run/2")] == [Path(f"run/{number}") for number in (2, 1, 0)]
    run("inspect", "run/2")
    squeeze.unpack("run/1", "again", base="0")
    assert content("again") == content("1")
    for other in ("1", "run/1"):
        with pytest.raises(SqueezeError, match="is not the base that this checkpoint is the difference from"):
            squeeze.verify("run/1", base=other)


def test_a_chain_of_files_is_restored(training):
    Path("run").mkdir()
    for number in range(3):
        torch.save(training.optimizer.state_dict(), f"step-{number}.pt")
        squeeze.pack(f"step-{number}.pt", f"run/{number}.pt", base=f"run/{number - 1}.pt" if number else None)
        training.step()
    squeeze.unpack("run/2.pt", "back.pt")
    assert same("back.pt", "step-2.pt")
    assert len(list(history("run/2.pt"))) == 3
    Path("run/1.pt").unlink()
    with pytest.raises(SqueezeError, match="its base is not in the same folder"):
        squeeze.unpack("run/2.pt", "no.pt")
    assert not Path("no.pt").exists()
    squeeze.unpack("run/2.pt", "with.pt", base="step-1.pt")
    assert same("with.pt", "step-2.pt")


def test_a_base_of_the_other_kind_is_ignored():
    weights = torch.randn(64, 64)
    save_file({"w": weights}, "w.safetensors")
    torch.save({"w": weights}, "w.pt")
    for source, base in (("w.safetensors", "w.pt"), ("w.pt", "w.safetensors")):
        comes_back(source, base=base)


class Bomb:
    def __reduce__(self):
        return Path.touch, (Path("exploded"),)


@pytest.mark.parametrize("is_zip", [True, False])
def test_code_is_never_run(is_zip, training):
    torch.save({"bomb": Bomb(), "state": training.optimizer.state_dict()}, "bomb.pt",
               _use_new_zipfile_serialization=is_zip)  # fmt: skip
    totals = comes_back("bomb.pt")
    assert totals.notes[0].startswith("bomb.pt: names ") and "pathlib" in totals.notes[0]
    assert totals.notes[0].endswith(", which may run code when the file is loaded; packing ran none")
    assert not Path("exploded").exists() and totals.coded < 0.95 * totals.raw
    done = call("pack", "-f", "bomb.pt", "packed")
    assert (done.exit_code, done.stderr) == (0, f"Note: {totals.notes[0]}\n")
    assert json.loads(run("pack", "-qf", "--json", "bomb.pt", "packed").stdout)["notes"] == list(totals.notes)
    assert not Path("exploded").exists()


def test_nothing_is_unpickled(state, monkeypatch):
    def refused(*_):
        raise AssertionError

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    comes_back(state)


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(Bomb()), b"PK\3\4" + bytes(100), bytes(200_000)])
def test_an_invalid_torch_file_is_packed_as_plain_bytes(data):
    Path("odd.bin").write_bytes(data)
    totals = comes_back("odd.bin")
    assert totals.notes[0].endswith("it is packed as plain bytes") and not Path("exploded").exists()


def test_an_invalid_torch_file_in_a_folder_is_copied():
    model_folder("model")
    Path("model/odd.bin").write_bytes(bytes(200_000))
    comes_back("model")
    assert same("model/odd.bin", "packed/odd.bin")


def test_every_truncation_is_restored(state):
    """A truncated file is not one of torch, so it is packed as plain bytes."""
    whole = state.read_bytes()
    for size in (3, 29, 1000, len(whole) // 2, len(whole) - 1):
        Path("cut.pt").write_bytes(whole[:size])
        comes_back("cut.pt")


def test_mutated_files_are_restored(state):
    whole, generator = state.read_bytes(), random.Random(1)
    places = [*range(0, 3000, 211), *(len(whole) - 1 - n for n in range(0, 5000, 499))]
    for place in places:
        hurt = bytearray(whole)
        hurt[place] ^= 1 << generator.randrange(8)
        Path("hurt.pt").write_bytes(hurt)
        squeeze.pack("hurt.pt", "packed.pt", overwrite=True, verify=False)
        squeeze.unpack("packed.pt", "back.pt", overwrite=True)
        assert same("hurt.pt", "back.pt")


def test_other_zip_files_are_restored(state):
    """Entries that are compressed, and such that lie over each other."""
    with zipfile.ZipFile(state) as archive, zipfile.ZipFile("small.pt", "w", zipfile.ZIP_DEFLATED) as made:
        for entry in archive.infolist():
            made.writestr(entry.filename, archive.read(entry))
    comes_back("small.pt")
    with zipfile.ZipFile("other.pt", "w") as made:
        made.writestr("readme", b"text" * 50_000)
    assert comes_back("other.pt").coded < 50_000


@pytest.mark.parametrize("change", [{"places": [5]}, {"places": "x"}, {"format": 2}, {"places": [-1]}])
def test_refuses_a_description_that_contradicts_itself(state, change):
    squeeze.pack(state, "packed")
    path, text = Path("packed"), Path("packed").read_bytes()
    file = tensorfiles.parsed(text)
    described = json.loads(file.header["__metadata__"]["squeeze"])
    for more in ({}, {"places": [7, *described["places"][1:]]} if "places" in change else {}):
        path.write_bytes(file.described("squeeze", {**described, **change, **more}).to_bytes())
        with pytest.raises(FormatError, match=r"is damaged|is unknown|differs"):
            squeeze.unpack(path, "back")
        assert not Path("back").exists()


def test_a_damaged_payload_is_found(state):
    squeeze.pack(state, "packed")
    data = bytearray(Path("packed").read_bytes())
    data[len(data) // 2] ^= 1
    Path("packed").write_bytes(data)
    assert fails("verify", "packed").startswith("Error: packed: tensor 'state.")
    with pytest.raises(DamagedError):
        squeeze.unpack("packed", "back")


def test_mutated_descriptions_never_restore_other_bytes(state):
    squeeze.pack(state, "packed")
    file, expected = tensorfiles.parsed(Path("packed").read_bytes()), state.read_bytes()
    described = json.loads(file.header["__metadata__"]["squeeze"])
    for seed in range(60):
        changed = file.described("squeeze", mutations.mutated(described, random.Random(seed)))
        Path("hurt").write_bytes(changed.to_bytes())
        try:
            squeeze.unpack("hurt", "back", overwrite=True)
        except SqueezeError as error:
            assert str(error).isprintable()
            continue
        assert Path("back").read_bytes() == expected


def test_pickles_from_anywhere_are_read_or_refused(state):
    with zipfile.ZipFile(state) as archive:
        whole = archive.read("optimizer/data.pkl")
    deep = b"\x80\x02)" + b"\x85" * 20_000 + b"."
    wide = b"\x80\x02(" + b"K\x01" * 1000 + b"tq\x00" + b"(h\x00h\x00tq\x00" * 40 + b"."
    number = b"\x80\x02}\x8b" + (4000).to_bytes(4, "little") + b"\x7f" * 4000 + b"K\x01s."
    for data in (deep, wide, number):
        storages(pickled.read(io.BytesIO(data), set()))
    generator = random.Random(0)
    for _ in range(300):
        hurt = bytearray(whole)
        for _ in range(generator.randrange(1, 4)):
            hurt[generator.randrange(len(hurt))] = generator.randrange(256)
        with contextlib.suppress(FormatError):
            storages(pickled.read(io.BytesIO(bytes(hurt)), set()))


def memoized(text: str) -> bytes:
    """Return the opcodes that put a text into the memo, at 0."""
    return b"X" + len(text).to_bytes(4, "little") + text.encode() + b"q\0000"


LONG = memoized("a" * 20_000)
AMPLIFIED = {
    "a long key, often": LONG + b"}K\1}(" + b"h\0)" * 2000 + b"us",
    "many arguments, often": b"(" + b"N" * 5000 + b"tq\0000(" + b"Nh\0R" * 2000 + b"l",
    "a long name, often": LONG + b"(" + b"h\0h\0\x93" * 2000 + b"l",
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_reading_an_amplified_pickle_takes_little_memory(name):
    tracemalloc.start()
    with contextlib.suppress(FormatError):
        storages(pickled.read(io.BytesIO(b"\x80\x02" + AMPLIFIED[name] + b"."), set()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_shape_of_long_numbers_is_not_multiplied(monkeypatch):
    def refused(_):
        raise AssertionError

    monkeypatch.setattr(torch_storages, "prod", refused)
    kept = pickled.Persistent(("storage", pickled.Name("torch.FloatStorage"), "0", "cpu", 8))
    tree = pickled.Node(pickled.Name("torch._utils._rebuild_tensor_v2"), (kept, 0, (1 << 8000,) * 64, ()))
    assert storages(tree)["0"].shape == (8,)


def test_pickles_respect_the_limit_of_memory(state, monkeypatch):
    """They are plain bytes; but a base, whose tensors are to be known, is refused."""
    Path("model").mkdir()
    state.rename("model/optimizer.pt")
    monkeypatch.setattr(pickled, "_STEP_MEMORY", 1 << 50)
    limits = Limits(memory=1 << 30)
    with pytest.raises(LimitError, match=r"^its pickle needs [\d,]+ bytes of memory, and the limit is 1,073,741,824: "):
        torch_file.read(Path("model/optimizer.pt"), limits)
    assert squeeze.pack("model/optimizer.pt", "alone").notes[0].endswith("it is packed as plain bytes")
    assert training_run.why_incomplete(Path("model")) == ""
    comes_back("model")
    assert same("packed/optimizer.pt", "model/optimizer.pt")
    with pytest.raises(LimitError, match=r"^model/optimizer.pt: its pickle needs "):
        squeeze.pack("model", "delta", base="model")


def test_a_zip_with_a_wrong_directory_is_not_a_torch_file():
    with zipfile.ZipFile("odd.pt", "w") as made:
        made.writestr("odd/data.pkl", pickle.dumps(1))
    data = bytearray(Path("odd.pt").read_bytes())
    data[-6:-2] = (1_000_000).to_bytes(4, "little")  # where the directory would begin
    Path("odd.pt").write_bytes(data)
    with pytest.raises(TruncatedError, match=r"^not a whole file of torch.save$"):
        torch_file.read(Path("odd.pt"))
    model_folder("model")
    Path("odd.pt").rename("model/odd.pt")
    comes_back("model")


def test_refuses_to_pack_a_packed_file(state):
    squeeze.pack(state, "packed.pt")
    with pytest.raises(FormatError, match="is packed already; unpack it first"):
        squeeze.pack("packed.pt", "twice.pt")


def compressed(path: Path) -> None:
    """The same archive with its entries compressed, which torch loads, too."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def test_compressed_archives_are_not_changed_and_told_of(state):
    compressed(state)
    assert torch.load(state)["state"]
    why = "a zip archive as torch.save makes them, but with its entries compressed"
    assert comes_back(state).notes == (f"optimizer.pt: {why}: it is packed as plain bytes",)
    model_folder("model")
    state.rename("model/optimizer.pt")
    Path("packed").unlink()
    Path("back").unlink()
    assert comes_back("model").notes == (f"model/optimizer.pt: {why}: it is copied",)
    assert same("packed/optimizer.pt", "model/optimizer.pt")
    assert call("pack", "model", "again").stderr == f"Note: model/optimizer.pt: {why}: it is copied\n"


def test_load_tells_how_to_restore_folders_of_torch(state):
    Path("run").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distributed.save({"w": torch.randn(200, 200)}, checkpoint_id="dcp")
    state.rename("run/optimizer.pt")
    for folder, maker, name in (
        ("dcp", "torch.distributed.checkpoint", "__0_0.distcp"),
        ("run", "torch.save", "optimizer.pt"),
    ):
        squeeze.pack(folder, f"packed-{folder}")
        with pytest.raises(FormatError) as caught:
            squeeze.load(f"packed-{folder}")
        assert str(caught.value) == (
            f"packed-{folder}: a file of {maker}, not of safetensors ({name}): "
            "restore it by `squeeze unpack` and load it with torch"
        )
