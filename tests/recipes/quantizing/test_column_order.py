"""The config.json of a GPTQ folder tells the order of its columns."""

import importlib
from importlib.util import find_spec

import pytest

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.quant.gptq import GPTQ
from squeeze.quant.rtn import RTN
from squeeze.recipes.quantizing.writing import make_writer

pytest.importorskip("transformers", reason="transformers is not installed")


def test_the_order_of_gptq_is_told_where_there_are_groups(folders):
    checkpoint = Checkpoint.open(folders("llama"))
    told = {}
    for name, method in {
        "ordered": GPTQ(bits=4, group_size=32),
        "rows": GPTQ(bits=4, group_size=-1),
        "as it lies": GPTQ(bits=4, group_size=32, act_order=False),
        "rounded": RTN(bits=4, group_size=32),
    }.items():
        config = make_writer("compressed-tensors", method, {}, checkpoint).config([])["quantization_config"]
        told[name] = config["config_groups"]["group_0"]["weights"].get("actorder")
        if find_spec("compressed_tensors"):
            quantization = importlib.import_module("compressed_tensors.quantization")
            group = quantization.QuantizationConfig.model_validate(config).config_groups["group_0"]
            assert group.weights.actorder == told[name]
    assert told == {"ordered": "static", "rows": None, "as it lies": None, "rounded": None}
