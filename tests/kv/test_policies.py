"""Every coder: what comes back, how near, in how many bits; and the registry of policies."""

import pytest
import torch
from hypothesis import given, strategies as st

from squeeze.errors import PolicyError
from squeeze.kernels import kv_attention
from squeeze.kernels.kv_attention import cpu, transformed
from squeeze.kv import KIVI, POLICIES, QuantizedKVCache, packing
from squeeze.kv.blockfloat import BlockFloat, BlockFloatCoder, channel_orders
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.lloyd_max import lloyd_max
from squeeze.kv.lowrank import low_rank_policy
from squeeze.kv.observe import observe
from squeeze.kv.rotary import apply_rotary, frequencies_of
from squeeze.kv.rotated import Rotated
from squeeze.kv.transform import TransformCoder
from squeeze.kv.vidkv import MixedKeys, TernaryValues
from squeeze.kv.waterfill import transform_policy
from tests.makers.kv_models import gpt2, llama, tokens

# Relative root mean square error on standard normal values, at most; theory says .117, .185, .34, .60 for
# Lloyd-Max in 4, 3, 2 and 1 bits, and even grids between the extremes of a group do worse.
ALONG = ("tokens", "channels")
EVEN = {8: 0.01, 4: 0.13, 3: 0.26, 2: 0.6}
NORMAL = {4: 0.11, 3: 0.2, 2: 0.36, 1: 0.65}
CODERS = {
    **{f"grid {w} {a}": (GroupedCoder(w, a), e) for w, e in EVEN.items() for a in ALONG},
    **{f"normal {w}": (GroupedCoder(w, "channels", rotate=True, points="normal"), e) for w, e in NORMAL.items()},
    **{f"block float {w}": (BlockFloatCoder(w, 8), e) for w, e in ((8, 0.011), (4, 0.2), (3, 0.42))},
    "block float, ordered": (BlockFloatCoder(4, 8, tuple(reversed(range(16)))), 0.2),
    "mixed keys": (MixedKeys(), 0.65),
    "ternary values": (TernaryValues(), 0.47),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CODERS))
def test_coders(name):
    coder, error = CODERS[name]
    blocks = torch.randn(2, 3, 4, 32, 16, generator=torch.Generator().manual_seed(0))
    kept = blocks.clone()
    fields = coder.encode(blocks, 5)
    assert torch.equal(blocks, kept)
    assert all(field.shape[:3] == (2, 3, 4) for field in fields.values())
    decoded = coder.decode(fields, 5, torch.float32)
    assert decoded.shape == blocks.shape
    assert (decoded - blocks).norm() < error * blocks.norm()
    assert sum(field.nbytes for field in fields.values()) * 8 / blocks.numel() == pytest.approx(coder.bits(32, 16))
    assert coder.decode(fields, 5, torch.bfloat16).dtype == torch.bfloat16
    # a block does not depend on those beside it
    alone = coder.decode(coder.encode(blocks[:, :, 1:2], 37), 37, torch.float32)
    torch.testing.assert_close(alone, decoded[:, :, 1:2])


# rotated, a constant is a single spike, which the points of a normal distribution cut off
@pytest.mark.parametrize("name", [name for name in CODERS if not name.startswith("normal")])
@pytest.mark.parametrize("value", [0.0, 1.5, -1e4])
def test_constant_blocks_come_back(name, value):
    coder, _ = CODERS[name]
    blocks = torch.full((1, 1, 1, 32, 16), value)
    decoded = coder.decode(coder.encode(blocks, 0), 0, torch.float32)
    torch.testing.assert_close(decoded, blocks, rtol=0.25, atol=1e-6)  # mantissas of 3 bits


@given(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8]), st.integers(1, 9), st.integers(0, 2**32))
def test_packing(width, bytes_a_bit, seed):
    codes = torch.randint(0, 1 << width, (2, 8 * bytes_a_bit), generator=torch.Generator().manual_seed(seed))
    packed = packing.pack(codes.to(torch.uint8), width)
    assert packed.shape[-1] == packing.packed_size(codes.shape[-1], width) == bytes_a_bit * width
    assert torch.equal(packing.unpack(packed, width, codes.shape[-1]), codes.to(torch.uint8))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_packing_ternary(codes):
    given_codes = torch.tensor(codes, dtype=torch.uint8)
    assert torch.equal(packing.unpack_ternary(packing.pack_ternary(given_codes), len(codes)), given_codes)


def test_rotary_embedding_is_undone():
    keys, frequencies = torch.randn(1, 2, 10, 12), torch.tensor([1.0, 0.1, 0.01, 0.001])
    torch.testing.assert_close(apply_rotary(apply_rotary(keys, frequencies, 7), frequencies, 7, inverse=True), keys)
    assert torch.equal(apply_rotary(keys, frequencies, 7)[..., 8:], keys[..., 8:])
    assert frequencies_of(llama()).shape == (4,)
    assert frequencies_of(gpt2()) is None


