"""Archived caches: small files that restore what attention needs, and refuse what does not belong to them."""

import json
import struct

import pytest
import torch

from squeeze.errors import DamagedError, FormatError, LimitError, PolicyError, SqueezeError
from squeeze.kv import FullPrecision, QuantizedKVCache
from squeeze.kv.archive.calibrate import archive_policy
from squeeze.kv.contract import CACHE
from squeeze.kv.statistics import observe
from squeeze.system.limits import Limits
from tests.makers.kv_models import gpt2, llama, mistral, tokens


@pytest.fixture(scope="module", params=[llama, gpt2])
def calibrated(request):
    model = request.param()
    return model, observe(model, tokens(length=1200)[0], context=200, windows=2, window=16, joint=6)


def filled(model, policy, length=150, batch=1):
    cache = QuantizedKVCache(model.config, policy)
    with torch.no_grad():
        model(tokens(batch, length), **{CACHE: cache})
    return cache


def error_of(model, policy, tmp_path, batch=1):
    """Return the relative error of logits after a cache was archived, and the bits per value of its file."""
    cache = filled(model, policy, batch=batch)
    size = cache.save(tmp_path / "a.kv", model)
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=policy, model=model)
    assert again.get_seq_length() == 150 and again.dtype == cache.dtype
    step = tokens(batch, 5, seed=9)
    with torch.no_grad():
        expected, found = (model(step, **{CACHE: c}).logits for c in (cache, again))
    values = sum(x.numel() for layer in again.packed_layers for x in layer.dense())
    return float((expected - found).norm() / expected.norm()), 8 * size / values


@pytest.mark.parametrize("batch", [1, 3])
def test_more_bits_restore_more(calibrated, batch, tmp_path):
    model, statistics = calibrated
    found = [error_of(model, archive_policy(model, statistics, bits), tmp_path, batch) for bits in (8, 5, 2)]
    errors, bits = zip(*found, strict=True)
    assert errors[0] < errors[1] < errors[2] and errors[0] < 0.02
    assert bits[0] > bits[1] > bits[2]


def test_first_tokens_keep_16_bits(calibrated, tmp_path):
    model, statistics = calibrated
    policy = archive_policy(model, statistics, 0.5, sinks=3)
    cache = filled(model, policy)
    cache.save(tmp_path / "a.kv")
    again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=policy)
    for one, other in zip(cache.packed_layers, again.packed_layers, strict=True):
        for x, y in zip(one.dense(), other.dense(), strict=True):
            assert torch.equal(x[:, :, :3].bfloat16().float(), y[:, :, :3]) and not torch.equal(x, y)


@pytest.mark.parametrize("length", [1, 4, 5])
def test_short_and_empty_caches(calibrated, length, tmp_path):
    model, statistics = calibrated
    policy = archive_policy(model, statistics, 2)
    for cache, count in ((QuantizedKVCache(model.config, policy), 0), (filled(model, policy, length), length)):
        cache.save(tmp_path / "a.kv")
        again = QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=policy)
        assert again.get_seq_length() == count
    with torch.no_grad():
        model(torch.tensor([[5]]), **{CACHE: again})
    assert again.get_seq_length() == length + 1


def test_it_is_exact_in_memory(calibrated):
    model, statistics = calibrated
    exact = filled(model, FullPrecision())
    for one, other in zip(
        exact.packed_layers, filled(model, archive_policy(model, statistics, 1)).packed_layers, strict=True
    ):
        assert all(torch.equal(x, y) for x, y in zip(one.dense(), other.dense(), strict=True))


def test_the_policy_must_be_the_one_it_was_saved_with(calibrated, tmp_path):
    model, statistics = calibrated
    policy, other = (archive_policy(model, statistics, bits) for bits in (2, 3))
    filled(model, policy).save(tmp_path / "a.kv")
    with pytest.raises(PolicyError, match="calibrated and is not in the file"):
        QuantizedKVCache.load(tmp_path / "a.kv", model.config)
    with pytest.raises(PolicyError, match="not the one that it was made with"):
        QuantizedKVCache.load(tmp_path / "a.kv", model.config, policy=other)


def test_sliding_windows_are_refused(tmp_path):
    model = mistral()
    plain = llama()
    statistics = observe(plain, tokens(length=400)[0], context=200, windows=1, window=16, joint=1)
    with pytest.raises(SqueezeError, match="needs layers that hold all tokens: this model has a sliding window"):
        filled(model, archive_policy(plain, statistics, 2)).save(tmp_path / "a.kv")
    assert not (tmp_path / "a.kv").exists()


def test_states_are_counted_before_they_are_decoded(calibrated, tmp_path):
    model, statistics = calibrated
    policy = archive_policy(model, statistics, 0.1)
    filled(model, policy, 400).save(tmp_path / "a.kv")
    with pytest.raises(LimitError):
        QuantizedKVCache.load(
            tmp_path / "a.kv", model.config, policy=policy, limits=Limits(memory=1 << 30, output=20_000)
        )


def changed(path, change):
    """Change the description of a saved cache, without the checksum that would tell."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    described = json.loads(header["__metadata__"]["squeeze.kv"])
    change(described)
    header["__metadata__"]["squeeze.kv"] = json.dumps(described)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = bytearray(len(text).to_bytes(8, "little") + text + data[8 + size :])
    from squeeze.kv import saved

    body[saved._PLACE] = saved._ZEROS
    body[saved._PLACE] = saved.xxhash.xxh3_64_hexdigest(body).encode()
    path.write_bytes(body)


def record(name, **fields):
    return lambda described: described["records"][name].update(fields)


WRONG = {
    "more tokens": record("0.archive", shape=[1, 147, 3]),
    "another checksum": record("0.archive", xxh3="0" * 16),
    "no batch": record("0.archive", shape=[0, 146, 3]),
    "two axes": record("0.archive", shape=[146, 3]),
    "another coding": record("0.archive", coding="stored", dtype="U8"),
    "a layer less": lambda described: described["layers"].pop(),
    "first tokens as codes": record("0.first", coding="archive", dtype="I32"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_descriptions_that_do_not_fit_are_refused(calibrated, fault, tmp_path):
    model, statistics = calibrated
    policy, path = archive_policy(model, statistics, 0.5), tmp_path / "a.kv"
    filled(model, policy).save(path)
    changed(path, WRONG[fault])
    with pytest.raises(FormatError) as raised:
        QuantizedKVCache.load(path, model.config, policy=policy)
    assert isinstance(raised.value, DamagedError) and str(raised.value).startswith(f"{path}: ")
