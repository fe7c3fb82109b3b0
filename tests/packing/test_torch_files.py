"""Files of torch.save and of torch.distributed.checkpoint: packed without running anything, and back byte for byte."""

import json
import random
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed import checkpoint as distributed

import squeeze
from squeeze.checkpoint import torch_file
from squeeze.errors import FormatError, SqueezeError
from squeeze.packing import container
from squeeze.packing.chain import history
from tests.makers.checkpoints import content, model_folder, same
from tests.makers.command import call, run
from tests.makers.torch_files import Training, comes_back

pytestmark = pytest.mark.usefixtures("in_folder")
DTYPES = [
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "complex64", "complex128"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
]


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


def test_refuses_to_pack_a_packed_file(state):
    squeeze.pack(state, "packed.pt")
    with pytest.raises(FormatError, match="is packed already; unpack it first"):
        squeeze.pack("packed.pt", "twice.pt")


def compressed(path: Path) -> None:
    """Compress the entries of an archive, which torch loads as well."""
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
