"""Calls on a GPU: in parts if its memory is too small for all lanes, and recorded as CUDA graphs.

A recorded call has tensors at fixed places and fixed shapes, and starts hundreds of kernels at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError

__all__ = ["InFlight", "Record", "Recorded", "cuda_graph", "free_memory", "memory_as_device_error", "recorder_of"]


def free_memory(device: str) -> int | None:
    """Return the bytes that a device can still allocate, or None if it does not say."""
    if not device.startswith("cuda"):
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


@contextmanager
def memory_as_device_error(device: str, advice: str = "use a shorter `window`, or `device='cpu'`") -> Iterator[None]:
    """Raise DeviceError if the device runs out of memory inside.

    Args:
        device: its name in torch.
        advice: what to do about it.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise DeviceError(f"{device} has too little memory: {advice}") from None


class InFlight:
    """A limit of lanes at once, which is halved each time that the device runs out of memory."""

    def __init__(self, most: int, device: str):
        self.most, self._device = max(most, 1), device

    def run(self, count: int, work: Callable[[int, int], None]) -> None:
        """Call work(begin, end) for ranges of lanes, in order; a range that ran out of memory is split and called
        again.

        Args:
            count: lanes.
            work: may be called again for the same lanes.

        Raises:
            DeviceError: if a single lane is too much.
        """
        begin = 0
        while begin < count:
            end = min(begin + self.most, count)
            if end - begin == 1:
                with memory_as_device_error(self._device):
                    work(begin, end)
                begin = end
            elif self._fits(work, begin, end):
                begin = end
            else:
                self.most = (end - begin) // 2

    def _fits(self, work: Callable[[int, int], None], begin: int, end: int) -> bool:
        try:
            work(begin, end)
            return True
        except torch.OutOfMemoryError:
            pass  # memory is free only after the exception is
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()
        return False


_ONE_AT_A_TIME = Lock()
Work = Callable[[], tuple[Tensor, ...]]
Record = Callable[[Work], tuple[Callable[[], None], tuple[Tensor, ...]]]
# Record(work) may run work; it returns a function that runs it again, and the tensors with the results.


def recorder_of(device: str) -> Record | None:
    """Return the function that records calls on a device, or None if they are not recorded."""
    return cuda_graph if device.startswith("cuda") else None


def cuda_graph(work: Work) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
    """Record work on the current device. It runs once before, so that kernels are compiled and libraries
    initialised."""
    here, apart = torch.cuda.current_stream(), torch.cuda.Stream()
    apart.wait_stream(here)
    with torch.cuda.stream(apart):
        work()
    here.wait_stream(apart)
    graph = torch.cuda.CUDAGraph()
    # Other threads keep working. The stream belongs to this device; torch's default is that of the first recording.
    with _ONE_AT_A_TIME, torch.cuda.graph(graph, stream=apart, capture_error_mode="thread_local"):
        results = work()
    return graph.replay, results


class Recorded:
    """Work on tensors at fixed places, which is recorded at its first values and may run on them more than once."""

    def __init__(self, record: Record, work: Callable[..., tuple[Tensor, ...]], *values: np.ndarray, device: str):
        self._inputs = tuple(torch.tensor(value, device=device) for value in values)
        self._replay, self._results = record(lambda: work(*self._inputs))

    def __call__(self, *values: np.ndarray) -> tuple[Tensor, ...]:
        """Return the results for values of the same shapes. The next call overwrites them."""
        for tensor, value in zip(self._inputs, values, strict=True):
            tensor.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        self._replay()
        return self._results
