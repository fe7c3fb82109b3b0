"""Names of llvmlite and numba that emit LLVM code, or placeholders if the machine code comes with the package.

Modules define types and intrinsics when they are imported. With a library of machine code nothing calls them, so numba,
which takes 0.3 s to import, need not even be installed.
"""

from typing import TYPE_CHECKING, Any

import squeeze.numerics.prebuilt as prebuilt  # not by `from`, which code_cache.py follows

__all__ = ["CPUContext", "cgutils", "config", "from_dtype", "intrinsic", "ir", "llvm", "populate_array", "types"]


class _Unused:
    """A placeholder: its attributes and results are placeholders, too.

    So `INT8 = ir.IntType(8)` at the top of a module, and the decorator `intrinsic`, need nothing.
    """

    def __repr__(self) -> str:
        return "<not needed with a library of machine code>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self


if TYPE_CHECKING or prebuilt.LIBRARY is None:
    from numba import from_dtype  # isort: skip  # before llvmlite, so that it is named if neither is installed
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba.core import cgutils, config, types
    from numba.core.cpu import CPUContext
    from numba.extending import intrinsic
    from numba.np.arrayobj import populate_array
else:
    CPUContext = cgutils = config = from_dtype = intrinsic = ir = llvm = populate_array = types = _Unused()
