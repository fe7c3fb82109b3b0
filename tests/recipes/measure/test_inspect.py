"""`squeeze inspect`: sizes, entropies and bounds, the same of packed and plain files."""

import json

import numpy as np
import pytest

import squeeze
from tests.makers.checkpoints import tensors, write
from tests.makers.command import call

pytestmark = pytest.mark.usefixtures("in_folder")


def test_inspect_of_packed_and_plain_files_agrees():
    write("a.safetensors", tensors())
    squeeze.pack("a.safetensors", "b.safetensors")
    plain, packed = (json.loads(call("inspect", "--json", f"{name}.safetensors").stdout) for name in "ab")
    assert [found.pop("input") for found in (plain, packed)] == ["a.safetensors", "b.safetensors"]
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
    assert found[0] | {"input": ""} == found[1] | {"input": ""}
    assert found[0]["tensors"][0]["coding"] == "delta+rans"
