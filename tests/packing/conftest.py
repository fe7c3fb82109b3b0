"""Fixtures of the tests of packing: a training run whose state is in a torch file."""

from pathlib import Path

import pytest
import torch

from tests.makers.torch_files import Training


@pytest.fixture
def training() -> Training:
    made = Training()
    made.step()
    return made


@pytest.fixture
def state(training) -> Path:
    torch.save(training.optimizer.state_dict(), "optimizer.pt")
    return Path("optimizer.pt")
