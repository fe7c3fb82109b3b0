"""Kernels whose machine code is in a library: calls of its entry points.

A call that the library has no entry point for, because of the types of its arguments, is compiled by numba if that is
installed. For this the package's modules are imported once more, as numba sees them.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache, update_wrapper
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

import squeeze.numerics.prebuilt as prebuilt
import squeeze.system.notices as notices
from squeeze.errors import PackageError
from squeeze.system.extras import how_to_install

__all__ = ["Callback", "Kernel", "compiling_copy"]

_MISSING = object()
# Types of numbers that compiled code takes by value, or a record by its address: a letter, and bytes.
_SCALARS: dict[type, tuple[str, int]] = {
    np.bool_: ("b", 1),
    **{np.dtype(f"{letter}{size}").type: (letter, size) for letter in "iu" for size in (1, 2, 4, 8)},
    np.float32: ("f", 4),
    np.float64: ("f", 8),
    np.record: ("R", 0),
    np.void: ("R", 0),
}


class _Scalar(ctypes.Structure):
    _fields_ = [("type", ctypes.py_object), ("kind", ctypes.c_int64), ("size", ctypes.c_int64)]


class _Types(ctypes.Structure):
    """The types of call.c."""

    _fields_ = [
        ("head", ctypes.c_ssize_t),
        *[
            (name, ctypes.py_object)
            for name in ["array", "tuple", "integer", "boolean", "number", "none", "nothing", "missing"]
        ],
        ("scalars", ctypes.c_int64),
        ("scalar", _Scalar * 32),
    ]


class _Entry(ctypes.Structure):
    _fields_ = [("signature", ctypes.c_uint64), ("run", ctypes.c_void_p), ("result", ctypes.c_char_p)]


@cache
def _types() -> _Types:
    scalars = [_Scalar(kind, ord(letter), size) for kind, (letter, size) in _SCALARS.items()]
    return _Types(
        object.__basicsize__, np.ndarray, tuple, int, bool, float, type(None), None, _MISSING, len(scalars),
        (_Scalar * 32)(*scalars),
    )  # fmt: skip


def entry_table(code: Any, entries: list[tuple[Any, list[str]]], size: int) -> tuple[Any, int, Any]:
    """Return the function that calls entry points, the address of its types, and a kernel's table of `size` rows.

    Args:
        code: the library with the function, call.c.
        entries: of the kernel (`Library.entries`), which are the first rows.
        size: rows of the table.
    """
    rows = [_Entry(int(key, 16), _address(home, name), result.encode()) for home, (key, name, result) in entries]
    call = code.squeeze_call
    call.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    call.restype = ctypes.py_object
    return call, ctypes.addressof(_types()), (_Entry * size)(*rows)


class Kernel:
    """A function whose machine code is in the library."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.py_func: Any = function
        code: Any = function.__code__
        self._count = code.co_argcount
        self._table: Any = None
        self._call: Any = None
        self._types = self._place = self._entries = 0
        self._compiled: Any = None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if options or len(arguments) != self._count:
            from inspect import signature

            bound = signature(self.py_func).bind(*arguments, **options)
            bound.apply_defaults()
            arguments = bound.args
        if self._table is None:
            with _lock:  # a table that another thread calls with may not be replaced
                if self._table is None:
                    self._load()
        found = self._call(arguments, self._types, self._place, self._entries)
        if found is _MISSING:
            return self._compile()(*arguments)
        return found

    def _load(self) -> None:
        library: Any = prebuilt.LIBRARY
        entries = library.entries(f"{self.__module__}:{self.py_func.__qualname__}")
        self._call, self._types, table = entry_table(library.code, entries, len(entries))
        self._place, self._entries = ctypes.addressof(table), len(entries)
        self._table = table  # last: other threads call as soon as it is there

    def _compile(self) -> Any:
        if self._compiled is None:
            copy = compiling_copy(self.__module__)
            found: Any = copy
            for name in self.py_func.__qualname__.split("."):
                found = getattr(found, name)
            self._compiled = found
        return self._compiled


def _address(code: Any, name: str) -> int | None:
    return ctypes.cast(getattr(code, name), ctypes.c_void_p).value


_lock = threading.RLock()
_ROOMS = ("codecs", "deltas", "kernels", "kv", "lm", "numerics", "packing", "quant")  # where compiled functions are
_copies: dict[str, ModuleType] = {}


def compiling_copy(module: str) -> Any:
    """Return a copy of a module of this package whose kernels numba compiles.

    Raises:
        PackageError: numba is not installed.
    """
    import squeeze

    with _lock:
        if module in _copies:
            return _copies[module]
        notices.mention(notices.COMPILING)
        theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_copied(name)}
        library, prebuilt.LIBRARY = prebuilt.LIBRARY, None
        sys.modules |= _copies
        sys.modules[prebuilt.__name__] = prebuilt
        try:
            found = import_module(module)
        except ModuleNotFoundError as error:
            if error.name not in ("numba", "llvmlite"):
                raise
            message = (
                f"this needs code that is not in the package, and numba to compile it: {how_to_install('compile')}"
            )
            raise PackageError(message) from error
        finally:
            prebuilt.LIBRARY = library
            _copies.update({name: sys.modules.pop(name) for name in list(sys.modules) if _is_copied(name)})
            _copies.pop(prebuilt.__name__, None)
            sys.modules |= theirs
            for room in _ROOMS:
                if f"squeeze.{room}" in theirs:
                    setattr(squeeze, room, theirs[f"squeeze.{room}"])
        return found


def _is_copied(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == "squeeze" and rest.partition(".")[0] in _ROOMS


class Callback:
    """A function that C calls: `address` is in the library."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__}:{function.__qualname__}"

    @property
    def address(self) -> int:
        raise PackageError(f"{self.name} is not in the library")
