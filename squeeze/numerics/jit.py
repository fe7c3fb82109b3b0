"""Compiling inner loops with numba: decorators for kernels and the steps that they inline, and a prefetch instruction.

`kernel` compiles an entry point and caches it on disk. `inline` compiles a step that is merged into its callers, `part`
one that is too large for that. `lossy_kernel` is for results that no coded bit depends on, and `callback` for functions
that C calls.

numba's own cache notices a change only in the file of the entry point. So the cache folder of a file is named after the
content of every source that its code depends on: its own, and all that it imports in turn. An edited or upgraded
package never runs outdated machine code.
"""

import atexit
import hashlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.cpu import CPUContext
from numba.extending import intrinsic

# Not by `from`, which `compiled_sources` follows: no machine code depends on these.
import squeeze.system.cache as user_cache
import squeeze.system.notices as notices

_IMPORT = re.compile(rf"^from ({__name__.partition('.')[0]}[\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
_PACKAGE = Path(__file__).parents[1]
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "_nrt": False,  # no reference counting: kernels allocate nothing, and the counts cost as much as the models
    "error_model": "numpy",
    "fastmath": False,
    "boundscheck": False,
}
# A wrapper has the whole function in it once more, which is compiled at every step on the way to the kernel. C calls
# callbacks alone, and Python nothing but kernels: a step has no way in from there, and such a call ends the process.
_KERNEL: dict[str, Any] = {**_OPTIONS, "no_cfunc_wrapper": True}
_STEP: dict[str, Any] = {**_KERNEL, "no_cpython_wrapper": True}


def cache_root() -> Path:
    """Return the folder that holds the folders of compiled code, in the user's cache or among temporary files."""
    if base := os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "squeeze" / "numba"
    try:
        return Path.home() / ".cache" / "squeeze" / "numba"
    except RuntimeError:  # an account without a home
        return _temporary()


