"""The loss of distillation compared with its definition."""

import pytest
import torch
from torch.nn import functional

from squeeze.recipes.train import losses


@pytest.mark.parametrize("rows", [1, 16, 37])
def test_the_divergence_is_that_of_the_definition(rows):
    generator = torch.Generator().manual_seed(3)
    one, wanted = (4 * torch.randn((rows, 50), generator=generator) for _ in range(2))
    one, other = (one.clone().requires_grad_() for _ in range(2))
    found = losses._Divergence.apply(one, wanted)
    logs = [torch.log_softmax(logits, -1) for logits in (other, wanted)]
    expected = functional.kl_div(*logs, reduction="batchmean", log_target=True)
    for loss in (found, expected):
        (3 * loss).backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)
