"""SGLang's plugin, against stand-ins of SGLang's interfaces."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import squeeze
from squeeze.errors import OptionError, SqueezeError
from squeeze.integrations import sglang as plugin
from tests.makers.servers import DefaultModelLoader, install_sglang

pytestmark = pytest.mark.usefixtures("in_folder")


@pytest.fixture
def modules(monkeypatch):
    plugin.loader.cache_clear()
    made = install_sglang(monkeypatch)
    plugin.register()
    plugin.register()  # as in a process that loads plugins twice
    made["sglang.srt.plugins.hook_registry"].HookRegistry.apply_hooks()
    yield made
    plugin.loader.cache_clear()


class ModelConfig:
    """A model's configuration, with the fields that a loader reads."""

    def __init__(self, modules, path):
        self.model_path, self.revision = path, None
        self.hf_config = modules["sglang.srt.utils.hf_transformers.config"].get_config(path)


def model(name: str) -> dict[str, torch.Tensor]:
    """Write a model's folder."""
    torch.manual_seed(0)
    tensors = {f"layers.{n}.weight": torch.randn(32, 64).bfloat16() for n in range(3)}
    Path(name).mkdir()
    Path(name, "config.json").write_text(json.dumps({"model_type": "llama"}))
    save_file(tensors, f"{name}/model.safetensors")
    return tensors


def made_loader(modules, path, load_format="squeeze", **extra):
    config = modules["sglang.srt.configs.load_config"].LoadConfig(load_format, extra)
    return modules["sglang.srt.model_loader.loader"].get_model_loader(config, ModelConfig(modules, path))


def test_a_packed_folder_loads(modules):
    expected = model("model")
    squeeze.pack("model", "packed")
    for path in ("model", "packed"):
        loader = made_loader(modules, path, threads=2)
        assert isinstance(loader, DefaultModelLoader)
        found = dict(loader._get_weights_iterator(loader.Source(path, None), startup_prefetch_started=True))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not hasattr(ModelConfig(modules, "packed").hf_config, "quantization_config")
    assert modules["sglang.srt.arg_groups.choices"].LOAD_FORMAT_CHOICES == ["auto", "squeeze"]


def test_a_packed_folder_in_another_format_is_refused_in_one_line(modules):
    model("model")
    squeeze.pack("model", "packed")
    with pytest.raises(SqueezeError, match="packed: is packed by squeeze: add --load-format squeeze"):
        made_loader(modules, "packed", "auto")
    made_loader(modules, "packed", "dummy")
    made_loader(modules, "model", "auto")
    with pytest.raises(ValueError, match="no such format"):
        made_loader(modules, "model", "other")
    with pytest.raises(OptionError, match="no option of the loader"):
        made_loader(modules, "packed", num_threads=3)


@pytest.mark.parametrize(
    "missing", ["LOAD_FORMAT_CHOICES", "get_config", "LoadConfig", "HookRegistry", "get_model_loader"]
)
def test_another_interface_is_one_line_and_no_hook(monkeypatch, caplog, missing):
    modules = install_sglang(monkeypatch)
    for module in modules.values():
        vars(module).pop(missing, None)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert len(caplog.records) == 1
    assert "another interface" in caplog.text
    assert modules["sglang.srt.arg_groups.choices"].__dict__.get("LOAD_FORMAT_CHOICES", ["auto"]) == ["auto"]
    registry = getattr(modules["sglang.srt.plugins.hook_registry"], "HookRegistry", None)
    assert registry is None or not registry.hooks


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs SGLang")
@pytest.mark.filterwarnings("ignore")
def test_sglang_itself():
    plugin.loader.cache_clear()
    plugin.register()
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import get_model_loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    HookRegistry.apply_hooks()
    expected = model("model")
    squeeze.pack("model", "packed")
    loader = get_model_loader(LoadConfig(load_format="squeeze", model_loader_extra_config={"threads": 2}))
    found = dict(loader._get_weights_iterator(loader.Source("packed", None)))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    plugin.loader.cache_clear()
