"""Work on many lanes on a device whose memory may be too small for all at once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from squeeze.errors import DeviceError

__all__ = ["InFlight", "free_memory", "needed"]


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
