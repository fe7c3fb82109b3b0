"""Where a language model runs: by the compiled engine on the processor, or by torch_engine.py on a GPU."""

import ctypes
import re
from contextlib import suppress

from squeeze.errors import DeviceError, printable
from squeeze.lm.language_model import LanguageModel
from squeeze.lm.models import LoadedModel

__all__ = ["AUTO", "CPU", "ready", "torch_device"]

AUTO, CPU = "auto", "cpu"
_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def torch_device(name: str) -> str | None:
    """What torch calls the device that a user names "auto" (a GPU where there is one), "cpu", "cuda" or "cuda:N"; None
    is the compiled engine. Raises DeviceError where there is no such device."""
    if name == CPU or (name == AUTO and not _has_driver()):
        return None
    if name != AUTO and not re.fullmatch(r"cuda(:\d{1,3})?", name):
        raise DeviceError(f"there is no device '{printable(name)}': use auto, cpu, cuda or cuda:N")
    count = _gpus()
    if name == AUTO:
        return "cuda:0" if count else None
    if not count:
        raise DeviceError(f"device {name}: torch finds no GPU here; use --device auto or cpu")
    number = int(name.partition(":")[2] or 0)
    if number >= count:
        raise DeviceError(f"device {name}: the GPUs here are cuda:0 to cuda:{count - 1}")
    return f"cuda:{number}"


def _has_driver() -> bool:
    """Whether a look at torch is worth the second that it takes to load."""
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


def ready(loaded: LoadedModel, name: str) -> LanguageModel:
    """The model ready to run on a device by its name. Where that is "auto", a GPU that cannot run it is left alone;
    otherwise raises DeviceError."""
    device = torch_device(name)
    if device is not None:
        try:
            return loaded.on(device)
        except DeviceError:
            if name != AUTO:
                raise
    return loaded.network
