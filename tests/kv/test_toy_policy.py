"""A policy with a coder of its own takes a file and a row of the registry: the rest of the program follows."""

import json
from dataclasses import dataclass

import pytest
import torch
from click.testing import CliRunner

from squeeze.cli import main
from squeeze.errors import PolicyError
from squeeze.kv import HeadGroup, Policy, QuantizedKVCache
from squeeze.kv.contract import CACHE
from squeeze.kv.measure import nominal_bits
from squeeze.kv.policies import POLICIES, describe, digest_of, load_policy, policy_of, save_policy
from squeeze.kv.specs import make_policy, needs_calibration
from tests.makers import tiny_models
from tests.makers.kv_models import llama, tokens


@dataclass(frozen=True)
class SignsCoder:
    """The sign of each value, a byte each, times the `power` mean size of its token."""

    power: float

    def bits(self, block, size):
        return 8 + 32 / size

    def encode(self, blocks, start):
        size = blocks.float().abs().pow(self.power).mean(-1).pow(1 / self.power)
        return {"signs": (blocks > 0).to(torch.uint8), "size": size}

    def decode(self, fields, start, dtype):
        return ((2 * fields["signs"].float() - 1) * fields["size"][..., None]).to(dtype)


@dataclass(frozen=True)
class Signs(Policy):
    power: float = 2.0
    only: str = "both"
    sinks: int = 4
    window: int = 64
    block: int = 16

    def head_groups(self, layer, heads):
        if self.only not in ("both",):
            raise PolicyError(f"signs are of both keys and values, not of {self.only}")
        coder = SignsCoder(self.power)
        return [HeadGroup(coder, coder)]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(POLICIES, "signs", Signs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy")
    (path / "text.txt").write_bytes(tiny_models.TRAINING_TEXT[:4000])
    tiny_models.write_endless(path / "model")
    return path


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_words_name_it_and_its_parameters():
    assert make_policy("signs") == Signs()
    assert make_policy("signs:power=1.5,block=8", sinks=2, window=16) == Signs(1.5, sinks=2, window=16, block=8)
    assert make_policy("signs+window:40").policy == Signs()
    assert not needs_calibration("signs")
    for words, message in (
        ("signs:3", "policy signs has no bits: it takes block, only, power, sinks, window"),
        ("signs:block=1.5", "block cannot be 1.5"),
        ("signs:power=many", "power must be a number, got 'many'"),
        ("sings", "policy 'sings' is unknown: choose from full, kivi, rotated, vidkv, blockfloat, signs, transform"),
    ):
        with pytest.raises(PolicyError) as caught:
            make_policy(words)
        assert str(caught.value).startswith(message)


def test_it_is_described_saved_and_loaded(tmp_path):
    policy = Signs(1.5, block=8)
    assert describe(policy)["name"] == "signs" and policy_of(describe(policy)) == policy
    save_policy(policy, tmp_path / "signs.json")
    assert load_policy(tmp_path / "signs.json") == policy and make_policy(str(tmp_path / "signs.json")) == policy
    assert digest_of(policy) != digest_of(Signs(1.25, block=8))
    (tmp_path / "signs.json").write_text('{"name": "signs", "parameters": {"block": "8"}}')
    with pytest.raises(PolicyError, match="block must be an integer of at least 0, got '8'"):
        load_policy(tmp_path / "signs.json")


def test_a_cache_goes_through_a_file(tmp_path):
    model, policy = llama(), Signs(1.5, window=16)
    cache = QuantizedKVCache(model.config, policy)
    with torch.no_grad():
        model(tokens(2, 150), **{CACHE: cache})
    assert all(layer.blocks for layer in cache.packed_layers)
    assert cache.nominal_bits == nominal_bits(policy, model) == 12
    cache.save(tmp_path / "a.kv", model)
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, model=model)
    assert again.policy == policy
    for one, other in zip(cache.packed_layers, again.packed_layers, strict=True):
        assert all(map(torch.equal, one.dense(), other.dense()))


def test_kv_eval_measures_it(folder):
    found = run("kv-eval", folder / "model", "--text", folder / "text.txt", "--policy", "signs:power=1.5", "--context",
                150, "--windows", 1, "--save-policy", folder / "signs.json", "--json", "-T", 1)  # fmt: skip
    assert found.exit_code == 0, found.output
    row = json.loads(found.stdout.splitlines()[-1])
    assert row["policy"] == "signs:power=1.5" and row["bits"] > 8 and row["distance"]["kl"] > 0
    assert load_policy(folder / "signs.json") == Signs(1.5)


def test_generate_uses_it(folder):
    for words in ("signs:window=16", "signs:window=16+snapkv:40,observed=8"):
        found = run("generate", folder / "model", "def main():" * 20, "-n", 5, "-T", 1, "--kv", words, "--json")
        assert found.exit_code == 0, found.output
        assert "Signs(power=2.0, only='both', sinks=4, window=16, block=16)" in json.loads(found.stdout)["policy"]
