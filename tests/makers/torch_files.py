"""State dicts of a training run in torch files, and their round trip."""

from pathlib import Path

import torch

import squeeze
from squeeze.packing.pack import Totals
from tests.makers.checkpoints import content, same


class Training:
    """A network of some hundred kilobytes, and AdamW's state of it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 128)).square().mean().backward()
        self.optimizer.step()


def comes_back(source: Path | str, **options: object) -> Totals:
    totals = squeeze.pack(source, "packed", overwrite=True, **options)
    squeeze.verify("packed")
    squeeze.unpack("packed", "back", overwrite=True)
    if Path(source).is_dir():
        assert content(source) == content("back")
    else:
        assert same(source, "back")
    return totals
