"""Points of the quantiser of Lloyd and Max."""

import torch

from squeeze.kv.lloyd_max import lloyd_max


def test_lloyd_max_points():
    torch.testing.assert_close(lloyd_max(1), torch.tensor([-0.79788456, 0.79788456]))
    torch.testing.assert_close(lloyd_max(2)[2:], torch.tensor([0.4527800, 1.5104176]))  # Max 1960
