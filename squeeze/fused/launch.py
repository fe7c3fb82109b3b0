"""What is said of a typical launch of a Triton kernel: by the launches.py beside each kernel.py, here and in
squeeze/kernels.

Launches are made on torch's meta device, where tensors have a shape and no values, by the function that the package
itself calls. So what is known of a kernel is known of the one that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Launch", "meta", "operations"]


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    name: the operation and the shapes. run: makes the launch. operands, result: tensors that the reference takes and
    returns. operations: its multiplications and additions. trips: of the kernel's arguments by name, how often each of
    its loops runs in a program, in the order in which they begin. exact: promises the bits of its reference.
    """

    name: str
    run: Callable[[], object]
    operands: tuple[torch.Tensor, ...]
    result: torch.Tensor
    operations: int
    trips: Callable[[Mapping[str, int]], tuple[int, ...]]
    exact: bool = False

    @property
    def nbytes(self) -> int:
        """Read and written by the reference, every tensor once."""
        return sum(tensor.nbytes for tensor in (*self.operands, self.result))


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def operations(reference: Callable[[], object]) -> int:
    """Multiplications and additions of the matrix products of a reference on the meta device."""
    with FlopCounterMode(display=False) as counter:
        reference()
    return int(counter.get_total_flops())
