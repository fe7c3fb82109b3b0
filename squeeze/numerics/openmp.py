"""Running compiled code on torch's OpenMP threads.

After each operation torch's threads spin for milliseconds while they wait for the next one, and other threads would
compete with them for the processors. Torch's threads start within a microsecond.
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
    """Call a `jit.callback` with a pointer to `job` on `threads` threads at once, including the caller's.

    If torch has no OpenMP library that can be called, as on macOS and Windows, a thread pool is used.
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
    """Return the function of the OpenMP library that starts a parallel region, or None."""
    try:
        found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).GOMP_parallel
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return found


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="squeeze-openmp")
