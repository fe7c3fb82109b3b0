"""Triton kernels compiled for GPUs that are not there, as a launch specialises them, and what the compiler says.

A process that interprets kernels (TRITON_INTERPRET=1) cannot compile them.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from squeeze.errors import SqueezeError

__all__ = ["Compiled", "compile_launch"]

_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture.

    spilled: bytes of a thread that go to memory and back for want of registers. fused: whether the compiler may make
    one operation of a product and a sum.
    """

    spilled: int
    fused: bool
    ttir: str
    ptx: str


def compile_launch(run: Callable[[], object], architecture: int) -> Compiled:
    """Compile the one kernel that `run` launches on tensors of the meta device.

    Raises SqueezeError if kernels are interpreted.
    """
    if knobs.runtime.interpret:
        raise SqueezeError("kernels are not compiled here, but interpreted: unset TRITON_INTERPRET")
    log = io.StringIO()
    with (
        knobs.nvidia.scope(),
        knobs.compilation.scope(),
        _noted(architecture) as noted,
        contextlib.redirect_stdout(log),
    ):
        knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
        run()
    (kernel,), (spills,) = noted, _SPILLS.findall(log.getvalue())
    fused, asm = kernel.metadata.enable_fp_fusion, kernel.asm
    return Compiled(sum(map(int, spills)), fused, str(asm["ttir"]), asm["ptx"])


class _Driver:
    """A driver for a GPU that is not there, with its architecture as number, so that Triton separates architectures."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def _noted(architecture: int) -> Iterator[list[Any]]:
    """Collect the kernel of every launch instead of launching it."""
    found, launch = [], JITFunction.run

    def note(self: Any, *given: Any, warmup: bool, **options: Any) -> Any:
        self.device_caches.pop(architecture, None)
        found.append(launch(self, *given, warmup=True, **options))
        return found[-1]

    before, JITFunction.run = driver._active, note  # where there is no GPU, asking for the driver is an error
    driver.set_active(_Driver(architecture))
    try:
        yield found
    finally:
        JITFunction.run = launch
        driver._active = before
