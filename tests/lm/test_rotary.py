"""Rotary angles: those of transformers, and the same numbers always."""

import json

import numpy as np
import pytest

from squeeze.lm import rotary


def test_rotary_angles_match_transformers():
    modeling = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    def theirs(**scaling):
        config = LlamaConfig(
            hidden_size=512, num_attention_heads=8, max_position_embeddings=8192,
            rope_parameters={"rope_theta": 500000.0, **scaling},
        )  # fmt: skip
        angles, scale = modeling.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
        return angles.numpy(), scale

    cases = [
        (rotary.linear(5e5, 64, 4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            rotary.llama3(5e5, 64, 8.0, 1.0, 4.0, 8192),
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
            | {"original_max_position_embeddings": 8192},
        ),
        (
            rotary.yarn(5e5, 64, 4.0, 2048),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
        ),
    ]
    for ours, scaling in cases:
        angles, scale = theirs(**scaling)
        np.testing.assert_allclose(ours, angles, rtol=1e-5)
        assert scale == pytest.approx(rotary.yarn_scale(4.0) if scaling["rope_type"] == "yarn" else 1.0)


def test_rotary_angles_are_these_numbers():
    assert rotary.plain(10000.0, 8) == (1.0, 0.1, 0.01, 0.001)
    assert rotary.divided(10000.0, 8, [1.0, 2.0, 4.0, 8.0]) == (1.0, 0.05, 0.0025, 0.000125)
    assert json.dumps(rotary.plain(500000.0, 6)) == "[1.0, 0.01259921049894873, 0.00015874010519681994]"
    assert rotary.yarn_scale(1.0) == 1.0 and rotary.yarn_scale(4.0) == 1.138629436111989
