"""Eviction around other policies: what is kept, what is counted, and that generation goes on."""

import pytest
import torch

from squeeze.errors import PolicyError
from squeeze.kernels import kv_attention
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.evict import SinksAndWindow, SnapKV, SoftPrune
from squeeze.kv.layer import PackedLayer
from tests.makers.kv_models import llama, mistral, tokens

INNER = KIVI(8, group=8, sinks=2, window=8)


def test_sinks_and_window():
    layer, states = PackedLayer(SinksAndWindow(INNER, limit=20), 0), torch.randn(2, 1, 2, 200, 8)
    for at in range(200):
        layer.update(*states[:, :, :, at : at + 1])
        assert layer.get_seq_length() == at + 1
        assert layer.stored <= 2 + 24 + 16
        assert layer.get_mask_sizes(1) == (layer.stored + 1, layer.evicted)
    keys = layer.keys
    assert torch.equal(keys[:, :, :2], states[0, :, :, :2])
    torch.testing.assert_close(keys[:, :, 2:], states[0, :, :, layer.evicted + 2 :], rtol=0, atol=0.02)
    layer.crop(-20)
    assert layer.get_seq_length() == 180 and layer.stored == 180 - layer.evicted


def test_snapkv_keeps_what_the_last_queries_look_at():
    policy = SnapKV(INNER, select=16, observed=4, pool=1)
    layer = PackedLayer(policy, 0, native=lambda: True)
    keys, values = torch.randn(2, 1, 2, 100, 8)
    wanted = torch.arange(10, 42, 2)
    query = torch.ones(1, 4, 100, 8)
    keys[:, :, wanted] += 5
    view, _ = layer.update(keys, values)
    assert layer.blocks == 0
    view.observer(query)
    assert layer.get_seq_length() == 100 and layer.stored == 2 + 16 + 8 and layer.evicted == 74
    torch.testing.assert_close(layer.keys[:, :, 2:18], keys[:, :, wanted], rtol=0, atol=0.05)
    assert torch.equal(layer.values[:, :, 18:], values[:, :, 92:])


def test_softprune_keeps_all_and_some_exactly():
    policy = SoftPrune(INNER, select=16, observed=4, pool=1)
    layer = PackedLayer(policy, 0, native=lambda: True)
    keys, values = torch.randn(2, 1, 2, 100, 8)
    wanted = torch.arange(10, 42, 2)
    keys[:, :, wanted] += 5
    view, _ = layer.update(keys, values)
    view.observer(torch.ones(1, 4, 100, 8))
    assert layer.stored == layer.get_seq_length() == 100 and layer.evicted == 0 and layer.blocks == 9
    assert torch.equal(layer.values[:, :, 2:18], values[:, :, wanted])
    rest = [token for token in range(2, 92) if token not in wanted]
    torch.testing.assert_close(layer.values[:, :, 18:92], values[:, :, rest], rtol=0, atol=0.03)
    layer.update(torch.randn(1, 2, 60, 8), torch.randn(1, 2, 60, 8))
    assert layer.get_seq_length() == 160 and layer.sinks[0].shape[2] == 18


def test_nothing_but_eviction():
    layer, states = (
        PackedLayer(SinksAndWindow(FullPrecision(sinks=2, window=8), limit=20), 0),
        torch.randn(2, 1, 2, 60, 8),
    )
    for at in range(60):
        layer.update(*states[:, :, :, at : at + 1])
    assert layer.get_seq_length() == 60 and layer.stored == 30
    assert torch.equal(layer.keys, torch.cat([states[0, :, :, :2], states[0, :, :, 32:]], 2))


def test_other_numbers_in_other_layers():
    model = llama()
    cache = QuantizedKVCache(model.config, SinksAndWindow(INNER, limit=(16, 32)))
    model(tokens(length=100), past_key_values=cache)
    assert [layer.blocks * 8 for layer in cache.packed_layers] == [16, 32]
    with pytest.raises(PolicyError, match="eviction is given for 1 layers, and the model has more"):
        model(tokens(length=100), past_key_values=QuantizedKVCache(model.config, SinksAndWindow(INNER, limit=(16,))))


@pytest.mark.parametrize("kind", [llama, mistral])
@pytest.mark.parametrize(
    "wrapper",
    [SinksAndWindow(INNER, limit=16), SnapKV(INNER, select=16), SoftPrune(INNER, select=16),
     SnapKV(FullPrecision(sinks=2, window=8), select=16)],
)  # fmt: skip
def test_generation_goes_on(kind, wrapper):
    model, ids = kind(), tokens(length=80)
    kv_attention.install(model)
    cache = QuantizedKVCache(model.config, wrapper)
    options = {"max_new_tokens": 20, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert model.generate(ids, past_key_values=cache, **options).shape[1] == 100
    if kind is llama:
        assert all(bool(layer.evicted) != isinstance(wrapper, SoftPrune) for layer in cache.packed_layers)
    assert cache.get_seq_length() == 99


def test_snapkv_needs_to_see_queries():
    model = llama()
    with pytest.raises(PolicyError, match=r"kv_attention\.install"):
        model(tokens(length=80), past_key_values=QuantizedKVCache(model.config, SnapKV(INNER, select=16)))
