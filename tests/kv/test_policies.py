"""Policies by name, in JSON and in files: what is written is read, and what is invalid is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from squeeze.errors import FormatError, PolicyError
from squeeze.kv import KIVI, POLICIES, QuantizedKVCache, Rotated
from squeeze.kv.blockfloat import BlockFloat
from squeeze.kv.contract import CACHE
from squeeze.kv.evict import SinksAndWindow, SnapKV, SoftPrune
from squeeze.kv.policies import WRAPPERS, digest_of, load_policy, policy_of, save_policy
from squeeze.kv.waterfill import transform_policy
from tests.makers import hostile
from tests.makers.kv_models import calibrated_on_text, llama, tokens


def test_every_policy_is_known_by_name():
    assert set(POLICIES) == {"full", "kivi", "rotated", "vidkv", "blockfloat"}
    for kind in POLICIES.values():
        policy, model = kind(), llama()
        model(tokens(length=150), **{CACHE: (cache := QuantizedKVCache(model.config, policy))})
        assert all(layer.blocks for layer in cache.packed_layers) == bool(policy.block)
        assert cache.get_seq_length() == 150


def test_bits_may_differ_by_layer_and_head():
    model = llama()
    cache = QuantizedKVCache(model.config, KIVI(bits=(2, (4, 8)), group=16, window=16))
    model(tokens(length=100), **{CACHE: cache})
    assert [len(layer.head_groups) for layer in cache.packed_layers] == [1, 2]
    expected = (2 + 6) / 2 + (32 / 16 + 32 / 8) / 2  # values of 8 channels, so in groups of 8
    assert cache.nominal_bits == expected


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: KIVI(bits=5), "5 bits are not supported: choose from 1, 2, 3, 4, 8"),
        (lambda: Rotated(bits=(4, 16)), "16 bits are not supported: choose from 1, 2, 3, 4, 8"),
        (lambda: BlockFloat(bits=1), "1 bits are not supported: choose from 2, 3, 4, 8"),
        (lambda: KIVI(bits=(4,)).head_groups(1, 2), "bits are given for 1 layers, and the model has more"),
        (lambda: KIVI(bits=((4, 4, 4),)).head_groups(0, 2),
         "bits are given for 3 heads of layer 0, which has 2 KV heads"),
    ],
)  # fmt: skip
def test_refuses_parameters_that_no_policy_takes(make, message):
    with pytest.raises(PolicyError) as caught:
        make()
    assert str(caught.value) == message


@pytest.fixture(scope="module")
def calibrated():
    return calibrated_on_text(llama())


@pytest.mark.parametrize(
    "policy",
    [kind() for kind in POLICIES.values()]
    + [kind(KIVI(bits=((2, 4), 8), value_bits=3)) for kind in WRAPPERS.values()]
    + [SinksAndWindow(Rotated(3), limit=(64, 128)), SnapKV(Rotated(3), select=(7, 9))],
    ids=repr,
)
def test_a_loaded_policy_is_the_saved_one(policy, tmp_path):
    save_policy(policy, tmp_path / "policy.json")
    assert load_policy(tmp_path / "policy.json") == policy


def test_a_loaded_calibrated_policy_is_the_saved_one(calibrated, tmp_path):
    model, statistics = calibrated
    policy = transform_policy(model, statistics, 3, window=16)
    for wanted in (policy, SoftPrune(policy, select=20)):
        save_policy(wanted, tmp_path / "policy.safetensors")
        found = load_policy(tmp_path / "policy.safetensors")
        assert type(found) is type(wanted) and digest_of(found) == digest_of(wanted)
    cache = QuantizedKVCache(model.config, policy)
    model(tokens(length=100), **{CACHE: cache})
    cache.save(tmp_path / "a.kv")
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=found.policy)
    assert torch.equal(again.packed_layers[0].keys, cache.packed_layers[0].keys)
    with pytest.raises(PolicyError, match=r"must end in \.safetensors"):
        save_policy(policy, tmp_path / "policy.json")


def test_a_full_disk_leaves_a_policy_as_it_was(calibrated, tmp_path):
    path = tmp_path / "policy.safetensors"
    save_policy(transform_policy(*calibrated, 3, window=16), path)
    before = path.read_bytes()
    with hostile.largest_file(len(before) // 2), pytest.raises(OSError, match="File too large"):
        save_policy(transform_policy(*calibrated, 3, window=32), path)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == [path.name]


def test_an_evicting_cache_is_saved(tmp_path):
    model, policy = llama(), SinksAndWindow(KIVI(8, group=8, window=8), limit=16)
    cache = QuantizedKVCache(model.config, policy)
    model(tokens(length=100), **{CACHE: cache})
    cache.save(tmp_path / "a.kv")
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config)
    assert again.policy == policy and again.get_seq_length() == 100
    assert torch.equal(again.packed_layers[1].keys, cache.packed_layers[1].keys)


@pytest.mark.parametrize(
    "text, error, message",
    [
        ("{", FormatError, "is not a policy file"),
        ("[]", FormatError, "its policy is unknown to this version"),
        ('{"name": "kivi"}', FormatError, "its policy is unknown to this version"),
        ('{"name": "lru", "parameters": {}}', FormatError, "its policy is unknown to this version"),
        ('{"name": "kivi", "parameters": {"depth": 4}}', FormatError, "its policy is unknown to this version"),
        ('{"name": "kivi", "parameters": {"bits": 5}}', PolicyError, "5 bits are not supported: choose from 1"),
        ('{"name": "kivi", "parameters": {"bits": "4"}}', PolicyError, "4 bits are not supported: choose from 1"),
        ('{"name": "kivi", "parameters": {"window": "4"}}', PolicyError, "window must be an integer of at least 0"),
        ('{"name": "kivi", "parameters": {"window": -1}}', PolicyError, "window must be an integer of at least 0"),
    ],
)  # fmt: skip
def test_refuses_a_file_that_is_no_policy(text, error, message, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(error) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_refuses_files_with_other_tensors_or_headers(tmp_path):
    path = tmp_path / "policy.safetensors"
    for write in (lambda: path.write_bytes(b"{}"), lambda: save_file({"a": torch.zeros(1)}, path)):
        write()
        with pytest.raises(FormatError, match="is not a policy file"):
            load_policy(path)
    with pytest.raises(FormatError, match="No such file"):
        load_policy(tmp_path / "none.json")
    with pytest.raises(PolicyError, match="give it as policy="):
        policy_of(json.loads('{"name": "transform", "digest": "00"}'))


def nested(count):
    text = '{"name": "kivi", "parameters": {}}'
    for _ in range(count):
        text = f'{{"name": "window", "parameters": {{"policy": {text}}}}}'
    return text


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "kivi", "parameters": {"bits": true}}',
        '{"name": "kivi", "parameters": {"bits": 4.0}}',
        '{"name": "kivi", "parameters": {"bits": [[[4]]]}}',
        '{"name": "kivi", "parameters": {"value_bits": NaN}}',
        '{"name": "kivi", "parameters": {"window": Infinity}}',
        '{"name": "kivi", "parameters": {"window": 99999999999999999999}}',
        '{"name": "kivi", "parameters": {"window": "\\u001b[2J\\ud800"}}',
        '{"name": "kivi", "parameters": {}, "more": 1}',
        '{"name": "kivi", "parameters": []}',
        '{"name": ["kivi"], "parameters": {}}',
        '{"name": "rotated", "parameters": {"points": "odd"}}',
        '{"name": "rotated", "parameters": {"points": 1}}',
        '{"name": "vidkv", "parameters": {"block": 1048576}}',
        '{"name": "vidkv", "parameters": {"block": 12}}',
        '{"name": "blockfloat", "parameters": {"orders": [[[[0, 0], [0, 1]]]]}}',
        '{"name": "blockfloat", "parameters": {"orders": [[[["a"], [0]]]]}}',
        '{"name": "blockfloat", "parameters": {"orders": 7}}',
        '{"name": "window", "parameters": {"policy": {"name": "kivi", "parameters": {}}, "limit": "9"}}',
        '{"name": "window", "parameters": {"policy": {"name": "kivi", "parameters": {}}, "limit": [-1]}}',
        '{"name": "window", "parameters": {"limit": 9}}',
        '{"name": "window", "parameters": {"policy": 7}}',
        '{"name": "kivi", "parameters": {"bits": ' + "[" * 900 + "]" * 900 + "}}",
        "[" * 200_000,
        "9" * 5000,
        nested(2),
        nested(300),
        nested(5000),
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_refuses_descriptions_that_no_policy_has(text, tmp_path):
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises((FormatError, PolicyError)) as caught:
        load_policy(path)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 500


def test_one_eviction_goes_around_a_policy(tmp_path):
    (tmp_path / "policy.json").write_text(nested(1))
    assert load_policy(tmp_path / "policy.json").block == KIVI().block
    (tmp_path / "policy.json").write_text(nested(2))
    with pytest.raises(PolicyError, match="one policy that gives up tokens, got SinksAndWindow and SinksAndWindow"):
        load_policy(tmp_path / "policy.json")


def rewritten(policy, path, change):
    """Rewrite a policy file with other tensors or another header."""
    plain, tensors = policy.to_tensors()
    plain = json.loads(json.dumps(plain))
    change(plain, tensors)
    header = json.dumps({"transform": plain, "policy": {"name": "transform", "digest": digest_of(policy)}})
    save_file(tensors, path, metadata={"squeeze.kv_policy": header})


@pytest.mark.parametrize(
    "change",
    [
        lambda plain, tensors: plain["widths"][0][0][0].__setitem__(0, 9),
        lambda plain, tensors: plain["widths"][0][0][0].__setitem__(0, 0),
        lambda plain, tensors: plain["widths"][0][0][0].append(1),
        lambda plain, tensors: plain["widths"][0][0].pop(),
        lambda plain, tensors: plain.update(widths=7),
        lambda plain, tensors: plain.update(block=-1),
        lambda plain, tensors: plain.update(window=1.5),
        lambda plain, tensors: plain.update(bits=float("nan")),
        lambda plain, tensors: plain.update(bits="3"),
        lambda plain, tensors: plain.pop("sinks"),
        lambda plain, tensors: plain.update(more=1),
        lambda plain, tensors: tensors.pop("0.0.0.mean"),
        lambda plain, tensors: tensors.update({"0.0.0.mean": tensors["0.0.0.mean"][:-1].clone()}),
        lambda plain, tensors: tensors.update({"0.0.0.into": tensors["0.0.0.into"].half()}),
        lambda plain, tensors: tensors["0.0.0.back"].fill_(float("nan")),
        lambda plain, tensors: tensors.update({"frequencies": torch.ones(99)}),
    ],
)  # fmt: skip
def test_refuses_coders_that_do_not_match(change, calibrated, tmp_path):
    model, statistics = calibrated
    rewritten(transform_policy(model, statistics, 3, window=16), tmp_path / "policy.safetensors", change)
    with pytest.raises(FormatError, match="is not a policy file"):
        load_policy(tmp_path / "policy.safetensors")
