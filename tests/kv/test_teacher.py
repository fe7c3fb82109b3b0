"""One pass with coded history."""

import pytest
import torch

from squeeze.kv import KIVI, FullPrecision
from squeeze.kv.teacher import teacher_forced
from tests.makers.kv_models import MODELS, tokens


@pytest.mark.parametrize("name", list(MODELS))
def test_one_pass_equals_decoding_with_the_window_exact(name):
    """Compare the last token with a cache, with no window and blocks that end with the pass."""
    model, ids = MODELS[name](), tokens(length=22)
    policy = KIVI(bits=4, group=8, sinks=4, window=1)
    if name in ("mistral", "qwen2"):
        policy = KIVI(bits=4, group=8, sinks=0, window=1)  # sliding windows have no sinks
    with torch.no_grad():
        with teacher_forced(model, FullPrecision()):
            torch.testing.assert_close(model(ids, use_cache=False).logits, model(ids).logits)
        with teacher_forced(model, policy):
            coded = model(ids, use_cache=False).logits
    assert not torch.allclose(coded, model(ids).logits, atol=1e-3)
