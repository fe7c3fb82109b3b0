"""The KV cache on transformers' contract: equal to DynamicCache without coding, and to a plain reference with it."""

import copy
import sys

import pytest
import torch
import transformers.cache_utils
from hypothesis import given, settings, strategies as st
from transformers import DynamicCache

from squeeze.errors import PolicyError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.layer import PackedLayer
from tests.makers.kv_models import MODELS, llama, tokens


@pytest.fixture(params=list(MODELS), scope="module")
def model(request):
    return MODELS[request.param]()


def generated(model, ids, cache, **options):
    options = {"max_new_tokens": 30, "do_sample": False, "use_cache": True} | options
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, **{CACHE: cache}, **options)


WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "sampled": {"do_sample": True, "num_return_sequences": 3},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
}


@pytest.mark.parametrize("way", list(WAYS))
def test_full_precision_equals_dynamic_cache(model, way):
    ids = tokens()
    found = []
    for cache in (DynamicCache(config=model.config), QuantizedKVCache(model.config, FullPrecision())):
        torch.manual_seed(1)
        found.append((generated(model, ids, cache, **WAYS[way]), cache))
    (expected, theirs), (actual, ours) = found
    assert torch.equal(expected, actual)
    for a, b in zip(theirs.layers, ours.layers, strict=True):
        assert a.get_seq_length() == b.get_seq_length()
        count = min(a.keys.shape[2], b.keys.shape[2])
        assert torch.equal(a.keys[:, :, -count:], b.keys[:, :, -count:])
        assert torch.equal(a.values[:, :, -count:], b.values[:, :, -count:])


def test_assisted_decoding_equals_that_with_a_dynamic_cache(model):
    ids, helper = tokens(), MODELS["llama"]()
    caches = (DynamicCache(config=model.config), QuantizedKVCache(model.config, FullPrecision()))
    expected, actual = (generated(model, ids, cache, assistant_model=helper) for cache in caches)
    assert torch.equal(expected, actual)


@pytest.mark.parametrize("way", list(WAYS))
def test_coded_history_goes_through_every_way_of_generating(model, way):
    cache = QuantizedKVCache(model.config, KIVI(bits=8, group=8, sinks=2, window=8))
    found = generated(model, tokens(), cache, **WAYS[way])
    assert found.shape[1] == 70
    assert all(layer.blocks for layer in cache.packed_layers)


def test_a_chat_goes_on_and_a_prefix_is_used_twice(model):
    ids, policy = tokens(length=50), FullPrecision()
    cache = QuantizedKVCache(model.config, policy)
    with torch.no_grad():
        model(ids[:, :30], **{CACHE: cache})
    found = [generated(model, ids, copy.deepcopy(cache)) for _ in range(2)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], generated(model, ids, DynamicCache(config=model.config)))


class Reference:
    """A layer as plainly as it can be said: tensors of all tokens, the coded ones decoded where they stand."""

    def __init__(self, policy, sliding_window):
        self.policy, self.sliding_window = policy, sliding_window
        self.sinks = 0 if sliding_window else policy.sinks
        self.keys = self.values = torch.zeros(2, 2, 0, 8)
        self.coded_end = self.sinks  # what is between the sinks and here has been coded
        self.dropped = 0  # tokens that the layer has dropped: blocks begin after them

    def update(self, keys, values):
        past = self.keys.shape[2]
        self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        offset = max(past - self.sliding_window + 1, 0) if self.sliding_window else 0
        returned = self.keys[:, :, offset:], self.values[:, :, offset:]
        self.keys, self.values = self.keys.clone(), self.values.clone()
        block = self.policy.block
        while block and self.keys.shape[2] - (start := max(self.coded_end, self.dropped)) >= self.policy.window + block:
            (group,) = self.policy.head_groups(0, 2)
            for coder, whole in ((group.keys, self.keys), (group.values, self.values)):
                piece = whole[:, :, start : start + block]
                fields = coder.encode(piece[:, :, None], start)
                whole[:, :, start : start + block] = coder.decode(fields, start, torch.float32)[:, :, 0]
            self.coded_end = start + block
        return returned

    def crop(self, count):
        length = self.keys.shape[2] - count
        self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]
        if length < self.coded_end and (block := self.policy.block):  # a block that is cut is among the recent again
            self.coded_end = max(self.coded_end - -(-(self.coded_end - length) // block) * block, self.sinks)

    def select(self, rows):
        self.keys, self.values = self.keys[rows], self.values[rows]


operations = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(1, 30)),
        st.tuples(st.just("update"), st.just(1)),
        st.tuples(st.just("crop"), st.integers(0, 20)),
        st.tuples(st.just("crop to"), st.integers(1, 60)),
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 1), min_size=2, max_size=2)),
        st.tuples(st.just("repeat"), st.integers(1, 2)),
        st.tuples(st.just("select"), st.lists(st.booleans(), min_size=2, max_size=2).filter(any)),
        st.tuples(st.just("offload"), st.none()),
        st.tuples(st.just("reset"), st.none()),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=80)
