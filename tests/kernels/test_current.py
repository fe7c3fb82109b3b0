"""Kernels are launched where their tensors are, whichever GPU is the current one."""

from contextlib import contextmanager

import pytest
import torch

from tests.kernels.launches.launch import folders, of

pytest.importorskip("triton", reason="triton is not installed")

from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction


@pytest.mark.parametrize("folder", [one for one in folders() if one.parent.name != "fused"], ids=lambda one: one.name)
def test_a_launch_makes_the_device_of_its_tensors_the_current_one(folder, monkeypatch):
    """That of a model of files does so for all of its kernels at once."""
    current, launches = [], []

    @contextmanager
    def device_of_tensor(tensor):
        current.append(tensor.device.type)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of_tensor)
    for kind in (InterpretedFunction, JITFunction):
        monkeypatch.setattr(kind, "run", lambda self, *given, **options: launches.append(list(current)))
    typical = of(folder)
    for launch in typical:
        launch.run()
    assert launches == [["meta"]] * len(typical) and not current
