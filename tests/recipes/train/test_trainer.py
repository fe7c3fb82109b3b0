"""The order in which sequences are learned from."""

import torch

from squeeze.recipes.train.trainer import Steps


def test_each_pass_has_all_sequences_in_an_order_of_its_own():
    steps = Steps(torch.arange(10)[:, None], 0.1, 4, 3, torch.device("cpu"))
    seen = []
    for steps.step in range(5):
        seen += steps._batch()[:, 0].tolist()
    first, second = seen[:10], seen[10:]
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    again = Steps(torch.arange(10)[:, None], 0.1, 4, 3, torch.device("cpu"))
    again.step = 3
    assert again._batch()[:, 0].tolist() == seen[12:16]