@given(
    operations,
    st.sampled_from(
        [FullPrecision(), KIVI(bits=4, group=8, sinks=3, window=5), KIVI(bits=8, group=8, sinks=0, window=0)]
    ),
    st.sampled_from([None, 7, 20]),
)
def test_any_sequence_of_operations_equals_a_dynamic_cache(sequence, policy, sliding_window):
    layer, plain = PackedLayer(policy, 0, sliding_window), Reference(policy, sliding_window)
    layer.activate_past_recording()
    random = torch.Generator().manual_seed(0)
    for what, number in sequence:
        batch, length = plain.keys.shape[0], plain.keys.shape[2]
        if what == "update":
            new = torch.randn(2, batch, 2, number, 8, generator=random)
            for found, expected in zip(layer.update(*new), plain.update(*new), strict=True):
                assert torch.equal(found, expected)
            continue
        if what in ("crop", "crop to"):
            count = min(number, length) if what == "crop" else max(length - number, 0)
            first_seen = max(length - count - sliding_window + 1, 0) if sliding_window else 0
            if layer.dropped > first_seen:  # what the sliding window has dropped does not come back
                with pytest.raises(RuntimeError, match="crop less"):
                    layer.crop(-number if what == "crop" else number)
                continue
            layer.crop(-number if what == "crop" else number)
            plain.crop(count)
            plain.dropped = layer.dropped
            assert plain.dropped <= max(length - count - (sliding_window or 0) + 1, 0)
        elif what == "reorder":
            rows = torch.tensor(number).clamp(max=batch - 1)
            layer.reorder_cache(rows)
            plain.select(rows)
        elif what == "repeat" and batch < 4:
            layer.batch_repeat_interleave(number)
            plain.select(torch.arange(batch).repeat_interleave(number))
        elif what == "select":
            rows = torch.tensor((number * batch)[:batch])
            if rows.any():
                layer.batch_select_indices(rows)
                plain.select(rows)
        elif what == "offload":
            layer.offload()
            layer.prefetch()
        elif what == "reset":
            layer.reset()
            layer.activate_past_recording()
            plain = Reference(policy, sliding_window)
        assert layer.get_seq_length() == plain.keys.shape[2]
    if layer.is_initialized:
        expected = plain.keys[:, :, layer.dropped :]
        assert torch.equal(layer.keys, expected)


def test_each_token_is_coded_once():
    model = llama()
    cache = QuantizedKVCache(model.config, KIVI(bits=4, group=8, sinks=4, window=16))
    generated(model, tokens(length=50), cache, max_new_tokens=60)
    for layer in cache.packed_layers:
        assert layer.coded_tokens == layer.blocks * 8 == (109 - 4 - 16) // 8 * 8


def test_history_is_not_touched_again():
    layer = PackedLayer(KIVI(bits=4, group=8, sinks=4, window=16), 0)
    layer.update(*torch.randn(2, 1, 2, 60, 8))
    before = {name: field.clone() for name, field in layer.stores[0].read().items()}
    for _ in range(100):
        layer.update(*torch.randn(2, 1, 2, 1, 8))
    for name, field in layer.stores[0].read(0, before["keys.codes"].shape[2]).items():
        assert torch.equal(field, before[name])


def test_a_layer_goes_where_its_states_are():
    """Move a layer to the device of its new states, as a cache from a file must if a model is on several devices."""
    layer = PackedLayer(KIVI(4, group=8, sinks=2, window=8), 0)
    layer.update(*torch.randn(2, 1, 2, 40, 8))
    keys, values = layer.update(*torch.randn(2, 1, 2, 1, 8, device="meta"))
    assert keys.device.type == values.device.type == layer.device.type == "meta" and keys.shape[2] == 41
    held = [*layer.sinks, *layer.residual, *layer.stores[0].read().values()]
    assert {x.device.type for x in held} == {"meta"}


def test_sliding_windows_hold_no_more_than_they_need():
    layer = PackedLayer(KIVI(bits=4, group=8, sinks=4, window=8), 0, sliding_window=40)
    for _ in range(200):
        layer.update(*torch.randn(2, 1, 2, 1, 8))
    assert layer.get_seq_length() == 200
    assert 39 <= layer.stored <= 39 + 8
    with pytest.raises(RuntimeError, match="activate_past_recording"):
        layer.crop(-1)


def test_an_old_transformers_is_named(monkeypatch):
    monkeypatch.delattr(transformers.cache_utils, "get_layer_types_and_kwargs")
    monkeypatch.delitem(sys.modules, "squeeze.kv.contract")
    with pytest.raises(PolicyError, match=r"KV caches need a newer transformers than \d"):
        __import__("squeeze.kv.contract")


@pytest.mark.parametrize("policy", [FullPrecision(), KIVI(bits=4, group=8, sinks=0, window=8)])
def test_nothing_holds_on_to_a_prompt(policy):
    layer = PackedLayer(policy, 0)
    layer.update(*torch.randn(2, 1, 2, 100, 8))
    full = 2 * 100 * 2 * 8 * 4
    assert layer.nbytes == full if not policy.block else layer.nbytes < full / 2


def test_states_of_other_kinds_stay_transformers_own():
    from transformers import Lfm2Config, Lfm2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    kinds = {"layer_types": ["conv", "full_attention", "conv"], "num_key_value_heads": 2, "vocab_size": 61}
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(Lfm2Config(**shape, **kinds, eos_token_id=None)).eval()
    expected = generated(model, tokens(), DynamicCache(config=model.config))
    assert torch.equal(expected, generated(model, tokens(), QuantizedKVCache(model.config, FullPrecision())))
    cache = QuantizedKVCache(model.config, KIVI(8, group=8, window=8))
    generated(model, tokens(), cache)
    assert [layer.blocks for layer in cache.packed_layers] == [7]
