"""Typical launches of all Triton kernels, which tests compile: one file a kernel, by the name of its folder.

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
    """Those with a kernel.py: of the network in exact arithmetic first, each room in the order of names."""
    room = Path(squeeze.__file__).parent
    return [path.parent for name in ("lm/fused", "kernels") for path in sorted((room / name).glob("*/kernel.py"))]


def of(name: str) -> list[Launch]:
    """Those of the kernel in the folder of this name. Needs triton."""
    return list(importlib.import_module(f"tests.kernels.launches.{name}").launches())


def every() -> Iterator[Launch]:
    """Those of all folders."""
    for folder in folders():
        yield from of(folder.name)
