"""Folders that only squeeze's loaders read: transformers alone refuses them, and says what to import."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

import squeeze
from squeeze.checkpoint.config_json import guarded, unguarded
from tests.makers import gguf_models

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

IDS = torch.arange(3, 15)[None]
WRITTEN = {
    "own": lambda source, out: squeeze.quantize(source, "rtn", out=out, format="squeeze", bits=6, group_size=32),
    "sparse": lambda source, out: squeeze.prune(source, "magnitude", out=out, pattern="2:4"),
    "turned": lambda source, out: squeeze.quantize(source, "rtn", out=out, scheme="w8a8", rotate="full"),
}
ALONE = """
import sys
from transformers import AutoModelForCausalLM
for folder in sys.argv[1:]:
    try:
        AutoModelForCausalLM.from_pretrained(folder)
        print("loaded")
    except ValueError as error:
        print("import squeeze.integrations.transformers" in str(error))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    source = gguf_models.save("llama", tmp_path_factory.mktemp("source") / "model", dtype=torch.bfloat16)
    outs = tmp_path_factory.mktemp("guarded")
    for name, write in WRITTEN.items():
        write(source, outs / name)
    return {name: outs / name for name in WRITTEN}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def logits(folder):
    from transformers import AutoModelForCausalLM

    import squeeze.integrations.transformers  # noqa: F401  it registers the loaders

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(IDS).logits


@pytest.mark.parametrize("name", WRITTEN)
def test_transformers_own_class_refuses_the_description_and_names_the_import(folders, name):
    """Transformers without squeeze reads a folder's description by this class."""
    described = config_of(folders[name])["quantization_config"]
    assert described["quant_method"] == "compressed-tensors"
    with pytest.raises(ValueError, match=r"import squeeze\.integrations\.transformers"):
        transformers.CompressedTensorsConfig.from_dict(described)


@pytest.mark.slow  # transformers is imported anew
def test_transformers_alone_refuses_them_and_names_the_import(folders):
    command = [sys.executable, "-c", ALONE, *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * len(folders)


@pytest.mark.parametrize("name", WRITTEN)
def test_with_the_import_they_load_and_so_do_those_written_before(folders, tmp_path, name):
    before = shutil.copytree(folders[name], tmp_path / "before")
    config = config_of(before)
    config["quantization_config"] = unguarded(config["quantization_config"])
    assert config != config_of(folders[name])
    (before / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(folders[name]), logits(before))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_transformers_saves_of_them_is_guarded_too(folders, name):
    from transformers.quantizers.auto import AutoQuantizationConfig

    import squeeze.integrations.transformers  # noqa: F401

    described = config_of(folders[name])["quantization_config"]
    again = AutoQuantizationConfig.from_dict(described).to_dict()
    assert again != unguarded(again)


def test_others_descriptions_stay_as_they_are():
    for described in ({"quant_method": "gptq", "bits": 4}, {"quant_method": "compressed-tensors", "config_groups": {}}):
        assert guarded(described) == unguarded(described) == described
    own = {"quant_method": "squeeze-quantized", "version": 1, "bits": 6}
    assert unguarded(guarded(own)) == own
