"""Points of the quantiser of Lloyd and Max."""

import pytest
import torch

from squeeze.kv.lloyd_max import CURVED, curve, lloyd_max


def test_lloyd_max_points():
    torch.testing.assert_close(lloyd_max(1), torch.tensor([-0.79788456, 0.79788456]))
    torch.testing.assert_close(lloyd_max(2)[2:], torch.tensor([0.4527800, 1.5104176]))  # Max 1960


@pytest.mark.parametrize("bits", range(1, CURVED + 1))
def test_a_curve_goes_through_the_points(bits):
    x = torch.arange(1 << bits) * (2 / ((1 << bits) - 1)) - 1
    found = (x[:, None] ** (2 * torch.arange(8) + 1) @ curve(bits)[:, None])[:, 0]
    torch.testing.assert_close(found, lloyd_max(bits), rtol=0, atol=1e-6)
