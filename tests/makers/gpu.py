"""Compile Triton kernels for a GPU that is not present, and test them here and on a GPU."""

import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]  # of tests: interpreted on the first


def moved(packed: Any, device: str) -> Any:
    """Return a dataclass with its tensors on a device."""
    found = {field.name: getattr(packed, field.name) for field in fields(packed)}
    return replace(packed, **{name: one.to(device) for name, one in found.items() if isinstance(one, torch.Tensor)})


def compile_for_a_gpu(script: str, folder: Path) -> None:
    """Run a script that compiles kernels in a process whose Triton does not interpret. It must succeed."""
    path = folder / "compile.py"
    path.write_text(script)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": root}
    subprocess.run([sys.executable, str(path)], env=environment, check=True)
