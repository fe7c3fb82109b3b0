"""The signatures that a library has: those that a workload calls kernels with.

While the workload runs, each kernel is compiled as object code at its first call with a signature, and the object is
loaded and called through call.c. So the objects of the recorded target are made at the same time, and nothing is
compiled twice.
"""

import ctypes
import faulthandler
import mmap
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import types

from prebuilt.objects import entry_point
from prebuilt.signatures import signature_hash
from prebuilt.targets import CALL, Target
from squeeze.numerics import jit
from squeeze.numerics.compiling import kernel as compiled, lossy_kernel as lossily_compiled
from squeeze.numerics.entries import Kernel, entry_table

_MOST = 256  # signatures of a kernel


def record(target: Target, folder: Path, workload: str, part: str) -> None:
    """Run a part of the workload, and write rows of kernel, hash and signature for what it called.

    Args:
        target: the processor that objects are made for, which has to be able to run here.
        folder: where PART.pickle and the objects are written.
        workload: a module with a dict PARTS of functions.
        part: the key of one.
    """
    faulthandler.enable()
    Recorded.begin(target, folder, Calls(folder / f"{part}.calls"))
    jit.kernel = lambda function: Recorded(function, compiled(function))  # before a module with kernels is imported
    jit.lossy_kernel = lambda **options: lambda function: Recorded(function, lossily_compiled(**options)(function))
    import_module(workload).PARTS[part]()
    rows = [(*called, signature) for called, signature in FOUND.items()]
    (folder / f"{part}.pickle").write_bytes(pickle.dumps(rows))


_NAME, _THREADS = 128, 64  # bytes of a name, and threads


class Calls:
    """The kernels that each thread is in, in a file that is left when the process dies."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(_NAME * _THREADS))
        with path.open("r+b") as file:
            self._rows = mmap.mmap(file.fileno(), 0)
        self._places: dict[int, int] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Note that this thread is in a kernel."""
        place = _NAME * (self._places.setdefault(threading.get_ident(), len(self._places)) % _THREADS)
        before = self._rows[place : place + _NAME]
        self._rows[place : place + _NAME] = name.encode().ljust(_NAME, b"\0")[:_NAME]
        try:
            yield
        finally:
            self._rows[place : place + _NAME] = before


FOUND: dict[tuple[str, int], Any] = {}  # signatures by kernel and hash
_lock = threading.RLock()


class Recorded(Kernel):
    """A kernel whose signatures are written down and compiled as they come."""

    target: Target
    folder: Path
    calls: Calls
    call: Any  # call.c
    engine: Any  # LLVM's, which loads objects

    @classmethod
    def begin(cls, target: Target, folder: Path, calls: Calls) -> None:
        """Load call.c, and start LLVM's loader of objects."""
        cls.target, cls.folder, cls.calls = target, folder, calls
        cls.call = ctypes.PyDLL(str(folder / CALL))
        module = llvm.parse_assembly(f'target triple = "{target.triple}"')
        machine = llvm.Target.from_triple(target.triple).create_target_machine(reloc="pic", codemodel="default")
        cls.engine = llvm.create_mcjit_compiler(module, machine)

    def __init__(self, function: Any, dispatcher: Any) -> None:
        super().__init__(function)
        self.name = f"{function.__module__}:{function.__qualname__}"
        self._dispatcher = dispatcher
        self._numba_type_ = dispatcher._numba_type_  # other kernels call it
        self._known: set[int] = set()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        with self.calls.of(self.name):
            return super().__call__(*arguments, **options)

    def _load(self) -> None:
        self._call, self._types, table = entry_table(self.call, [], _MOST)
        self._place, self._entries = ctypes.addressof(table), 0
        self._table = table

    def _compile(self) -> Any:
        return self._call_new

    def _call_new(self, *arguments: Any) -> Any:
        with _lock:
            signature = tuple(writable(self._dispatcher.typeof_pyval(argument)) for argument in arguments)
            key = signature_hash(signature)
            if key not in self._known:
                _, entry, result = entry_point(self.target.name, self.folder, self.name, signature)
                loaded = llvm.ObjectFileRef.from_path(str(self.folder / f"{entry}.o"))
                self.engine.add_object_file(loaded)
                self.engine.finalize_object()
                row = self._table[self._entries]
                row.signature, row.run, row.result = key, self.engine.get_function_address(entry), result.encode()
                self._entries += 1  # last: other threads call as soon as it is there
                self._known.add(key)
                FOUND[self.name, key] = signature
                print(f"{len(FOUND)} {self.name}", flush=True)
        return self(*arguments)


def writable(kind: Any) -> Any:
    """Return the type of the same argument with arrays that may be written: their machine code is the same."""
    if isinstance(kind, types.Array):
        return kind.copy(readonly=False)
    if isinstance(kind, types.BaseTuple):
        named = kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None
        return types.BaseTuple.from_types([writable(item) for item in kind], named)
    return kind
