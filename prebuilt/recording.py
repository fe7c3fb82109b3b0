"""The signatures that a library has: those that a workload calls kernels with."""

import pickle
from importlib import import_module
from pathlib import Path
from typing import Any

from numba.core import types


def record(path: Path, workload: str) -> None:
    """Run the workload, a module, and write a list of kernels and signatures."""
    from squeeze.numerics.compiling import KERNELS

    import_module(workload).run()
    found = {
        (name, tuple(map(plain, signature)))
        for name, kernel in KERNELS.items()
        if hasattr(kernel, "overloads")
        for signature in kernel.overloads
    }
    path.write_bytes(pickle.dumps(sorted(found, key=str)))


def plain(kind: Any) -> Any:
    """Return the type of an argument that is passed, whether the caller names it or leaves out its default."""
    if isinstance(kind, types.Omitted):
        return types.none if kind.value is None else types.boolean if isinstance(kind.value, bool) else types.int64
    return kind
