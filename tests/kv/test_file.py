"""Saved KV caches: the same to the bit, smaller than what they hold, and refused where they do not belong."""

import json
import os

import pytest
import safetensors.numpy
import torch

from squeeze.errors import DamagedError, FormatError, ModelError, PolicyError, SqueezeError, TruncatedError
from squeeze.kv import KIVI, FullPrecision, QuantizedKVCache, Rotated, VidKV
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.contract import CACHE
from squeeze.kv.statistics import observe
from squeeze.kv.waterfill import transform_policy
from squeeze.system import temporary
from tests.makers.kv_models import MODELS, llama, mistral, tokens

POLICIES = [
    FullPrecision(),
    KIVI(4, group=16, window=16),
    KIVI(bits=((2, 8), 3), value_bits=4, group=16, window=16),
    Rotated(2, window=16),
    VidKV(window=16, block=32),
    BlockFloat(4, window=16),
]


def filled(model, policy, length=150):
    cache = QuantizedKVCache(model.config, policy)
    with torch.no_grad():
        model(tokens(2, length), **{CACHE: cache})
    return cache


def same(one, other):
    assert one.policy == other.policy
    for a, b in zip(one.packed_layers, other.packed_layers, strict=True):
        assert a.get_seq_length() == b.get_seq_length() and a.coded_tokens == b.coded_tokens
        for x, y in zip((*a.sinks, *a.residual, *a.dense()), (*b.sinks, *b.residual, *b.dense()), strict=True):
            assert x.dtype == y.dtype and torch.equal(x, y)
        for s, t in zip(a.stores, b.stores, strict=True):
            assert s.read().keys() == t.read().keys()
            assert all(torch.equal(field, t.read()[name]) for name, field in s.read().items())


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_cache_is_the_saved_one_to_the_bit(policy, dtype, tmp_path):
    model = (llama if policy.block else mistral)().to(dtype)
    cache = filled(model, policy)
    assert cache.save(tmp_path / "a.kv", model) == (tmp_path / "a.kv").stat().st_size
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, model=model)
    same(cache, again)
    step = torch.tensor([[5], [6]])
    with torch.no_grad():
        expected, found = (model(step, **{CACHE: c}).logits for c in (cache, again))
    assert torch.equal(expected, found)


def test_an_empty_cache(tmp_path):
    config = llama().config
    QuantizedKVCache(config, KIVI()).save(tmp_path / "a.kv")
    assert QuantizedKVCache.load(tmp_path / "a.kv", config).get_seq_length() == 0


def test_a_file_is_smaller_than_what_it_holds(tmp_path):
    model = llama().to(torch.bfloat16)
    cache = filled(model, FullPrecision(), 500)
    assert cache.save(tmp_path / "a.kv") < 0.9 * cache.nbytes


def test_a_prefix_is_read_once_and_used_again(tmp_path):
    model, prefix = llama(), tokens(length=100)
    with torch.no_grad():
        model(prefix, **{CACHE: (cache := QuantizedKVCache(model.config, KIVI(8, group=16, window=16)))})
    cache.save(tmp_path / "prefix.kv")
    found = []
    for seed in (1, 1, 2):
        again = QuantizedKVCache.load(tmp_path / "prefix.kv", model.config)
        ids = torch.cat([prefix, tokens(length=5, seed=seed)], 1)
        options = {"max_new_tokens": 10, "do_sample": False, "attention_mask": torch.ones_like(ids)}
        found.append(model.generate(ids, **{CACHE: again}, **options))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_a_prompt_that_is_named(tmp_path):
    model, path, prompt = llama(), tmp_path / "a.kv", tokens(length=60)
    cache = QuantizedKVCache(model.config, KIVI(4, group=16, window=16))
    with torch.no_grad():
        model(prompt, **{CACHE: cache})
    cache.save(path, model, prompt[0])
    longer = torch.cat([prompt[0], torch.tensor([3, 4])])
    same(cache, QuantizedKVCache.load(path, model.config, prompt=longer))
    same(cache, QuantizedKVCache.load(path, model.config))
    for wrong in (prompt[0, :-1], longer.flip(0)):
        with pytest.raises(SqueezeError, match="this cache is of another prompt, of 60 tokens"):
            QuantizedKVCache.load(path, model.config, prompt=wrong)
    cache.save(path, model, prompt[0, 1:])
    with pytest.raises(DamagedError, match="do not make up a KV cache"):
        QuantizedKVCache.load(path, model.config)
    cache.save(path, model)
    with pytest.raises(SqueezeError, match="was saved without its prompt"):
        QuantizedKVCache.load(path, model.config, prompt=longer)


