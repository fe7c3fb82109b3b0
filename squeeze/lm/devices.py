"""The devices that run a language model: the compiled engine on the processor, or torch_engine.py on GPUs."""

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition

from squeeze.errors import DeviceError, printable
from squeeze.lm.language_model import LanguageModel
from squeeze.lm.models import LoadedModel

__all__ = ["AUTO", "CPU", "Pool", "load_on_devices", "torch_devices"]

AUTO, CPU, CUDA = "auto", "cpu", "cuda"
_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def torch_devices(name: str) -> list[str]:
    """Return torch's names of the devices that a user names; none for the compiled engine.

    Args:
        name: "auto" (all GPUs, if any), "cpu", "cuda" (all GPUs) or "cuda:N".

    Raises:
        DeviceError: if there is no such device.
    """
    if name == CPU or (name == AUTO and not _has_driver()):
        return []
    if name != AUTO and not re.fullmatch(r"cuda(:\d{1,3})?", name):
        raise DeviceError(f"there is no device '{printable(name)}': use auto, cpu, cuda or cuda:N")
    count = _gpus()
    if not count and name != AUTO:
        raise DeviceError(f"device {name}: torch finds no GPU here; use `device` auto or cpu")
    if name in (AUTO, CUDA):
        return [f"cuda:{number}" for number in range(count)]
    number = int(name.partition(":")[2])
    if number >= count:
        raise DeviceError(f"device {name}: the GPUs here are cuda:0 to cuda:{count - 1}")
    return [f"cuda:{number}"]


def _has_driver() -> bool:
    """Return whether there is a CUDA driver, since loading torch takes a second."""
    for name in _DRIVERS:
        with suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def _gpus() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def load_on_devices(loaded: LoadedModel, name: str) -> list[LanguageModel]:
    """Return the model on each device of a name.

    A GPU that cannot run it is skipped if another can, or if the name is "auto".

    Raises:
        DeviceError: if no device can run it.
    """
    found: list[LanguageModel] = []
    refused = None
    for device in torch_devices(name):
        try:
            found.append(loaded.on(device))
        except DeviceError as error:
            refused = refused or error
    if refused and not found and name != AUTO:
        raise refused
    return found or [loaded.network]


class Pool:
    """Copies of a model on several devices, which threads borrow for one text at a time."""

    def __init__(self, models: Sequence[LanguageModel]):
        self._free, self._costs = list(models), list[int]()
        self._changed = Condition()

    @contextmanager
    def borrowed(self, cost: int = 0, fits: Callable[[int], bool] | None = None) -> Iterator[LanguageModel]:
        """Borrow a copy as soon as one is free and fits. The first borrower gets one whatever it costs.

        Args:
            cost: memory in bytes that the text takes.
            fits: returns whether the sum of all borrowers' costs fits in memory.
        """

        def load_on_devices() -> bool:
            first = len(self._costs) == 0
            return bool(self._free) and (first or fits is None or fits(sum(self._costs) + cost))

        with self._changed:
            self._changed.wait_for(load_on_devices)
            model = self._free.pop(0)
            self._costs.append(cost)
        try:
            yield model
        finally:
            with self._changed:
                self._free.insert(0, model)
                self._costs.remove(cost)
                self._changed.notify_all()
