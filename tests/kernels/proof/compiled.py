"""Triton kernels compiled for GPUs that are not there, as a launch specialises them, and what the compiler says.

A process that interprets kernels (TRITON_INTERPRET=1) cannot compile them.
"""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from squeeze.errors import SqueezeError

__all__ = ["Compiled", "compile_launch"]

_RESOURCES = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers")


@dataclass(frozen=True)
class Compiled:
    """A kernel for one architecture, 90 for sm_90.

    arguments: by name. programs: of the grid. warps: of a program. registers: of a thread. spilled: bytes of a thread
    that go to memory and back for want of registers. shared: bytes of a program. fused: whether the compiler may make
    one operation of a product and a sum.
    """

    architecture: int
    arguments: dict[str, Any]
    programs: int
    warps: int
    registers: int
    spilled: int
    shared: int
    fused: bool
    ttir: str
    ptx: str
    cubin: bytes

    @property
    def nbytes(self) -> int:
        """Of the tensors that the kernel is given, each once."""
        tensors = [one for one in self.arguments.values() if isinstance(one, torch.Tensor)]
        return sum({one.untyped_storage()._cdata: one.nbytes for one in tensors}.values())

    @cached_property
    def sass(self) -> str:
        """What the GPU runs, a line an instruction."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(self.cubin)
            words = [knobs.nvidia.nvdisasm.path, "-c", file.name]
            return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def compile_launch(run: Callable[[], object], architecture: int) -> Compiled:
    """The one kernel that `run` launches on tensors of the meta device. Raises SqueezeError where kernels are
    interpreted."""
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
    (arguments, grid, kernel), (resources,) = *noted, _RESOURCES.findall(log.getvalue())
    stores, loads, registers = map(int, resources)
    metadata, programs = kernel.metadata, torch.Size(grid).numel()
    return Compiled(
        *(architecture, arguments, programs, metadata.num_warps, registers, stores + loads, metadata.shared),
        fused=metadata.enable_fp_fusion,
        ttir=str(kernel.asm["ttir"]),
        ptx=kernel.asm["ptx"],
        cubin=kernel.asm["cubin"],
    )


class _Driver:
    """Of a GPU that is not there; its number is its architecture, so that Triton keeps kernels of several apart."""

    def __init__(self, architecture: int) -> None:
        self.architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, 32)

    def get_current_device(self) -> int:
        return self.architecture

    def get_current_stream(self, device: int) -> int:
        return 0


@contextlib.contextmanager
def _noted(architecture: int) -> Iterator[list[tuple[dict[str, Any], tuple[int, ...], Any]]]:
    """Arguments, grid and kernel of every launch, none of which is made."""
    found, launch = [], JITFunction.run

    def note(self: Any, *given: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> Any:
        self.device_caches.pop(architecture, None)
        kernel = launch(self, *given, grid=grid, warmup=True, **options)
        found.append((dict(zip(self.arg_names, given, strict=False)) | options, grid, kernel))
        return kernel

    before, JITFunction.run = driver._active, note  # where there is no GPU, asking for the driver is an error
    driver.set_active(_Driver(architecture))
    try:
        yield found
    finally:
        JITFunction.run = launch
        driver._active = before