def test_every_policy_is_known_by_name():
    assert set(POLICIES) == {"full", "kivi", "rotated", "vidkv", "blockfloat"}
    for kind in POLICIES.values():
        policy, model = kind(), llama()
        model(tokens(length=150), past_key_values=(cache := QuantizedKVCache(model.config, policy)))
        assert all(layer.blocks for layer in cache.packed_layers) == bool(policy.block)
        assert cache.get_seq_length() == 150


def test_bits_for_each_layer_and_head():
    model = llama()
    cache = QuantizedKVCache(model.config, KIVI(bits=(2, (4, 8)), group=16, window=16))
    model(tokens(length=100), past_key_values=cache)
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


@pytest.fixture(scope="module", params=[llama, gpt2])
def calibrated(request):
    model = request.param()
    return model, observe(model, tokens(length=400)[0], context=200, windows=2, window=16)


def error_of(model, policy):
    """Of keys and values, relative, through a cache."""
    cache, ids = QuantizedKVCache(model.config, policy), tokens(length=200, seed=3)
    plain = QuantizedKVCache(model.config, POLICIES["full"]())
    with torch.no_grad():
        model(ids, past_key_values=cache)
        model(ids, past_key_values=plain)
    pairs = [(a.dense(), b.dense()) for a, b in zip(cache.packed_layers, plain.packed_layers, strict=True)]
    return max(float((x - y).norm() / y.norm()) for a, b in pairs for x, y in zip(a, b, strict=True))


def test_transform_coding(calibrated):
    model, statistics = calibrated
    policies = [transform_policy(model, statistics, bits, window=16) for bits in (3, 5, 6.9)]
    errors = [error_of(model, policy) for policy in policies]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.06
    for policy, bits in zip(policies, (3, 5, 6.9), strict=True):
        assert policy.bits <= bits
        assert policy.bits > bits - 0.2
    with pytest.raises(PolicyError, match="not in 9"):
        transform_policy(model, statistics, 9)
    assert model.config._attn_implementation != "squeeze_kv_observer"
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("widths", [(6, 6, 5, 4, 3, 3, 2, 1), (1,), ()])
def test_transform_unpacking_equals_plain_torch(widths):
    count = 8 * len(widths)
    into = torch.eye(64)[:count]
    coder = TransformCoder(widths, into, into.T.contiguous(), torch.zeros(64), torch.ones(count))
    fields = coder.encode(torch.randn(2, 1, 3, 32, 64), 0)
    packed, scale = fields["codes"].flatten(2, 3), torch.rand(2, 1, 96)
    assert torch.equal(coder.channels_of(packed, scale), coder.points_of(packed) * scale[..., None])
    rows, weights, plain = (
        torch.randn(3, 64),
        torch.rand(3, 96),
        coder.decode(fields, 0, torch.float32)[1, 0].flatten(0, 1),
    )
    here = {name: field[1, 0] for name, field in fields.items()}
    found = torch.empty(3, 96), torch.ones(3, 64)
    transformed.scores(coder, here, rows, 0, found[0])
    transformed.outputs(coder, here, weights, found[1])
    torch.testing.assert_close(found[0], rows @ plain.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[1], 1 + weights @ plain, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_transform_coded_attention_without_decoding(calibrated, monkeypatch):
    model, statistics = calibrated
    policy = transform_policy(model, statistics, 4, window=16)
    ids, found = tokens(length=150, seed=3), []
    kv_attention.install(model)
    for decodes in (True, False):
        cache = QuantizedKVCache(model.config, policy)
        model(ids[:, :140], past_key_values=cache)
        with monkeypatch.context() as patch:
            if decodes:
                patch.setattr(cpu, "fits", lambda query, view: False)
            else:
                patch.setattr(TransformCoder, "decode", None)
            found.append([model(ids[:, at : at + 1], past_key_values=cache).logits for at in range(140, 143)])
    for with_tiles, without in zip(*found, strict=True):
        torch.testing.assert_close(without, with_tiles, rtol=1e-4, atol=1e-4)


def test_low_rank(calibrated):
    model, statistics = calibrated
    assert error_of(model, low_rank_policy(model, statistics, rank=8, bits=6, window=16)) < 0.06


def test_channel_orders(calibrated):
    model, statistics = calibrated
    orders = channel_orders(model, statistics, BlockFloat(4, share=4, window=16))
    heads = model.config.num_attention_heads if hasattr(model.config, "n_head") else 2
    assert len(orders) == 2 and len(orders[0]) == heads and sorted(orders[0][0][0]) == list(range(8))
    assert any(order != tuple(range(8)) for layer in orders for pair in layer for order in pair)
    assert error_of(model, BlockFloat(8, orders=orders, window=16)) < 0.02


def test_lloyd_max_points():
    torch.testing.assert_close(lloyd_max(1), torch.tensor([-0.79788456, 0.79788456]))
    torch.testing.assert_close(lloyd_max(2)[2:], torch.tensor([0.4527800, 1.5104176]))  # Max 1960
