"""Every coder: what comes back, how near, and in how many bits."""

import pytest
import torch

from squeeze.kv.blockfloat import BlockFloatCoder
from squeeze.kv.grouped import GroupedCoder
from squeeze.kv.vidkv import MixedKeys, TernaryValues

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
def test_coders_code_blocks_within_their_error_and_leave_them_unchanged(name):
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