def test_weights_of_other_forms_are_compared(tmp_path):
    model, path = llama(), tmp_path / "a.kv"
    model.lm_head.register_buffer("codes", torch.arange(8))
    filled(model, KIVI(4, group=16)).save(path, model)
    QuantizedKVCache.load(path, model.config, model=model)
    model.lm_head.codes[3] = 0
    with pytest.raises(ModelError, match="other weights"):
        QuantizedKVCache.load(path, model.config, model=model)


def test_a_calibrated_policy_is_given_again(tmp_path):
    model = llama()
    statistics = observe(model, tokens(length=150)[0], context=150, windows=1, window=16)
    policy, other = (transform_policy(model, statistics, bits, window=16) for bits in (4, 5))
    cache = filled(model, policy)
    cache.save(tmp_path / "a.kv")
    same(cache, QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=policy))
    with pytest.raises(PolicyError, match="its policy was calibrated and is not in the file: give it as"):
        QuantizedKVCache.load(tmp_path / "a.kv", model.config)
    with pytest.raises(PolicyError, match="the policy given is not the one that it was made with"):
        QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=other)


def test_what_does_not_belong_is_refused(tmp_path):
    model, path = llama(), tmp_path / "a.kv"
    filled(model, KIVI(4, group=16)).save(path, model)
    with pytest.raises(ModelError, match="another config"):
        QuantizedKVCache.load(path, MODELS["qwen2"]().config)
    other = llama()
    other.lm_head.weight.data[0, 0] += 1
    with pytest.raises(ModelError, match="other weights"):
        QuantizedKVCache.load(path, other.config, model=other)
    with pytest.raises(PolicyError, match="not with the policy given"):
        QuantizedKVCache.load(path, model.config, policy=KIVI(2))


def test_damage_has_a_name(tmp_path):
    model, path = llama(), tmp_path / "a.kv"
    filled(model, KIVI(4, group=16, window=16)).save(path)
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for at in range(start, len(data), 701):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            QuantizedKVCache.load(path, model.config)
        except DamagedError:
            continue
        # a byte of padding may change: what is loaded has its checksum
    for at in range(9, start, 61):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            QuantizedKVCache.load(path, model.config)
        except SqueezeError:
            continue
    path.write_bytes(data[:-10])
    with pytest.raises(TruncatedError):
        QuantizedKVCache.load(path, model.config)
    path.write_bytes(safetensors.numpy.save({}))
    with pytest.raises(FormatError, match="not a saved KV cache"):
        QuantizedKVCache.load(path, model.config)
    path.write_bytes(safetensors.numpy.save({}, metadata={"squeeze.kv": json.dumps({"version": 9})}))
    with pytest.raises(FormatError):
        QuantizedKVCache.load(path, model.config)


def test_a_file_is_replaced_whole_and_by_no_name_that_can_be_guessed(tmp_path, monkeypatch):
    model, path = llama(), tmp_path / "a.kv"
    QuantizedKVCache(model.config, KIVI()).save(path)
    before = path.read_bytes()
    names = []
    real = temporary.tempfile.mkstemp

    def full(*args, **options):
        handle, name = real(*args, **options)
        names.append(name)
        os.close(handle)
        return os.open("/dev/full", os.O_RDWR), name

    monkeypatch.setattr(temporary.tempfile, "mkstemp", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            QuantizedKVCache(model.config, KIVI()).save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    assert len(set(names)) == 2
