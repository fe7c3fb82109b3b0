"""The fastest implementation for a shape on a device, measured once and kept on disk.

There is a file for each device in the folder `kernels`, next to that of compiled code. A file of another version of
Triton, of another device, or of another format is ignored. If nothing can be measured (in the capture of a CUDA graph),
the default is used.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from squeeze.errors import FormatError, LimitError
from squeeze.numerics.code_cache import cache_root
from squeeze.system.cache import make_folder
from squeeze.system.documents import read_object

__all__ = ["Choices", "close_to", "fastest", "folder", "measured_seconds", "of_device", "power_of_two", "remembered"]

_FORMAT = 2
_ROUNDS, _CALLS = 5, 8
_FILLER = 1 << 27  # bytes: more than the cache of a GPU
_LEAST = 1e-7  # seconds
_WORTH = 1.02  # the default must be slower by this factor to lose
_NEAR = 0.05  # relative distance from torch's product from which on a result is wrong


def folder() -> Path:
    """Return the folder of the files."""
    return cache_root().parent / "kernels"


@dataclass
class Choices:
    """The choices on one device.

    seconds: measures a call on the device, or returns None if nothing can be measured now.
    """

    path: Path
    device: str
    triton: str
    seconds: Callable[[Callable[[], object]], float | None]
    _chosen: dict[str, str] = field(init=False)
    _unmeasured: set[str] = field(init=False, default_factory=set)  # shapes, in this process

    def __post_init__(self) -> None:
        self._chosen = _read(self.path, self.device, self.triton)

    def of(
        self,
        shape: str,
        names: Sequence[str],
        run: Callable[[str], Any],
        default: str,
        is_right: Callable[[Any], bool] = lambda result: True,
    ) -> str:
        """Return the fastest implementation for a shape.

        The default wins unless another one is faster by more than 2 %. An implementation with a wrong result never
        wins. If memory ends, or no result is right (as for input that is not finite), the default is used until this
        process ends, and the next process measures again.

        Args:
            shape: a description of operation and shape.
            names: the implementations to choose from.
            run: runs the implementation of a name.
            default: one of the names.
            is_right: tells whether a result is right.
        """
        if self._chosen.get(shape) in names:
            return self._chosen[shape]
        if shape in self._unmeasured:
            return default
        found: dict[str, float] = {}
        for name in names:
            try:
                seconds = self.seconds(partial(run, name))
                if seconds is not None and not is_right(run(name)):
                    continue
            except torch.OutOfMemoryError:  # tells nothing about the implementation
                found = {}
                break
            except Exception:  # of Triton or CUDA, if the device cannot run the kernel
                continue
            if seconds is None:
                return default
            found[name] = seconds
        if not found:
            self._unmeasured.add(shape)
            return default
        best = min(found, key=lambda name: found[name])
        if default in found and found[default] <= _WORTH * found[best]:
            best = default
        self._chosen[shape] = best
        self._write()
        return best

    def _write(self) -> None:
        """Write the choices, with those that others wrote meanwhile.

        A folder without write permission only costs measurements in the next process.
        """
        whole = _read(self.path, self.device, self.triton) | self._chosen
        text = json.dumps({"format": _FORMAT, "device": self.device, "triton": self.triton, "chosen": whole}, indent=1)
        with contextlib.suppress(OSError):
            make_folder(self.path.parent)
            handle, name = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(name).replace(self.path)


def _read(path: Path, device: str, triton: str) -> dict[str, str]:
    """Read the choices by shape; return none if the file is missing, damaged, or not of this device and Triton."""
    try:
        found: Any = read_object(path)
        if (found["format"], found["device"], found["triton"]) != (_FORMAT, device, triton):
            return {}
        return {str(shape): str(way) for shape, way in found["chosen"].items()}
    except (FormatError, LimitError, OSError, KeyError, AttributeError):
        return {}


def _path(device: str) -> Path:
    return folder() / (re.sub(r"\W+", "-", device).strip("-").lower() + ".json")


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


@cache
def of_device(device: torch.device) -> Choices:
    """Return the choices on a CUDA device of this machine."""
    name = torch.cuda.get_device_name(device)
    return Choices(_path(name), name, _triton(), partial(measured_seconds, device))


def fastest(
    x: torch.Tensor, what: str, candidates: Mapping[str, Callable[[], torch.Tensor]], default: str, right: str
) -> str:
    """Return the name of the fastest product of x [R, *] with another factor, on a GPU.

    If x has no rows, it is `right` without a measurement. While torch.compile traces the call, it is `default`, because
    a measurement cannot be part of a graph.

    Args:
        x: activations.
        what: a description of the other factor.
        candidates: the implementations by name.
        default: the one that is used unless another is faster.
        right: the one whose result the others are compared with.
    """
    if not len(x):
        return right
    if torch.compiler.is_compiling():
        return default
    rows, dtype = power_of_two(len(x)), str(x.dtype).removeprefix("torch.")
    shape = f"{what}, {dtype}, {rows} row{'s' * (rows > 1)}"
    return of_device(x.device).of(
        shape, list(candidates), lambda name: candidates[name](), default, close_to(candidates[right])
    )


def power_of_two(rows: int) -> int:
    """Round a number of rows up to a power of two; one measurement serves all of them."""
    return 1 << (rows - 1).bit_length()


def close_to(right: Callable[[], torch.Tensor]) -> Callable[[torch.Tensor], bool]:
    """Return a function that tells whether a product is close to that of `right`, which runs on first use."""
    made = cache(lambda: right().float())
    return lambda found: bool((found.float() - made()).norm() <= _NEAR * made().norm())


def remembered(device: str) -> dict[str, str]:
    """Return the choices on a device, given by its name, for each shape measured so far."""
    return _read(_path(device), device, _triton())


def measured_seconds(device: torch.device, call: Callable[[], object]) -> float | None:
    """Measure a call on a device with a cold cache.

    Only the GPU's time counts: launching from Python takes longer than many calls run. So several calls are captured in
    a CUDA graph, each after a write to a buffer that fills the cache; the time of these writes is subtracted.
    """
    if torch.cuda.is_current_stream_capturing():  # on the current device, which may be another
        return None
    here = torch.cuda.stream(torch.cuda.current_stream(device))  # restored if a capture fails
    with torch.cuda.device(device), here:
        if torch.cuda.is_current_stream_capturing():
            return None
        filler = torch.empty(_FILLER, dtype=torch.uint8, device=device)
        return max(_recorded([filler.zero_, call]) - _recorded([filler.zero_]), _LEAST)


def _recorded(calls: Sequence[Callable[[], object]]) -> float:
    """Return the shortest of some rounds of these calls, in seconds a sequence."""
    apart = torch.cuda.Stream()
    apart.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(apart):
        for call in 2 * list(calls):  # compile and warm up
            call()
    torch.cuda.current_stream().wait_stream(apart)
    graph, best = torch.cuda.CUDAGraph(), float("inf")
    # A capture of the default mode would be of one device only.
    with torch.cuda.graph(graph, stream=apart, capture_error_mode="thread_local"):
        for call in _CALLS * list(calls):
            call()
    graph.replay()
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()  # type: ignore[no-untyped-call]
        graph.replay()
        end.record()  # type: ignore[no-untyped-call]
        end.synchronize()  # type: ignore[no-untyped-call]
        best = min(best, start.elapsed_time(end) / 1e3 / _CALLS)  # type: ignore[no-untyped-call]
    return best
