"""Compiled work on the threads that torch computes with.

After each operation the threads of torch's OpenMP team wait for the next one without sleeping, for milliseconds. Other
threads would wait for a processor meanwhile; and these begin within a microsecond.
"""

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["run"]


def run(callback: Any, job: np.ndarray, threads: int) -> None:
    """Call a `jit.callback` with a pointer to `job` on so many threads at once, the caller's among them.

    Where torch has no OpenMP that can be called, as on macOS and Windows, they are threads of their own.
    """
    function, address = _function(callback), job.ctypes.data
    if threads == 1:
        function(address)
    elif threads == torch.get_num_threads() and (start := _team()):  # another size would make a new team
        start(callback.address, address, threads, 0)
    else:
        list(_pool(threads).map(function, [address] * threads))


@cache
def _function(callback: Any) -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(callback.address)


@cache
def _team() -> Any:
    """What compilers call at the start of a parallel region, in the library that torch is linked with."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return found


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="squeeze-openmp")