@cache
def _temporary() -> Path:
    """Return a folder for temporary files that no other user can write to, the same for each process if possible."""
    folder = Path(tempfile.gettempdir(), f"squeeze-numba-{os.geteuid()}")
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if not folder.is_symlink() and folder.stat().st_uid == os.geteuid() and not user_cache.open_to_others(folder):
            return folder
    own = tempfile.mkdtemp(prefix="squeeze-numba-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


@cache
def cache_folder(file: Path) -> Path:
    """Return the folder for code compiled from a file's entry points, and create it if necessary.

    Its name depends on the sources, and no other user can write to it.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for path, text in sorted(compiled_sources(file, _PACKAGE).items()):
        digest.update(f"{path.name}\0{text}".encode())
    name = digest.hexdigest()[:16]
    try:
        folder = cache_root() / name
        user_cache.make_folder(folder)
        trouble = _trouble_with(folder)
    except OSError as error:
        trouble = f"{error.filename or folder}: {error.strerror}"
    if trouble is None:
        return folder
    _troubles.add(f"Warning: compiled code is kept in {_temporary()}, not in the cache: {trouble}")
    folder = _temporary() / name
    folder.mkdir(0o700, exist_ok=True)
    return folder


_troubles: set[str] = set()  # warnings that are shown when code is compiled or loaded


def _trouble_with(folder: Path) -> str | None:
    """Return why a folder cannot be used as a cache of machine code, or None."""
    if place := user_cache.open_to_others(folder):
        return (
            f"other users may write to {place}; delete {folder.parent}, or set XDG_CACHE_HOME to a folder of your own"
        )
    return None if os.access(folder, os.W_OK) else f"{folder} cannot be written"


def compiled_sources(file: Path, package: Path) -> dict[Path, str]:
    """Return the text of each file that a file's compiled code depends on: its own, and all that it imports in turn.

    Steps and constants of imported files become part of the machine code.
    """
    sources: dict[Path, str] = {}
    waiting = [file, package / Path(__file__).relative_to(_PACKAGE)]
    while waiting:
        path = waiting.pop()
        if path not in sources:
            sources[path], modules = _read(path)
            waiting += [found for module in modules if (found := _file(package, module))]
    return sources


@cache
def _read(path: Path) -> tuple[str, frozenset[str]]:
    """Return a file's text and the modules that it imports from the package, among names that may not be modules."""
    text, modules = path.read_text("utf-8"), set()
    for module, several, one in _IMPORT.findall(text):
        modules |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", several or one))}
    return text, frozenset(modules)


@cache
def _file(package: Path, module: str) -> Path | None:
    """Return the path of a module, or None if there is no such module or it is the whole package, which compiles
    nothing.
    """
    path = package.joinpath(*module.split(".")[1:])
    files = (path.with_name(f"{path.name}.py"), path / "__init__.py") if path != package else ()
    return next(filter(Path.is_file, files), None)


def kernel(function: Callable) -> Any:
    """Compile an entry point without the GIL, and cache it on disk."""
    compiled = _cached(function, _KERNEL)
    cache = compiled._cache  # kernels need nothing that numba loads for compiling

    cache.load_overload = _loading(
        cache, cache._load_overload
    )  # skips what numba's own method loads first, which takes longer
    return compiled


def lossy_kernel(*, fastmath: bool | set[str]) -> Callable[[Callable], Any]:
    """Compile a function without the GIL whose results need not be exact, and cache it on disk.

    It may allocate. Never use it for a value that a coded bit depends on. `fastmath` is True or the LLVM flags that
    allow other orders of operations.
    """
    return lambda function: _cached(function, {"nogil": True, "fastmath": fastmath, "no_cfunc_wrapper": True})


def callback(function: Callable) -> Any:
    """Compile a C function of one pointer at once, and cache it on disk. C libraries call its `address`."""
    compiler = partial(numba.cfunc, types.void(types.voidptr))
    try:
        return _cached(function, _OPTIONS, compiler)
    except Exception:  # a crash may have truncated the cached files
        for index in cache_folder(Path(function.__code__.co_filename)).glob(f"*/*.{function.__name__}-*.nbi"):
            index.unlink(missing_ok=True)
        return _cached(function, _OPTIONS, compiler)


def _cached(function: Callable, options: dict[str, Any], compiler: Callable[..., Any] = numba.njit) -> Any:
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder(Path(function.__code__.co_filename)))
    try:
        compiled = compiler(cache=True, **options)(function)
    finally:
        config.CACHE_DIR = before
    cache = compiled._cache
    cache.load_overload = _loading(cache, cache.load_overload)
    save = cache.save_overload

    def saved(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:  # the disk is full: the next process compiles again
            where = f"{cache.cache_path}: {error.strerror}"
            _mention(f"Warning: compiled code was not kept, so the next run compiles again: {where}")

    cache.save_overload = saved
    return compiled


def _loading(cache: Any, load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loader of compiled code that deletes files which a crash has truncated."""

    def loaded(*arguments: Any) -> Any:
        for trouble in _troubles:
            _mention(trouble)
        try:
            with cache._guard_against_spurious_io_errors():
                found = load(*arguments)
        except Exception:
            with suppress(OSError):
                Path(cache._cache_file._index_path).unlink()
            found = None
        if found is None:
            _mention()
        return found

    return loaded


def _mention(sentence: str | None = None) -> None:
    """Show a notice to the user: the sentence, or that code is being compiled."""
    notices.mention(sentence or notices.COMPILING)


def part(function: Callable) -> Any:
    """Compile a function for kernels that is too large to be inlined. Python cannot call it."""
    return numba.njit(pipeline_class=_StepCompiler, **_STEP)(_named(function))


def inline(function: Callable) -> Any:
    """Compile a step that is inlined into every kernel that calls it. Python cannot call it."""
    return numba.njit(pipeline_class=_StepCompiler, forceinline=True, **_STEP)(function)


_made = Counter[tuple[str, str]]()  # functions of one name in one module: closures, of other constants each


def _named(function: Callable) -> Callable:
    """Give a function a name that no other part has, and that every process gives it.

    Parts become symbols of the kernels' machine code. If two kernels from the cache have different parts of one name,
    both call the part that was loaded first. Each process of numba numbers them from 1, so these numbers do not help.
    """
    of = function.__module__, function.__qualname__
    if _made[of]:
        function.__qualname__ += str(_made[of])
    _made[of] += 1
    return function


class _StepLibrary(JITCodeLibrary):
    """The LLVM code of a step before it is merged into kernels, without machine code.

    LLVM optimises a kernel as a whole. So only what the step itself calls is merged here.
    """

    @property
    def codegen(self) -> Any:
        return self  # numba uses it to set the environment

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the environment is part of machine code and serves calls from Python, and a step has neither."""

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # no such function

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager(
            loop_vectorize=False, slp_vectorize=False, opt=0, cost="cheap"
        )
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _StepCompiler(Compiler):
    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        super().__init__(typing, target, library or _StepLibrary(target.codegen(), "step"), *rest)


@intrinsic
def prefetch(typingctx, array, index):
    """Prefetch `array[index]` into the processor's cache."""

    def codegen(context, builder, signature, args):
        if isinstance(context, CPUContext):  # a GPU has no such instruction
            data = context.make_array(signature.args[0])(context, builder, args[0]).data
            ask_for(builder, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


def ask_for(builder: Any, address: Any) -> None:
    """Emit a prefetch of an address, which may be invalid."""
    byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    read, keep, data_cache = int32(0), int32(3), int32(1)
    builder.call(function, [builder.bitcast(address, byte_pointer), read, keep, data_cache])
