"""Compiling with numba: the decorators of jit.py where no library of machine code is, and a cache on the disk.

Compiled code is cached on the disk (code_cache.py).
"""

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import PassManager
from numba.core.cpu import CPUContext
from numba.core.typing.templates import make_concrete_template
from numba.extending import intrinsic

# Not by `from`, which `compiled_sources` follows: no machine code depends on these.
import squeeze.system.notices as notices
from squeeze.numerics import code_cache
from squeeze.numerics.machine_code import ask_for

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
_RARE = 50_000, 20, 50  # thresholds of gc: without any collection, a kernel's garbage takes 120 MB


# Passes of numba's names for closures, generators, array expressions and such, which kernels and steps do not have.
_NOT_NEEDED = {
    "inline_closure_likes",
    "inline_inlinables",
    "inline_overloads",
    "literal_unroll",
    "make_function_op_code_to_jit_function",
    "nopython_rewrites",
    "with_lifting",
}


KERNELS: dict[str, Any] = {}  # kernels of the modules that are imported, by module:name


def kernel(function: Callable) -> Any:
    """Compile an entry point without the GIL, and cache it on disk."""
    compiled = _cached(function, {**_KERNEL, "pipeline_class": _ShortCompiler})
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
        for index in code_cache.cache_folder(Path(function.__code__.co_filename)).glob(
            f"*/*.{function.__name__}-*.nbi"
        ):
            index.unlink(missing_ok=True)
        return _cached(function, _OPTIONS, compiler)


def _cached(function: Callable, options: dict[str, Any], compiler: Callable[..., Any] = numba.njit) -> Any:
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(code_cache.cache_folder(Path(function.__code__.co_filename)))
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
    if compiler is numba.njit:
        compiled.compile = _with_rare_collections(compiled.compile)
        _called_plainly(compiled)
    KERNELS[f"{function.__module__}:{function.__qualname__}"] = compiled
    return compiled


def _with_rare_collections(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that compiles with rare collections of cyclic garbage, which take a sixth of the time else."""

    def compiled(*arguments: Any, **options: Any) -> Any:
        before = gc.get_threshold()
        if not 0 < before[0] < _RARE[0]:  # none at all (0), or rarer ones
            return compile_(*arguments, **options)
        gc.set_threshold(*_RARE)
        try:
            return compile_(*arguments, **options)
        finally:
            gc.set_threshold(*before)

    return compiled


def _loading(cache: Any, load: Callable[..., Any]) -> Callable[..., Any]:
    """Return a loader of compiled code that deletes files which a crash has truncated."""

    def loaded(*arguments: Any) -> Any:
        for trouble in code_cache.troubles:
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
    return _called_plainly(numba.njit(pipeline_class=_StepCompiler, **_STEP)(_named(function)))


def inline(function: Callable) -> Any:
    """Compile a step that is inlined into every kernel that calls it. Python cannot call it."""
    return _called_plainly(numba.njit(pipeline_class=_StepCompiler, forceinline=True, **_STEP)(function))


def _called_plainly(compiled: Any) -> Any:
    """Let kernels that call a function with a constant share what is compiled for a variable.

    numba compiles a function for each constant integer, which LLVM does again where it inlines the function. It also
    compares the types of a call with those of all that is compiled, but only one fits.
    """

    def get_call_template(args: tuple[Any, ...], kws: dict[str, Any]) -> tuple[Any, ...]:
        signature, args = compiled._compiler.fold_argument_types(args, kws)
        args = tuple(map(types.unliteral, args))
        compiled.compile(args)
        found = [compiled.overloads[args].signature]
        name = compiled.py_func.__name__
        return make_concrete_template(name, key=name, signatures=found), signature, args, {}

    compiled.get_call_template = get_call_template
    return compiled


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


class _Typing:
    """numba's rules for the types of expressions, which finds those of an operation once for the same types.

    numba tries all rules for an operator each time, which takes a sixth of compiling.
    """

    _known: ClassVar[dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]]] = {}

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, arguments: Any, names: dict[str, Any]) -> Any:
        if names or isinstance(function, types.Dispatcher):
            return self._context.resolve_function_type(function, arguments, names)
        key = id(function), tuple(arguments)
        if key not in self._known:
            found = self._context.resolve_function_type(function, arguments, names)
            if found is None:
                return None
            self._known[key] = function, found  # the function stays, so that no other one gets its id
        return self._known[key][1]


class _ShortCompiler(Compiler):
    """numba's way to machine code without the passes for what kernels and steps do not have: closures, generators,
    array expressions, functions that are inlined before types are known. They take a fifteenth of the time."""

    def __init__(self, typing: Any, *rest: Any) -> None:
        super().__init__(_Typing(typing), *rest)

    def define_pipelines(self) -> list[PassManager]:
        manager, *rest = super().define_pipelines()
        manager.passes = [entry for entry in manager.passes if entry[0].name() not in _NOT_NEEDED]
        manager.finalize()
        return [manager, *rest]


class _StepCompiler(_ShortCompiler):
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
