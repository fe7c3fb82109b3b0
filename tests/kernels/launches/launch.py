"""Typical launches of all Triton kernels, which tests compile: one file a kernel, named like the kernel's folder.

Kernels of another package than kernels and lm/fused have that package's name before their folder's.

Launches are made on torch's meta device, where tensors have a shape and no values, by the function that the package
itself calls. So what is known of a kernel is known of the one that runs.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import squeeze


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    name: the operation and the shapes. run: makes the launch. exact: whether it promises the bits of its reference.
    """

    name: str
    run: Callable[[], object]
    exact: bool = False


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def folders() -> list[Path]:
    """Return every folder of the package that holds a Triton kernel, in the order of their paths."""
    return sorted(path.parent for path in Path(squeeze.__file__).parent.rglob("kernel.py"))


def of(folder: Path) -> list[Launch]:
    """Return the typical launches of the kernel in a folder. Needs triton."""
    package = folder.parent.name
    name = folder.name if package in ("fused", "kernels") else f"{package}_{folder.name}"
    return list(importlib.import_module(f"tests.kernels.launches.{name}").launches())


def every() -> Iterator[Launch]:
    """Yield the launches of all modules here: of kernels with a folder, and of lm/fused/kernels.py."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in ("__init__", Path(__file__).stem):
            yield from importlib.import_module(f"tests.kernels.launches.{path.stem}").launches()
