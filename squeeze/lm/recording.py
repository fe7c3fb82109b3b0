"""Calls on tensors that stay where they are, recorded once and made again: a GPU begins hundreds of kernels as one.

CUDA graphs. A call is of one shape, and depends on nothing but its tensors.
"""

from collections.abc import Callable
from threading import Lock

import numpy as np
import torch
from torch import Tensor

__all__ = ["Record", "Recorded", "cuda_graph", "recorder_of"]

_ONE_AT_A_TIME = Lock()
Work = Callable[[], tuple[Tensor, ...]]
Record = Callable[[Work], tuple[Callable[[], None], tuple[Tensor, ...]]]
# of what is to be done, which may be done for that: what does it again, and the tensors that have the results then


def recorder_of(device: str) -> Record | None:
    """How calls are recorded on a device; None where they are not."""
    return cuda_graph if device.startswith("cuda") else None


def cuda_graph(work: Work) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """On the current device. Work is done once before, so that kernels are compiled and libraries have their memory."""
    here, apart = torch.cuda.current_stream(), torch.cuda.Stream()
    apart.wait_stream(here)
    with torch.cuda.stream(apart):
        work()
    here.wait_stream(apart)
    graph = torch.cuda.CUDAGraph()
    # Other threads go on meanwhile; the stream is this device's, while torch's own is of the first that recorded.
    with _ONE_AT_A_TIME, torch.cuda.graph(graph, stream=apart, capture_error_mode="thread_local"):
        results = work()
    return graph.replay, results


class Recorded:
    """Work on some tensors, recorded when it is first given its values, which it may be done with more than once."""

    def __init__(self, record: Record, work: Callable[..., tuple[Tensor, ...]], *given: np.ndarray, device: str):
        self._given = tuple(torch.tensor(values, device=device) for values in given)
        self._again, self._results = record(lambda: work(*self._given))

    def __call__(self, *given: np.ndarray) -> tuple[Tensor, ...]:
        """The results for values of the same shapes. The next call overwrites them."""
        for tensor, values in zip(self._given, given, strict=True):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(values)))
        self._again()
        return self._results
