"""Packed bases, found in the folder of the difference."""

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.packing import base, container
from squeeze.packing.chain import history
from squeeze.packing.description import Description
from squeeze.packing.folder import sha256_of
from squeeze.packing.safe_open import OpenError
from squeeze.recipes.measure.inspect import inspect
from squeeze.system.limits import Limits
from tests.makers.checkpoints import content, model_folder, same, write
from tests.makers.command import call, fails
from tests.makers.floats import as_bf16, weights


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> list[str]:
    """Four checkpoints of a run, the first packed alone, the others each as its difference from the one before."""
    generator, values = np.random.default_rng(3), as_bf16(weights(40_000))
    names = [f"step-{number}.safetensors" for number in range(4)]
    Path("packed").mkdir()
    for number, name in enumerate(names):
        values = values ^ (generator.random(values.size) < 0.02).astype(np.uint16)
        write(name, {"w": ("BF16", (200, 200), values.tobytes()), "bias": ("BF16", (200,), values[:200].tobytes())})
        before = f"packed/{names[number - 1]}" if number else None
        squeeze.pack(name, f"packed/{name}", base=before, level=("runtime", "archive")[number % 2])
    return names


def test_a_chain_is_small_and_restores_every_checkpoint(run):
    sizes = [Path("packed", name).stat().st_size for name in run]
    assert max(sizes[1:]) < 0.5 * sizes[0]
    for name in run:
        squeeze.verify(f"packed/{name}")
        squeeze.unpack(f"packed/{name}", "back.safetensors", overwrite=True)
        assert same("back.safetensors", name)
        expected = load_file(name)
        assert all(torch.equal(tensor, expected[key]) for key, tensor in squeeze.load(f"packed/{name}").items())


def test_a_base_is_the_same_packed_or_not(run):
    squeeze.unpack(f"packed/{run[1]}", "back.safetensors", base=run[0])
    assert same("back.safetensors", run[1])
    squeeze.pack(run[1], "delta.safetensors", base=run[0])
    squeeze.unpack("delta.safetensors", "again.safetensors", base=f"packed/{run[0]}")
    assert same("again.safetensors", run[1])
    with pytest.raises(SqueezeError, match=r"^delta.safetensors is stored as .*: put it there, or name the base$"):
        squeeze.unpack("delta.safetensors", "no.safetensors")


def missing(name: str, digest: str) -> str:
    return f"packed/{name} is stored as a difference, and its base is not in the same folder (SHA-256 {digest}): "


def test_the_message_names_a_missing_base(run):
    digest = sha256_of(Path(run[1]))[:16]
    Path("packed", run[1]).unlink()
    said = missing(run[2], digest)
    assert fails("unpack", f"packed/{run[3]}", "back.safetensors") == f"Error: {said}put it there\n"
    assert fails("verify", f"packed/{run[2]}") == f"Error: {said}put it there, or name the base\n"
    with pytest.raises(SqueezeError, match=re.escape(said)):
        squeeze.load(f"packed/{run[2]}")
    with pytest.raises(OpenError, match=f"^{re.escape(said)}"):
        squeeze.safe_open(f"packed/{run[2]}", framework="np")
    with pytest.raises(SqueezeError, match=re.escape(said)):
        list(inspect(f"packed/{run[2]}"))
    assert not Path("back.safetensors").exists()


def test_refuses_a_base_that_differs_by_a_bit(run):
    path = Path("packed", run[0])
    data = bytearray(path.read_bytes())
    data[-30] ^= 4
    path.write_bytes(data)
    for use in (squeeze.verify, lambda path: dict(squeeze.load(path))):
        with pytest.raises(DamagedError) as caught:
            use(f"packed/{run[3]}")
        assert str(caught.value).removeprefix(f"packed/{run[3]}: ") == (
            f"the base {path}: tensor 'bias': its checksum differs: the file is damaged"
        )
    assert fails("unpack", f"packed/{run[3]}", "back.safetensors").count("bias") == 1
    assert not Path("back.safetensors").exists()


def cut(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-9])
    return "the file ends 9 bytes too early: it was cut off"


def spoilt(path: Path) -> str:
    path.write_bytes(path.read_bytes().replace(b'"data_offsets"', b'"data_offset\\"', 1))
    return "not a safetensors file: its header is not JSON"


def other_words(path: Path) -> str:
    path.write_bytes(path.read_bytes().replace(b"sha256", b"sha257", 1))
    return "the description of the packed checkpoint is damaged: its checksum differs"


