"""Caches of models with linear attention: states in 8 bits, coded keys and values, and windows that stay."""

import copy
import functools
import inspect

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from squeeze.errors import PolicyError, SqueezeError
from squeeze.kv import KIVI, FullPrecision, Hybrid, QuantizedKVCache, attention
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import SinksAndWindow, SnapKV
from squeeze.kv.policies import describe, policy_of
from squeeze.kv.recurrent import CodedStates, StateCoder
from squeeze.kv.specs import codes_states, make_policy
from tests.makers import zoo
from tests.makers.cases import every
from tests.makers.command import call
from tests.makers.kv_models import mistral, qwen2, tokens

RECURRENT = ("qwen3_next", "bamba", "mamba", "mamba2")  # all with full attention or none
BOTH = ("falcon_h1", "zamba2")  # layers with states, and keys and values
KIVI8 = KIVI(bits=8, group=8, sinks=2, window=8)


@functools.cache
def model(name):
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(zoo.config(name)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.15)
    return made


def generated(network, policy, count=30, **options):
    ids = tokens(batch=1, length=24)
    cache = DynamicCache(config=network.config) if policy is None else QuantizedKVCache(network.config, policy)
    options = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False} | options
    return network.generate(ids, attention_mask=torch.ones_like(ids), **{argument(network): cache}, **options), cache


def argument(network):
    """Return the name of the cache in the arguments of a model."""
    return CACHE if CACHE in inspect.signature(network.forward).parameters else "cache_params"


@pytest.mark.parametrize("name", RECURRENT + BOTH)
def test_full_precision_equals_transformers_cache(name):
    expected, _ = generated(model(name), None)
    found, cache = generated(model(name), FullPrecision())
    assert torch.equal(found, expected)
    assert bool(cache.nbytes >= cache.full_precision_nbytes > 0)


@pytest.mark.parametrize("name", ["bamba", pytest.param("qwen3_next", marks=pytest.mark.slow)])
def test_states_in_8_bits_with_feedback_give_the_same_200_tokens(name):
    expected, _ = generated(model(name), FullPrecision(), 200)
    found, cache = generated(model(name), Hybrid(FullPrecision()), 200)
    assert torch.equal(found, expected)
    coded = [layer.recurrent_states for layer in cache.layers if hasattr(layer, "recurrent_states")]
    assert coded and all(isinstance(states, CodedStates) for states in coded)
    assert cache.nbytes < cache.full_precision_nbytes
    assert sum(one.nbytes for states in coded for one in states.tensors()) < sum(one.dense_nbytes for one in coded)


@pytest.mark.parametrize("name", every(2, RECURRENT + BOTH))
def test_feedback_keeps_states_nearer_than_plain_rounding(name):
    network, ids = model(name), tokens(batch=1, length=60)
    lost = []
    for policy in (FullPrecision(), Hybrid(FullPrecision(), feedback=0), Hybrid(FullPrecision(), feedback=4)):
        cache = QuantizedKVCache(network.config, policy)
        with torch.no_grad():
            logits = torch.cat([network(one[:, None], **{argument(network): cache}).logits for one in ids.unbind(1)], 1)
        lost.append(logits)
    plain, fed = ((one - lost[0]).norm() / lost[0].norm() for one in lost[1:])
    assert 0 < fed < 0.3 * plain and fed < 0.01, (fed, plain)


@pytest.mark.parametrize("name", BOTH)
def test_keys_and_values_beside_states_are_coded(name):
    network = model(name)
    for way in ({}, {"num_beams": 2}):
        found, cache = generated(network, Hybrid(KIVI8), **way)
        assert found.shape[1] == 54
        assert cache.packed_layers and all(layer.blocks for layer in cache.packed_layers)
        assert cache.nominal_bits > 8


@pytest.mark.parametrize("name", ["qwen3_next", *BOTH])
@pytest.mark.parametrize("policy", [FullPrecision(), Hybrid(KIVI8)])
def test_a_file_without_states_is_not_written(tmp_path, name, policy):
    network = model(name)
    cache = QuantizedKVCache(network.config, policy)
    with torch.no_grad():
        network(tokens(batch=1, length=24), **{argument(network): cache})
    with pytest.raises(SqueezeError, match="this model has states of other kinds"):
        cache.save(tmp_path / "file.kv", network)
    assert not list(tmp_path.iterdir())


