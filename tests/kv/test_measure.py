"""Measurements of policies."""

import pytest
import torch

from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache, measure
from squeeze.kv.measure import passkeys, quality, stepped
from tests.makers.kv_models import llama, tokens


def test_quality_and_stepped_agree_on_full_precision():
    model, text = llama(), tokens(length=128)[0]
    found = quality(model, text, {"full": FullPrecision(), "kivi": KIVI(bits=8, window=0, group=16)}, 64, 2)
    assert found["full"].perplexity == pytest.approx(found["full precision"].perplexity, rel=1e-6)
    assert 0 < found["kivi"].kl < 0.01
    logits = []
    steps = [stepped(model, text, lambda: QuantizedKVCache(model.config, FullPrecision()), 64, 2, logits) for _ in "ab"]
    assert steps[0] == steps[1] and len(logits) == 2
    assert steps[0].perplexity == pytest.approx(found["full"].perplexity, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quality_of_a_model_in_16_bits(dtype):
    found = quality(llama().to(dtype), tokens(length=128)[0], {"kivi": KIVI(bits=8, window=0, group=16)}, 64, 2)
    assert 0 < found["kivi"].kl < 0.01


def test_peak_memory_on_a_gpu_is_that_of_the_model_s(monkeypatch):
    """Check that the peak of one step includes other memory that is alive, but nothing of earlier steps."""
    told = {"memory_allocated": 700, "max_memory_allocated": 1000}
    asked = []

    def noted(name):
        return lambda device: asked.append((name, device)) or told.get(name)

    for name in ("reset_peak_memory_stats", *told):
        monkeypatch.setattr(torch.cuda, name, noted(name))
    device, cache = torch.device("cuda:1"), type("Cache", (), {"nbytes": 200})
    assert measure._peak_on_gpu(lambda: asked.append("step"), cache, device) == 1000 - (700 - 200)
    names = ["reset_peak_memory_stats", "memory_allocated", "step", "max_memory_allocated"]
    assert asked == [name if name == "step" else (name, device) for name in names]


def test_passkeys_are_looked_for():
    class Tokenizer:
        def __call__(self, words, **options):
            ids = [2 + ord(letter) % 50 for letter in words]
            return {"input_ids": torch.tensor([ids]) if options.get("return_tensors") else ids}

        def decode(self, ids):
            return "".join(map(str, ids))

    model = llama()
    found = passkeys(model, Tokenizer(), lambda: QuantizedKVCache(model.config, KIVI(4, group=8)), 300, (0.1, 0.9))
    assert found == [False, False]
