"""vLLM's plugin, against stand-ins of vLLM's interfaces, and with vLLM itself where it is installed."""

import importlib.util
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import squeeze
from squeeze.errors import FormatError, OptionError, SqueezeError
from squeeze.integrations import vllm as plugin
from squeeze.integrations.server_loading import restore_config
from squeeze.packing.store import Store
from tests.makers.servers import DefaultModelLoader, ModelConfig, install_vllm

pytestmark = [pytest.mark.usefixtures("in_folder"), pytest.mark.filterwarnings("ignore")]
REAL = importlib.util.find_spec("vllm") is not None


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="needs vLLM"))])
def vllm(request, monkeypatch):
    """Register the plugin; return how to make a loader from options."""
    plugin.loader.cache_clear()
    plugin.config_parser.cache_clear()
    if request.param == "stand-in":
        install_vllm(monkeypatch)
    plugin.register()
    plugin.register()  # as in a process that loads plugins twice
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    yield lambda **options: get_model_loader(LoadConfig(load_format="squeeze", use_tqdm_on_load=False, **options))
    plugin.loader.cache_clear()
    plugin.config_parser.cache_clear()


class Model:
    """A model that keeps what it is given."""

    def load_weights(self, weights):
        self.weights = dict(weights)


def made(change: float = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    names = ["embed.weight", *(f"layers.0.mlp.experts.{n}.up.weight" for n in range(4))]
    return {name: torch.randn(32, 64).add(change).bfloat16() for name in names}


def model(name: str, change: float = 0, **described) -> dict[str, torch.Tensor]:
    """Write a model's folder."""
    Path(name).mkdir(parents=True)
    Path(name, "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["A"], **described}))
    save_file(made(change), f"{name}/model.safetensors")
    return made(change)


def loaded(loader, folder: str, into: Model | None = None) -> dict[str, torch.Tensor]:
    into = into or Model()
    sources = [loader.Source(folder, None), *getattr(into, "secondary_weights", ())]
    into.load_weights(pair for source in sources for pair in loader._get_weights_iterator(source))
    return into.weights


def same(found, expected) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_packed_plain_and_differences_load(vllm):
    expected, tuned = model("model"), model("tuned", 0.01)
    Path("run").mkdir()
    squeeze.pack("model", "run/1")
    squeeze.pack("tuned", "run/2", base="run/1")
    assert same(loaded(vllm(), "model"), expected)
    assert same(loaded(vllm(), "run/1"), expected)
    assert same(loaded(vllm(model_loader_extra_config={"threads": 2}), "run/2"), tuned)
    Path("run/2").rename("alone")
    with pytest.raises(SqueezeError, match="its base"):
        loaded(vllm(), "alone")
    assert same(loaded(vllm(model_loader_extra_config={"base": "run/1"}), "alone"), tuned)


def test_a_model_of_a_store_loads_beside_its_configuration(vllm):
    model("model")
    tuned = model("tuned", 0.01)
    store = Store("store")
    store.add("model")
    store.add("tuned")
    store.get("tuned", "files", weights=False)
    assert same(loaded(vllm(model_loader_extra_config={"store": "store", "model": "tuned"}), "files"), tuned)


def test_experts_of_other_processes_are_not_decoded(vllm):
    expected = model("model")
    squeeze.pack("model", "packed")
    loader = vllm()
    loader.local_expert_ids = {1, 2}
    kept = {name: tensor for name, tensor in expected.items() if ".0.up" not in name and ".3.up" not in name}
    assert same(loaded(loader, "packed"), kept)


def test_secondary_weights_and_unused_ones(vllm):
    expected = model("model")
    squeeze.pack("model", "packed")
    loader, into = vllm(), Model()
    into.secondary_weights = [
        loader.Source("packed", None, prefix="draft.", is_unused_weight=lambda name: "experts" in name)
    ]
    assert same(loaded(loader, "packed", into), expected | {"draft.embed.weight": expected["embed.weight"]})


def test_a_whole_load_through_the_stand_in(monkeypatch):
    install_vllm(monkeypatch)
    plugin.loader.cache_clear()
    expected, into = model("model"), Model()
    squeeze.pack("model", "packed")
    from vllm.config.load import LoadConfig

    loader = plugin.loader()(LoadConfig("squeeze"))
    assert isinstance(loader, DefaultModelLoader)
    loader.load_weights(into, ModelConfig("packed"))
    assert same(into.weights, expected)
    loader.download_model(ModelConfig("packed"))
    plugin.loader.cache_clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_loader_extra_config": {"thread": 2}}, "thread is no option of the loader: it has base, store"),
        ({"model_loader_extra_config": {"threads": True}}, "expected threads to be int"),
        ({"model_loader_extra_config": {"threads": -1}}, "expected threads to be int"),
        ({"model_loader_extra_config": {"store": "a"}}, "store together with model"),
        ({"model_loader_extra_config": {"store": "a", "model": "b", "base": "c"}}, "or base alone"),
        ({"safetensors_load_strategy": "eager"}, "leave out safetensors_load_strategy=eager"),
    ],
)
def test_options_that_are_not_honoured_are_refused(vllm, options, message):
    with pytest.raises(OptionError, match=message):
        vllm(**options)


