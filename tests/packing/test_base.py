"""Chains of differences: packed bases, found beside what differs from them."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import squeeze
from squeeze.errors import DamagedError, FormatError, SqueezeError
from squeeze.packing import base, container
from squeeze.packing.description import Description
from squeeze.packing.history import history
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


def test_a_chain_is_small_and_comes_back(run):
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
    with pytest.raises(SqueezeError, match="name its base with --base, or put its packed base beside it"):
        squeeze.unpack("delta.safetensors", "no.safetensors")


def test_a_missing_link_is_named(run):
    Path("packed", run[1]).unlink()
    with pytest.raises(SqueezeError, match=r"step-2.safetensors is stored as a difference, and no packed checkpoint"):
        squeeze.unpack(f"packed/{run[3]}", "back.safetensors")
    with pytest.raises(SqueezeError, match="put its packed base beside it"):
        squeeze.unpack(f"packed/{run[2]}", "back.safetensors")
    assert not Path("back.safetensors").exists()


def test_a_base_that_differs_by_a_bit_is_found_out(run):
    data = bytearray(Path("packed", run[0]).read_bytes())
    data[len(data) // 2] ^= 4
    Path("packed", run[0]).write_bytes(data)
    with pytest.raises(DamagedError, match=r"the base .*step-0.safetensors: tensor 'w'"):
        squeeze.unpack(f"packed/{run[3]}", "back.safetensors")
    assert not Path("back.safetensors").exists()


def test_limits_hold_for_all_that_is_read(run, monkeypatch):
    """Also for what is only looked at to find a base."""
    limits, original, asked = Limits(memory=1 << 30), Description.from_text, []

    def from_text(text, limits):
        asked.append(limits)
        return original(text, limits)

    monkeypatch.setattr(Description, "from_text", from_text)
    for use in (squeeze.verify, squeeze.load):
        use(f"packed/{run[3]}", limits=limits)
    assert len(asked) > 8 and all(one is limits for one in asked)


def test_a_chain_has_an_end(run, monkeypatch):
    monkeypatch.setattr(base, "MAX_CHAIN", 1)
    squeeze.verify(f"packed/{run[2]}")
    with pytest.raises(SqueezeError, match="a chain of more than 1 differences"):
        squeeze.verify(f"packed/{run[3]}")


def test_after_so_many_differences_one_is_packed_whole(run):
    for most, is_whole in ((4, False), (3, True)):
        squeeze.pack(run[3], "packed/next.safetensors", base=f"packed/{run[3]}", max_chain=most, overwrite=True)
        assert (container.read(Path("packed/next.safetensors")).description.base == ()) == is_whole


def test_history(run):
    shown = call("history", f"packed/{run[3]}")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[0] == ["raw", "packed", "ratio", "SHA-256", "checkpoint"]
    assert [row[-1] for row in rows[1:]] == [f"packed/{name}" for name in reversed(run)]
    Path("packed", run[1]).unlink()
    found = [json.loads(line) for line in call("history", "--json", f"packed/{run[3]}").stdout.splitlines()]
    assert [Path(link["path"]).name if link["path"] else None for link in found] == [run[3], run[2], None]
    assert found[1]["base"] == found[2]["sha256"]
    assert "no packed checkpoint beside has it" in call("history", f"packed/{run[3]}").stdout
    assert fails("history", run[0]) == f"Error: {run[0]}: not a packed checkpoint\n"


def broken(folder):
    """A packed folder whose index names a shard that is not there."""
    model_folder("model")
    squeeze.pack("model", folder)
    Path(folder, "model-00001-of-00002.safetensors").unlink()


def test_a_neighbour_that_is_broken_is_passed_over(run):
    broken("packed/another")
    squeeze.unpack(f"packed/{run[3]}", "back.safetensors")
    assert same("back.safetensors", run[3])
    assert len(list(history(f"packed/{run[3]}"))) == 4
    with pytest.raises(FormatError, match=r"the shard model-00001-of-00002.safetensors is missing"):
        squeeze.unpack("packed/another", "back")


def test_a_neighbour_that_cannot_be_looked_into_is_passed_over(run, monkeypatch):
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


def test_folders_are_bases_packed(tmp_path):
    for name in ("one", "two"):
        model_folder(name, seed=1)
    Path("packed").mkdir()
    squeeze.pack("one", "packed/one")
    squeeze.pack("two", "packed/two", base="packed/one")
    squeeze.unpack("packed/two", "back")
    assert content("back") == content("two")
    squeeze.verify("packed/two", base="one")
