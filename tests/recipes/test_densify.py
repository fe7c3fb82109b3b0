"""Folders whose description of stored weights means harm end in one line."""

import json
import math

import pytest
from click.testing import CliRunner

from squeeze.cli import main
from tests.makers import tiny_models

pytest.importorskip("transformers", reason="transformers is not installed")

WAYS = {"own": ["--format", "squeeze"], "gptq": ["--format", "gptq"], "standard": []}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("stored")
    model = tiny_models.write_folder(root / "model", tiny_models.byte_level(), vocab_size=400)
    for way, more in WAYS.items():
        done = CliRunner().invoke(main, ["quantize", str(model), str(root / way), "--method", "rtn", "-q", *more])
        assert done.exit_code == 0, done.output
    return {way: (root / way, json.loads((root / way / "config.json").read_text())) for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [None, "x\x1b[31m", [1], {}, -1, 0, 10**9, 10**30, math.inf, math.nan], ids=repr)
def test_hostile_descriptions_end_in_one_line(folders, way, value):
    folder, config = folders[way]
    described = config["quantization_config"]
    for key in [key for key in described if key != "quant_method"]:
        changed = {**config, "quantization_config": {**described, key: value}}
        (folder / "config.json").write_text(json.dumps(changed))
        done = CliRunner().invoke(main, ["densify", str(folder), str(folder.with_name("out")), "-f"])
        assert isinstance(done.exception, SystemExit | None), (key, done.exception)
        assert done.exit_code in (0, 1) and done.output.count("\n") == 1 and done.output.strip().isprintable(), key
