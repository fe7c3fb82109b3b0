"""Packed folders: shards, index and manifest come back, and everything wrong has a named error."""

import json
import os
from pathlib import Path

import pytest

import squeeze
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.errors import DamagedError, FormatError, SqueezeError, TruncatedError
from squeeze.packing import folder
from tests.makers.checkpoints import content, model_folder, write
from tests.makers.command import names

pytestmark = pytest.mark.usefixtures("in_folder")


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


def test_a_folder_as_the_base_of_a_folder():
    model_folder("base", seed=1)
    model_folder("tuned", seed=1)
    squeeze.pack("tuned", "delta", base="base")
    assert sum(map(len, content("delta").values())) < 0.6 * sum(map(len, content("tuned").values()))
    squeeze.unpack("delta", "back", base="base")
    assert content("back") == content("tuned")


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


def test_overwriting_a_folder():
    model_folder("model")
    squeeze.pack("model", "packed")
    before = content("packed")
    with pytest.raises(SqueezeError, match="already exists"):
        squeeze.pack("model", "packed")
    Path("packed/more").write_text("left over")
    squeeze.pack("model", "packed", overwrite=True)
    assert content("packed") == before


def test_manifest_of_a_future_version_is_refused():
    model_folder("model")
    squeeze.pack("model", "packed")
    path = Path("packed") / folder.MANIFEST
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(FormatError, match="format 2 is unknown: use a newer squeeze"):
        squeeze.verify("packed")
