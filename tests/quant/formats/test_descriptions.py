"""Test what config.json says of a quantised checkpoint, where it is not understood: one line that names it."""

import json

import pytest

from squeeze.errors import FormatError
from squeeze.quant.formats import format_of, read
from squeeze.quant.formats.reading import summary

OWN = {"quant_method": "squeeze-quantized", "version": 1}
INTEGERS = {"num_bits": 4, "strategy": "channel"}
GROUPS = {
    **{"quant_method": "compressed-tensors", "format": "pack-quantized"},
    "config_groups": {"a": {"targets": ["Linear"], "weights": INTEGERS}},
}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "quanto"}, "expected a quant_method among .*, got 'quanto'"),
        ({"quant_method": "awq", "group_size": "x"}, "awq does not say how"),
        ({"quant_method": "awq", "version": "gemv"}, "got 4 bits in version 'gemv'"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "gptq"}, "does not say how"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": 3}, "does not say how"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"a": {"bits": "x"}}}, "the rule 'a' of gptq does not say how"),
        ({"quant_method": "gptq", "bits": float("inf")}, "does not say how"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {9_000 * "a": 1.5}}, r"^the rule 'a{190,200}\.\.\. of gptq"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "does not say how"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}, "does not say how"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"W4A16": ["Linear"]}},
            "does not say how",
        ),
        (GROUPS | {"ignore": 0.5}, "does not say how"),
        (GROUPS | {"config_groups": {"a": {"weights": INTEGERS | {"num_bits": float("inf")}}}}, "does not say how"),
        (
            GROUPS | {"format": [0] * 3_000},
            r"^expected a format of compressed-tensors among .*, got \[[0, ]{190,200}\.\.\.",
        ),
        ({"quant_method": "gptq", "bits": 9}, "9 bits: choose from 2, 3, 4, 5, 6, 7, 8"),
        ({"quant_method": "gptq", "bits": 5}, "^the format gptq stores 2, 3, 4 or 8 bits, got 5: use the format s"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:a": {"bits": 6}}},
            "^the format gptq stores .* bits, got 6",
        ),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:[": {"bits": 8}}}, "is not a regular expression"),
        (GROUPS | {"format": "marlin-24"}, "compressed-tensors among pack-quantized, .*, got 'marlin-24'"),
        ({"quant_method": "squeeze-quantized", "version": 2}, "use a newer squeeze"),
        (
            {"quant_method": "squeeze-quantized", "version": [0] * 3_000},
            r"^unknown version \[[0, ]{190,200}\.\.\. of the format squeeze",
        ),
        (OWN, "does not say how"),
        (OWN | {"bits": float("inf"), "group_size": 8}, "does not say how"),
        (OWN | {"bits": 4, "group_size": 8, "modules": {"m": 0.5}}, "does not say how"),
        (OWN | {"bits": 4, "group_size": 8, "codebook": [0] * 3_000}, r"^codebook '\[[0, ]{190,200}\.\.\. is unknown"),
    ],
)
def test_configs_that_are_not_understood_are_named(config, message):
    with pytest.raises(FormatError, match=message):
        format_of(config).spec(config).of("m")


def test_folders_that_are_not_quantised_are_named(tmp_path):
    with pytest.raises(FormatError, match=r"it has no config\.json"):
        read(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FormatError, match="not quantised"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(FormatError, match="is not JSON"):
        read(tmp_path)


def test_what_is_refused_has_no_summary(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "none such"}}))
    with pytest.raises(FormatError):
        read(tmp_path)
    assert summary(tmp_path) is None
