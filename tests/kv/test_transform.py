"""Transform coding: its error, and attention without decoding."""

from dataclasses import replace

import pytest
import torch

from squeeze.errors import PolicyError
from squeeze.kv import QuantizedKVCache, attention
from squeeze.kv.attention import cpu
from squeeze.kv.contract import CACHE
from squeeze.kv.transform import TransformCoder, scales
from squeeze.kv.waterfill import transform_policy
from tests.makers.kv_models import calibrated_on_text, error_of, gpt2, llama, tokens


@pytest.fixture(scope="module", params=[llama, gpt2])
def calibrated(request):
    return calibrated_on_text(request.param())


def test_more_bits_give_smaller_errors_within_the_budget(calibrated):
    model, statistics = calibrated
    policies = [transform_policy(model, statistics, bits, window=16) for bits in (3, 5, 6.9)]
    errors = [error_of(model, policy) for policy in policies]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.06
    for policy, bits in zip(policies, (3, 5, 6.9), strict=True):
        assert policy.bits <= bits
        assert policy.bits > bits - 0.2
    with pytest.raises(PolicyError, match="got 9"):
        transform_policy(model, statistics, 9)
    assert model.config._attn_implementation != "squeeze_kv_observer"
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("widths", [(6, 6, 5, 4, 3, 3, 2, 1), (5, 3), (1,), ()])
def test_unpacking_equals_plain_torch(widths):
    count = 8 * len(widths)
    into = torch.eye(64)[:count]
    coder = TransformCoder(widths, into, into.T.contiguous(), torch.zeros(64), torch.ones(count))
    fields = coder.encode(torch.randn(2, 1, 3, 32, 64), 0)
    packed, scale = fields["codes"].flatten(2, 3), torch.randint(0, 256, (2, 1, 96), dtype=torch.uint8)
    assert torch.equal(coder.channels_of(packed, scale), coder.points_of(packed) * scales()[scale.int(), None])
    rows, weights, plain = (
        torch.randn(3, 64),
        torch.rand(3, 96),
        coder.decode(fields, 0, torch.float32)[1, 0].flatten(0, 1),
    )
    here = {name: field[1, 0] for name, field in fields.items()}
    found = torch.empty(3, 96), torch.ones(3, 64)
    cpu.transformed_scores(coder, here, rows, 0, found[0])
    cpu.transformed_outputs(coder, here, weights, found[1])
    torch.testing.assert_close(found[0], rows @ plain.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1], 1 + weights @ plain, rtol=1e-4, atol=1e-4)


def test_tokens_of_any_number_in_tiles(monkeypatch):
    """46 blocks of 24: more than are unpacked at once, and a last tile that is no whole vector."""
    monkeypatch.setattr(cpu, "_TOKENS_AT_ONCE", 1060)
    widths, start = (6, 3, 1), 7
    into, frequencies = torch.linalg.qr(torch.randn(64, 24))[0].T.contiguous(), 10000 ** (-torch.arange(24) / 24)
    coder = TransformCoder(widths, into, into.T.contiguous(), torch.randn(64), torch.ones(24), frequencies)
    fields = coder.encode(torch.randn(1, 1, 46, 24, 64), start)
    rows, weights = torch.randn(3, 64), torch.rand(3, 46 * 24)
    here = {name: field[0, 0] for name, field in fields.items()}
    found = torch.empty(3, 46 * 24), torch.zeros(3, 64)
    cpu.transformed_scores(coder, here, rows, start, found[0])
    plain = coder.decode(fields, start, torch.float32)[0, 0].flatten(0, 1)
    torch.testing.assert_close(found[0], rows @ plain.T, rtol=1e-4, atol=1e-4)
    values = replace(coder, frequencies=None)
    cpu.transformed_outputs(values, here, weights, found[1])
    plain = values.decode(fields, start, torch.float32)[0, 0].flatten(0, 1)
    torch.testing.assert_close(found[1], weights @ plain, rtol=1e-4, atol=1e-2)


@torch.no_grad()
def test_attention_reads_codes_without_decoding(calibrated, monkeypatch):
    model, statistics = calibrated
    policy = transform_policy(model, statistics, 4, window=16)
    ids, found = tokens(length=150, seed=3), []
    attention.install(model)
    for decodes in (True, False):
        cache = QuantizedKVCache(model.config, policy)
        model(ids[:, :140], **{CACHE: cache})
        with monkeypatch.context() as patch:
            if decodes:
                patch.setattr(cpu, "fits", lambda query, view: False)
            else:
                patch.setattr(TransformCoder, "decode", None)
            found.append([model(ids[:, at : at + 1], **{CACHE: cache}).logits for at in range(140, 143)])
    for with_tiles, without in zip(*found, strict=True):
        torch.testing.assert_close(without, with_tiles, rtol=1e-4, atol=1e-4)
