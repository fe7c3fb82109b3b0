"""Decorators for compiled code: kernels, the steps that they inline, and a prefetch instruction.

`kernel` marks an entry point. `inline` marks a step that is merged into its callers, `part` one that is too large for
that. `lossy_kernel` is for results that no coded bit depends on, and `callback` for functions that C calls.

A wheel for a platform has the machine code of kernels in a library (prebuilt.py). Then a kernel calls the library, and
steps are left as they are. Elsewhere numba compiles kernels at first use (compiling.py).

numba is imported only in the second case, since that takes longer than to compress a small file.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import squeeze.numerics.prebuilt as prebuilt  # not by `from`, which code_cache.py follows

__all__ = ["callback", "compiling_copy", "inline", "kernel", "lossy_kernel", "part", "prefetch"]

if TYPE_CHECKING or prebuilt.LIBRARY is None:
    from squeeze.numerics.compiling import callback, inline, kernel, lossy_kernel, part, prefetch

    def compiling_copy(module: str) -> Any:
        """Return a module of this package, or a copy of it, in which numba compiles."""
        return sys.modules[module]

else:
    from squeeze.numerics.entries import Callback, Kernel, compiling_copy

    callback, kernel = Callback, Kernel

    def lossy_kernel(*, fastmath: bool | set[str]) -> Callable[[Callable[..., Any]], Any]:
        """Return a decorator for entry points whose results need not be exact."""
        return Kernel

    def part(function: Callable[..., Any]) -> Any:
        """Return a step. It is in the library as a part of kernels, and Python calls only its `py_func`."""
        step: Any = function
        step.py_func = function
        return step

    inline = part

    def prefetch(array: Any, index: Any) -> None:
        """Do nothing: prefetches are a part of kernels in the library.

        As all steps, this is called by compiled code alone.
        """