def test_a_cache_with_states_is_copied_reset_and_used_again():
    network, ids = model("qwen3_next"), tokens(batch=1, length=24)
    cache = QuantizedKVCache(network.config, Hybrid(FullPrecision()))
    with torch.no_grad():
        network(ids[:, :12], **{CACHE: cache})
        other = copy.deepcopy(cache)
        one, two = (network(ids[:, 12:], **{CACHE: each}).logits for each in (cache, other))
        assert torch.equal(one, two)
        cache.reset()
        first = network(ids[:, :12], **{CACHE: cache}).logits
        fresh = network(ids[:, :12], **{CACHE: QuantizedKVCache(network.config, Hybrid(FullPrecision()))}).logits
    assert torch.equal(first, fresh)


@pytest.mark.parametrize("feedback", [0, 4, 8])
@pytest.mark.parametrize("shape", [(2, 3, 8, 16), (1, 5, 7), (3, 64)])
def test_a_state_is_near_its_code(feedback, shape):
    state = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 100
    state[0].mul_(1e-6)
    coder = StateCoder(feedback)
    fields = coder.encode(state)
    found = coder.decode(fields, state.shape, state.dtype)
    rows = state.abs().flatten(1).amax(1)
    error = (found - state).abs().flatten(1).amax(1)
    assert found.shape == state.shape and bool((error <= rows / 120 / 2**feedback).all())
    padded = shape[0] * -(-state[0].numel() // 64) * 64
    assert 8 * sum(one.nbytes for one in fields.values()) == coder.bits * padded
    zero = torch.zeros(shape)
    assert torch.equal(coder.decode(coder.encode(zero), zero.shape, zero.dtype), zero)


@pytest.mark.parametrize("make", [mistral, qwen2])
def test_windows_may_stay_exact(make, tmp_path):
    network, ids = make(), tokens(batch=1, length=40)
    cache = QuantizedKVCache(network.config, Hybrid(KIVI8, windows="exact"))
    with torch.no_grad():
        network(ids, **{CACHE: cache})
    assert [layer.blocks > 0 for layer in cache.packed_layers] == [not one.is_sliding for one in cache.packed_layers]
    cache.save(tmp_path / "file.kv", network)
    again = QuantizedKVCache.load(tmp_path / "file.kv", network.config, model=network)
    assert again.policy == cache.policy
    for one, other in zip(cache.packed_layers, again.packed_layers, strict=True):
        assert torch.equal(one.keys, other.keys)


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("full+hybrid:8", Hybrid(FullPrecision())),
        ("kivi:4+hybrid:states=16,windows=exact", Hybrid(KIVI(bits=4), states=16, windows="exact")),
        ("kivi:4+snapkv:512+hybrid:8,feedback=0", Hybrid(SnapKV(KIVI(bits=4), 512), feedback=0)),
    ],
)
def test_policies_are_words_and_descriptions(words, policy):
    assert make_policy(words) == policy == policy_of(describe(policy))
    assert codes_states(words) == (policy.states == 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hybrid(FullPrecision(), states=4), "states take 8 or 16 bits, got 4"),
        (lambda: Hybrid(FullPrecision(), feedback=3), "feedback takes 0, 4 or 8 bits"),
        (lambda: Hybrid(FullPrecision(), windows="no"), "windows are coded or exact"),
        (lambda: Hybrid(Hybrid(FullPrecision())), "hybrid is given twice"),
        (lambda: SinksAndWindow(Hybrid(FullPrecision())), "give it last"),
        (lambda: make_policy("kivi:4+hybrids"), "'hybrids' after . is unknown"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(PolicyError, match=message):
        make()


def test_attention_reads_codes_beside_states():
    network = copy.deepcopy(model("qwen3_next"))
    expected, _ = generated(network, Hybrid(KIVI8))
    attention.install(network)
    found, cache = generated(network, Hybrid(KIVI8))
    assert torch.equal(found, expected)
    assert all(layer.is_read for layer in cache.packed_layers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bamba", "mamba"])
def test_commands_measure_and_generate_with_coded_states(name, tmp_path):
    folder = zoo.write(tmp_path / "model", name, torch.float32)
    (tmp_path / "text").write_text(zoo.TEXT)
    options = ("--context", "64", "--windows", "1", "--policy", "full+hybrid:8", "--no-cost")
    told = call("kv-eval", folder, "--text", tmp_path / "text", *options)
    assert told.exit_code == 0, told.stderr
    assert "full+hybrid:8 (continued)" in told.stdout
    told = call("generate", folder, "the", "--tokens", "4", "--kv", "full+hybrid:8")
    assert told.exit_code == 0, told.stderr
