"""What is fastest on a device for a shape: measured once, and kept on the disk.

A file a device, in the folder `kernels` beside that of compiled code. What another Triton wrote, another device, or
nobody, is as if it were not there. Where nothing can be measured (in the capture of a CUDA graph), the default serves.
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
from squeeze.numerics.jit import cache_root
from squeeze.system.cache import make_folder
from squeeze.system.documents import read_object

__all__ = ["Choices", "close_to", "fastest", "folder", "of_device", "power_of_two", "remembered"]

_FORMAT = 2  # 1: timed from Python
_ROUNDS, _CALLS = 5, 8
_FILLER = 1 << 27  # bytes: more than a cache has
_LEAST = 1e-7  # seconds
_WORTH = 1.02  # by which the default must be slower to be left
_NEAR = 0.05  # of the product that torch makes: one that is further away is wrong


def folder() -> Path:
    return cache_root().parent / "kernels"


@dataclass
class Choices:
    """Of one device, by its name. seconds: of one call of a function there, or None where nothing can be measured
    now."""

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
        """The fastest way for a shape in words: `run` goes the way of a name. `default`, one of them, unless another
        gains some per cent; none whose result is not right. Where memory ends, or no result is right, as with an input
        that is not finite, the default serves until this process ends, and the next one measures."""
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
            except torch.OutOfMemoryError:  # which says nothing of the way
                found = {}
                break
            except Exception:  # Triton's and CUDA's, of a kernel that the device cannot hold
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
        """With what others wrote meanwhile. A folder that cannot be written to costs measurements in the next process,
        and nothing else."""
        whole = _read(self.path, self.device, self.triton) | self._chosen
        text = json.dumps({"format": _FORMAT, "device": self.device, "triton": self.triton, "chosen": whole}, indent=1)
        with contextlib.suppress(OSError):
            make_folder(self.path.parent)
            handle, name = tempfile.mkstemp(dir=self.path.parent)
            with os.fdopen(handle, "w") as file:
                file.write(text)
            Path(name).replace(self.path)


def _read(path: Path, device: str, triton: str) -> dict[str, str]:
    """The names of ways by shape; empty where the file is missing, damaged, or of something else."""
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
    """Of a CUDA device at hand."""
    name = torch.cuda.get_device_name(device)
    return Choices(_path(name), name, _triton(), partial(_seconds, device))


def fastest(
    x: torch.Tensor, what: str, ways: Mapping[str, Callable[[], torch.Tensor]], default: str, right: str
) -> str:
    """The name of the fastest way to a product with x [R, *], on a GPU. what: the other factor, in words. right: the
    way of torch's, and a product far from its is wrong; of no rows it is taken without a measurement. `default`, where
    torch.compile traces this: what is measured is not part of a graph."""
    if not len(x):
        return right
    if torch.compiler.is_compiling():
        return default
    rows, dtype = power_of_two(len(x)), str(x.dtype).removeprefix("torch.")
    shape = f"{what}, {dtype}, {rows} row{'s' * (rows > 1)}"
    return of_device(x.device).of(shape, list(ways), lambda name: ways[name](), default, close_to(ways[right]))


def power_of_two(rows: int) -> int:
    """The next one: what is measured for it serves for so many rows."""
    return 1 << (rows - 1).bit_length()


def close_to(right: Callable[[], torch.Tensor]) -> Callable[[torch.Tensor], bool]:
    """Whether a product is near the one that is right, which is made where this is asked first."""
    made = cache(lambda: right().float())
    return lambda found: bool((found.float() - made()).norm() <= _NEAR * made().norm())


def remembered(device: str) -> dict[str, str]:
    """The way that was chosen on a device, by its name, for each shape that it has met."""
    return _read(_path(device), device, _triton())


def _seconds(device: torch.device, call: Callable[[], object]) -> float | None:
    """Of one call on a device, with nothing of it in the cache.

    The GPU's time alone: a call from Python takes longer to begin than many take to run. So some are recorded in a CUDA
    graph, before each of which a buffer that fills the cache is written; that takes as long for all ways, and is taken
    off.
    """
    if torch.cuda.is_current_stream_capturing():  # of the device that is current, which may be another
        return None
    here = torch.cuda.stream(torch.cuda.current_stream(device))  # to which nothing returns where a recording fails
    with torch.cuda.device(device), here:
        if torch.cuda.is_current_stream_capturing():
            return None
        filler = torch.empty(_FILLER, dtype=torch.uint8, device=device)
        return max(_recorded([filler.zero_, call]) - _recorded([filler.zero_]), _LEAST)


def _recorded(calls: Sequence[Callable[[], object]]) -> float:
    """The least of some rounds of these calls, one after the other."""
    apart = torch.cuda.Stream()
    apart.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(apart):
        for call in 2 * list(calls):  # compiles, and what is done before a first call
            call()
    torch.cuda.current_stream().wait_stream(apart)
    graph, best = torch.cuda.CUDAGraph(), float("inf")
    with torch.cuda.graph(graph, stream=apart, capture_error_mode="thread_local"):  # torch's own is of one device only
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