@pytest.mark.parametrize("harm", [cut, spoilt, other_words])
def test_the_message_names_an_unreadable_base(run, harm):
    Path("packed/notes.pt").write_bytes(b"no checkpoint")
    write("packed/plain.safetensors", {})
    fault = f"packed/{run[0]} cannot be read: {harm(Path('packed', run[0]))}"
    digest = sha256_of(Path(run[0]))[:16]
    with pytest.raises(DamagedError) as caught:
        squeeze.unpack(f"packed/{run[2]}", "back.safetensors")
    assert str(caught.value) == missing(run[1], digest) + fault
    assert call("history", f"packed/{run[1]}").stdout.endswith(
        f" {digest}  no packed checkpoint in this folder has it; {fault}\n"
    )
    found = json.loads(call("history", "--json", f"packed/{run[1]}").stdout.splitlines()[-1])
    assert found["path"] is None and found["faults"] == [fault]
    assert fails("history", f"packed/{run[0]}") == f"Error: {fault}\n"
    assert fails("pack", "--base", f"packed/{run[0]}", run[1], "other").startswith(f"Error: packed/{run[0]}: ")


def test_the_message_names_an_unreadable_folder():
    for folder in ("one", "two"):
        model_folder(folder)
    Path("packed").mkdir()
    squeeze.pack("one", "packed/one")
    squeeze.pack("two", "packed/two", base="packed/one")
    manifest, shard = Path("packed/one/squeeze.json"), Path("packed/one/model-00002-of-00002.safetensors")
    manifest.write_bytes(manifest.read_bytes()[:-9])
    squeeze.verify("packed/two")  # which needs the weights alone
    assert fails("history", "packed/one").startswith(f"Error: {manifest}")
    squeeze.pack("one", "packed/one", overwrite=True)
    fault = f"{shard} cannot be read: {cut(shard)}"
    with pytest.raises(DamagedError, match=rf"^packed/two is stored .*\): {fault}$"):
        squeeze.verify("packed/two")


def test_history_refuses_a_missing_path():
    assert fails("history", "nothing") == "Error: nothing: No such file or directory\n"


def test_limits_hold_for_bases_too(run, monkeypatch):
    """Also for what is only looked at to find a base."""
    limits, original, asked = Limits(memory=1 << 30), Description.from_text, []

    def from_text(text, limits):
        asked.append(limits)
        return original(text, limits)

    monkeypatch.setattr(Description, "from_text", from_text)
    for use in (squeeze.verify, squeeze.load):
        use(f"packed/{run[3]}", limits=limits)
    assert len(asked) > 8 and all(one is limits for one in asked)


def test_refuses_a_chain_without_end(run, monkeypatch):
    monkeypatch.setattr(base, "MAX_CHAIN", 1)
    squeeze.verify(f"packed/{run[2]}")
    with pytest.raises(SqueezeError, match="the chain of differences is longer than 1"):
        squeeze.verify(f"packed/{run[3]}")


def test_max_chain_packs_a_checkpoint_whole(run):
    for most, is_whole in ((4, False), (3, True)):
        squeeze.pack(run[3], "packed/next.safetensors", base=f"packed/{run[3]}", max_chain=most, overwrite=True)
        assert (container.read(Path("packed/next.safetensors")).description.base == ()) == is_whole


def test_history_prints_the_links_of_a_chain(run):
    shown = call("history", f"packed/{run[3]}")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["raw", "packed", "ratio", "SHA-256", "checkpoint"]
    assert [row[-1] for row in rows[1:]] == [f"packed/{name}" for name in reversed(run)]
    Path("packed", run[1]).unlink()
    found = [json.loads(line) for line in call("history", "--json", f"packed/{run[3]}").stdout.splitlines()]
    assert [Path(link["path"]).name if link["path"] else None for link in found] == [run[3], run[2], None]
    assert found[1]["base"] == found[2]["sha256"]
    assert "no packed checkpoint in this folder has it" in call("history", f"packed/{run[3]}").stdout
    assert fails("history", run[0]) == f"Error: {run[0]}: not a packed checkpoint\n"


def broken(folder):
    """A packed folder whose index names a shard that is not there."""
    model_folder("model")
    squeeze.pack("model", folder)
    Path(folder, "model-00001-of-00002.safetensors").unlink()


def test_a_broken_neighbour_is_skipped(run):
    broken("packed/another")
    squeeze.unpack(f"packed/{run[3]}", "back.safetensors")
    assert same("back.safetensors", run[3])
    assert len(list(history(f"packed/{run[3]}"))) == 4
    with pytest.raises(FormatError, match=r"the shard model-00001-of-00002.safetensors is missing"):
        squeeze.unpack("packed/another", "back")


def test_a_neighbour_without_permission_is_skipped(run, monkeypatch):
    """Such as lost+found: up to Python 3.13 is_file raises where a folder may not be searched."""
    real = Path.is_file
    Path("packed/lost+found").mkdir()

    def is_file(path, **options):
        if path.parent.name == "lost+found":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "is_file", is_file)
    squeeze.unpack(f"packed/{run[3]}", "back.safetensors")
    assert same("back.safetensors", run[3])


def test_packed_folders_are_bases(tmp_path):
    for name in ("one", "two"):
        model_folder(name, seed=1)
    Path("packed").mkdir()
    squeeze.pack("one", "packed/one")
    squeeze.pack("two", "packed/two", base="packed/one")
    squeeze.unpack("packed/two", "back")
    assert content("back") == content("two")
    squeeze.verify("packed/two", base="one")