def test_files_that_are_not_read_are_refused(vllm):
    model("model")
    loader = vllm()
    with pytest.raises(FormatError, match=r"this model reads the files x\*: unpack it"):
        loader._get_weights_iterator(loader.Source("model", None, allow_patterns_overrides=["x*"]))


def test_a_repository_comes_from_the_cache_and_no_other_place(vllm, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    expected = model("model")
    snapshot = Path("cache/models--org--packed/snapshots/" + "a" * 40)
    snapshot.parent.mkdir(parents=True)
    squeeze.pack("model", snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    loader = vllm(download_dir="cache")
    assert same(loaded(loader, "org/packed"), expected)
    with pytest.raises(SqueezeError, match=r"org/other: HF_HUB_OFFLINE is set"):
        loaded(loader, "org/other")


@pytest.mark.parametrize("original", [None, {"quant_method": "fp8", "activation_scheme": "dynamic"}])
def test_the_configuration_is_that_of_the_original(vllm, original):
    model("model", **({"quantization_config": original} if original else {}))
    squeeze.pack("model", "packed")
    changed = json.loads(Path("packed/config.json").read_text())
    assert changed["quantization_config"]["quant_method"] == ("squeeze+fp8" if original else "squeeze")
    assert restore_config(changed)
    assert changed == json.loads(Path("model/config.json").read_text())
    assert not restore_config(changed)
    with pytest.raises(FormatError, match="expected the quantization_config of a packed folder"):
        restore_config({"quantization_config": {"quant_method": "squeeze+other", "quantization": {}}})


def test_the_load_format_chooses_the_parser(monkeypatch):
    install_vllm(monkeypatch)
    plugin.loader.cache_clear()
    plugin.config_parser.cache_clear()
    plugin.register()
    model("model")
    squeeze.pack("model", "packed")
    from vllm.engine.arg_utils import EngineArgs

    described, config = EngineArgs("packed", load_format="squeeze").create_model_config()
    assert "quantization_config" not in described
    assert not hasattr(config, "quantization_config")
    assert "quantization_config" in EngineArgs("packed").create_model_config()[0]
    plugin.loader.cache_clear()
    plugin.config_parser.cache_clear()


@pytest.mark.parametrize("missing", ["register_model_loader", "HFConfigParser", "EngineArgs", "DefaultModelLoader"])
def test_another_interface_is_one_line_and_no_error(monkeypatch, caplog, missing):
    modules = install_vllm(monkeypatch)
    plugin.loader.cache_clear()
    for module in modules.values():
        vars(module).pop(missing, None)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert len(caplog.records) == 1
    assert "another interface" in caplog.text
    plugin.loader.cache_clear()


def test_the_plugins_need_neither_their_server_nor_transformers():
    root = Path(squeeze.__file__).parent.parent
    for name in ("vllm", "sglang"):
        assert f"squeeze.integrations.{name}:register" in (root / "pyproject.toml").read_text()
    code = (
        "import sys; sys.modules['transformers'] = None; "
        "from squeeze.integrations import server_loading, sglang, vllm; sglang.register(); vllm.register()"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=300).returncode == 0
