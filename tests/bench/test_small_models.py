"""The model with its adapter has the weights that levels 7 to 9 use."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from bench.shared.small_models import original
from squeeze.lm import adapter, models, sources
from tests.makers.cases import every


@pytest.mark.parametrize("name", every(2, ["3.query", "29.down", "7.attention_norm", "final_norm"]))
def test_the_adapter_is_added_to_the_weights(models_folder: Path, name: str) -> None:
    plain, changed = (sources.open_source(original(models_folder, adapted)) for adapted in (False, True))
    expected = adapter.add_adapter(plain, adapter.load(models.BUNDLED_ADAPTER)).tensors[name]
    count = expected.shape[0]
    rounded = torch.from_numpy(np.array(expected.rows(0, count))).bfloat16().float()
    assert np.array_equal(changed.tensors[name].rows(0, count), rounded.numpy())
    assert not np.array_equal(changed.tensors[name].rows(0, count), plain.tensors[name].rows(0, count))


def test_what_an_adapter_does_not_change_is_the_models_own(models_folder: Path) -> None:
    plain, changed = (load_file(original(models_folder, adapted) / "model.safetensors") for adapted in (False, True))
    assert plain.keys() == changed.keys()
    assert torch.equal(plain["model.embed_tokens.weight"], changed["model.embed_tokens.weight"])


@pytest.fixture(scope="module")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")
