"""Impossible descriptions of models are refused before anything is computed."""

import pytest

from squeeze.errors import ModelError
from squeeze.lm.config import Config

GOOD = {
    **{"architecture": "llama", "layers": 1, "width": 8, "heads": 2, "kv_heads": 1, "head_size": 4, "feed_forward": 8},
    **{"vocabulary": 9, "context": 16, "epsilon": 1e-5, "frequencies": (1.0, 0.5), "attention_factor": 1.0},
    "start_token": 0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "a size is not positive"),
        ({"kv_heads": 3}, "its numbers of attention heads do not fit together"),
        ({"start_token": 9}, "its start token is outside its vocabulary"),
        ({"epsilon": float("inf")}, "a number that is not finite"),
        ({"frequencies": (1e30, 1.0)}, "a rotary angle is out of range"),
    ],
)
def test_refuses_impossible_descriptions(change, message):
    Config(**GOOD)
    with pytest.raises(ModelError, match=message):
        Config(**{**GOOD, **change})
