"""The registry of policies, and bits for each layer and head."""

import pytest

from squeeze.errors import PolicyError
from squeeze.kv import KIVI, POLICIES, QuantizedKVCache
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.contract import CACHE
from squeeze.kv.rotated import Rotated
from tests.makers.kv_models import llama, tokens


def test_every_policy_is_known_by_name():
    assert set(POLICIES) == {"full", "kivi", "rotated", "vidkv", "blockfloat"}
    for kind in POLICIES.values():
        policy, model = kind(), llama()
        model(tokens(length=150), **{CACHE: (cache := QuantizedKVCache(model.config, policy))})
        assert all(layer.blocks for layer in cache.packed_layers) == bool(policy.block)
        assert cache.get_seq_length() == 150


def test_bits_for_each_layer_and_head():
    model = llama()
    cache = QuantizedKVCache(model.config, KIVI(bits=(2, (4, 8)), group=16, window=16))
    model(tokens(length=100), **{CACHE: cache})
    assert [len(layer.head_groups) for layer in cache.packed_layers] == [1, 2]
    expected = (2 + 6) / 2 + (32 / 16 + 32 / 8) / 2  # values of 8 channels, so in groups of 8
    assert cache.nominal_bits == expected


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: KIVI(bits=5), "5 bits are not offered here: choose from 1, 2, 3, 4, 8"),
        (lambda: Rotated(bits=(4, 16)), "16 bits are not offered here: choose from 1, 2, 3, 4, 8"),
        (lambda: BlockFloat(bits=1), "1 bits are not offered here: choose from 2, 3, 4, 8"),
        (lambda: KIVI(bits=(4,)).head_groups(1, 2), "bits are given for 1 layers, and the model has more"),
        (lambda: KIVI(bits=((4, 4, 4),)).head_groups(0, 2),
         "bits are given for 3 heads of layer 0, which has 2 KV heads"),
    ],
)  # fmt: skip
def test_errors(make, message):
    with pytest.raises(PolicyError) as caught:
        make()
    assert str(caught.value) == message
