"""Compiling the inner loops: four decorators over numba, and a prefetch instruction.

`kernel` compiles an entry point and caches it on disk; `inline` compiles a
step that entry points call, and always merges it into its caller;
`lossy_kernel` is for what no coded bit depends on. numba's own
cache notices a change in the entry point's file only, so the cache folder is
named after the content of every file that compiled code comes from, wherever it
lies: those that import this one, and what they import in turn. An edited or
upgraded package never runs yesterday's machine code.
"""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

_IMPORT = re.compile(rf"^from ({__name__.partition('.')[0]}[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "_nrt": False,  # no reference counting: kernels allocate nothing, and the counts cost as much as the models
    "error_model": "numpy",
    "fastmath": False,
    "boundscheck": False,
}


@cache
def cache_folder() -> Path:
    """The folder of compiled code for these sources; created when missing."""
    digest = hashlib.sha256(numba.__version__.encode())
    for name, text in sorted(compiled_sources(Path(__file__).parents[1]).items()):
        digest.update(f"{name}\0{text}".encode())
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "squeeze" / "numba" / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="squeeze-numba-"))


def compiled_sources(package: Path) -> dict[str, str]:
    """The text of each file that compiled code comes from, by its module: those that import a decorator from here,
    and, since a constant of another file becomes part of the machine code, all that these import from the package."""
    texts = {}
    for folder, _, names in os.walk(package):
        room = ".".join([package.name, *Path(folder).relative_to(package).parts])
        for name in (name.removesuffix(".py") for name in names if name.endswith(".py")):
            module = room if name == "__init__" else f"{room}.{name}"
            texts[module] = Path(folder, f"{name}.py").read_text("utf-8")
    decorators = {f"{__name__}.{name}" for name in ("kernel", "lossy_kernel", "part", "inline", "prefetch")}
    del texts[package.name]  # names all of the package, and compiles nothing
    waiting = [__name__, *(name for name, text in texts.items() if __name__ in text and decorators & _imports(text))]
    sources: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in texts and name not in sources:
            sources[name] = texts[name]
            waiting += _imports(texts[name])
    return sources


def _imports(text: str) -> set[str]:
    """Modules that a file imports from its package when it is loaded, and names that may be such."""
    modules = set()
    for module, several, one in _IMPORT.findall(text):
        modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", several or one))}
    return modules


def is_compiled(function: str) -> bool:
    """Whether an entry point of this name was compiled on this machine before."""
    return any(cache_folder().glob(f"*/*.{function}-*.nbi"))


def kernel(function: Callable) -> Any:
    """Compile an entry point, cached on disk, without holding the GIL."""
    return _cached(function, _OPTIONS)


def lossy_kernel(*, fastmath: bool | set[str]) -> Callable[[Callable], Any]:
    """Compile a function of approximate results, cached on disk, without holding the GIL. It may allocate, and where
    `fastmath` lets it (all, or LLVM's names of what it may), sums take the order that is fastest. Never for a value
    that reaches a coded bit."""
    return lambda function: _cached(function, {"nogil": True, "fastmath": fastmath})


def _cached(function: Callable, options: dict[str, Any]) -> Any:
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
    try:
        return numba.njit(cache=True, **options)(function)
    finally:
        config.CACHE_DIR = before


def part(function: Callable) -> Any:
    """Compile a part of kernels that is too large to be merged into each place that calls it."""
    return numba.njit(**_OPTIONS)(function)


def inline(function: Callable) -> Any:
    """Compile a step that is merged into every kernel that calls it."""
    return numba.njit(forceinline=True, **_OPTIONS)(function)


@intrinsic
def prefetch(typingctx, array, index):
    """Ask the processor to load `array[index]`; changes no value."""

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        byte_pointer = ir.IntType(8).as_pointer()
        int32 = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        address = builder.bitcast(builder.gep(data, [args[1]]), byte_pointer)
        read, keep, data_cache = int32(0), int32(3), int32(1)
        builder.call(function, [address, read, keep, data_cache])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen
