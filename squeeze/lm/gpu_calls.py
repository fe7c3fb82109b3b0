"""Calls on tensors that stay where they are, recorded once and made again: a GPU begins hundreds of kernels as one.

CUDA graphs. A call is of one shape, and depends on nothing but its tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from squeeze.errors import DeviceError

__all__ = ["InFlight", "Record", "Recorded", "cuda_graph", "free_memory", "needed", "recorder_of"]


def free_memory(device: str) -> int | None:
    """Bytes that a device can still give; None where that is not the device's to say."""
    if not device.startswith("cuda"):
        return None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


@contextmanager
def needed(device: str, advice: str = "use a shorter `window`, or `device='cpu'`") -> Iterator[None]:
    """Raises DeviceError where the device has no memory for what is done within."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise DeviceError(f"{device} has too little memory: {advice}") from None


class InFlight:
    """At most `most` lanes at once, and half as many after each time that the device had no memory for them."""

    def __init__(self, most: int, device: str):
        self.most, self._device = max(most, 1), device

    def run(self, count: int, work: Callable[[int, int], None]) -> None:
        """work(begin, end) for ranges of `count` lanes, in order; one that found no memory is worked on again, so it
        must bear that. Raises DeviceError where a single one is too much."""
        begin = 0
        while begin < count:
            end = min(begin + self.most, count)
            if end - begin == 1:
                with needed(self._device):
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
            pass  # what was taken is free first when the exception is
        if self._device.startswith("cuda"):
            torch.cuda.empty_cache()
        return False


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
