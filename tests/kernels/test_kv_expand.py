"""The kernel that expands grouped codes: the bits of their coder, wherever it writes them."""

import pytest
import torch

from squeeze.kernels.kv_attention import decoded, reference
from squeeze.kv.blockfloat import BlockFloatCoder
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.view import fields_of
from tests.makers.kv_layers import CLOSE, Coded, layer_of, query_of

expand = pytest.importorskip("squeeze.kernels.kv_attention.expand", reason="triton is not installed")

CODERS = {
    "tokens, 1 bit": GroupedCoder(1, "tokens"),
    "tokens, 2 bits, groups": GroupedCoder(2, "tokens", 16),
    "tokens, 4 bits": GroupedCoder(4, "tokens"),
    "tokens, 8 bits": GroupedCoder(8, "tokens"),
    "channels, 1 bit, groups": GroupedCoder(1, "channels", 8),
    "channels, 2 bits": GroupedCoder(2, "channels"),
    "channels, 4 bits, groups": GroupedCoder(4, "channels", 16),
    "channels, 8 bits": GroupedCoder(8, "channels"),
    "channels, 4 bits, points": GroupedCoder(4, "channels", points="normal"),
    "channels, 2 bits, points, groups": GroupedCoder(2, "channels", 16, points="normal"),
}
WHERE = [(torch.float32, "cpu"), (torch.float16, "cpu")] + [  # Triton's interpreter cuts bfloat16 off
    pytest.param(dtype, "cuda", marks=pytest.mark.cuda) for dtype in (torch.float32, torch.float16, torch.bfloat16)
]


def policy_of(keys, values, heads=None):
    policy = Coded(keys, values, heads)
    policy.block = 32
    return policy


@pytest.mark.parametrize(("dtype", "device"), WHERE)
@pytest.mark.parametrize("coder", list(CODERS))
def test_the_bits_of_the_coder(coder, dtype, device):
    """Of three blocks of a buffer that has room for more, into rows that lie apart."""
    coder = CODERS[coder]
    layer = layer_of(policy_of(coder, coder), length=107, heads=2, size=32, value_size=64)
    layer._to(device)
    view = layer._view()
    _, fields = view.stores[0]
    for kind, size in (("keys", 32), ("values", 64)):
        mine = fields_of(fields, kind)
        wanted = coder.decode(mine, 0, dtype).flatten(2, 3)
        whole = torch.zeros(2, 2, 120, size, dtype=dtype, device=device)
        expand.write(coder, mine, whole[:, :, 5:101])
        assert torch.equal(whole[:, :, 5:101], wanted)
        assert not whole[:, :, :5].any() and not whole[:, :, 101:].any()


@pytest.mark.parametrize("heads", [None, (0, 2)], ids=["alike", "coded differently"])
@pytest.mark.parametrize("nbytes", [1 << 30, 1 << 17])
def test_attention_by_it(heads, nbytes, monkeypatch):
    view = layer_of(
        policy_of(CODERS["tokens, 4 bits"], CODERS["channels, 2 bits"], heads), 107, size=32, value_size=32
    )._view()
    expected = reference.attend(query_of(size=32), view, None, 0.3)
    monkeypatch.setattr(decoded, "_kernel", lambda query: expand)
    monkeypatch.setattr(decoded, "_decode", None)
    torch.testing.assert_close(decoded.attend(query_of(size=32), view, None, 0.3, nbytes), expected, **CLOSE)


def test_what_it_takes():
    def fits(keys, values, block=32, **options):
        policy = policy_of(keys, values)
        policy.block = block
        return expand.fits(layer_of(policy, 107, **options)._view())

    four = GroupedCoder(4, "tokens")
    assert fits(four, GroupedCoder(1, "channels"), size=32, value_size=32)
    assert not fits(four, GroupedCoder(1, "channels"))  # rows of half a word
    assert not fits(four, GroupedCoder(3, "channels"))
    assert not fits(four, GroupedCoder(4, "channels", rotate=True))
    assert not fits(four, four, size=24)
    assert not fits(four, four, block=24)
    assert not fits(four, BlockFloatCoder(4))
    assert not expand.fits(layer_of(policy_of(four, four), 107, sliding_window=100)._view(offset=7))
    assert decoded._kernel(query_of()) is None
