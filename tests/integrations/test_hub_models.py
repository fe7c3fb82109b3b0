"""A packed repository loads in transformers by its id, from the hub's cache."""

import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

import squeeze
from tests.makers.hf_models import IDS, tiny_model

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("squeeze.integrations.transformers")
COMMIT = "a" * 40


@pytest.mark.parametrize("shards", [1, 3])
def test_a_repository_loads_by_its_id(tmp_path, monkeypatch, shards):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = tiny_model(tmp_path / "model", tied=False)
    original = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        original.model.layers[1].mlp.up_proj.weight.copy_(original.model.layers[0].mlp.up_proj.weight)  # repeated
    original.save_pretrained(tmp_path / "changed", max_shard_size="10GB" if shards == 1 else "100KB")
    assert (len(list((tmp_path / "changed").glob("*.safetensors"))) > 1) == (shards > 1)
    target = tmp_path / f"cache/models--org--packed/snapshots/{COMMIT}"
    target.parent.mkdir(parents=True)
    squeeze.pack(tmp_path / "changed", target)
    (target / "squeeze.json").unlink()  # transformers does not fetch it
    refs = target.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    _as_blobs(target)
    found = transformers.AutoModelForCausalLM.from_pretrained("org/packed", cache_dir=tmp_path / "cache").eval()
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, original(IDS).logits)


def _as_blobs(snapshot: Path) -> None:
    """Move files to blobs and link them, as the hub's cache has them."""
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(snapshot.iterdir())):
        blob = blobs / f"{number:040}"
        shutil.move(path, blob)
        path.symlink_to(Path("../../blobs") / blob.name)
