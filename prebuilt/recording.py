"""The signatures that a library has: those that a workload calls kernels with.

While the workload runs, each kernel is compiled as object code at its first call with a signature, and the object is
loaded and called through call.c. So the objects of the recorded target are made at the same time, and nothing is
compiled twice.
"""

import ctypes
import pickle
import subprocess
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba.core import types

from prebuilt import kernels
from prebuilt.objects import entry_point
from prebuilt.signatures import signature_hash
from prebuilt.targets import ROOT, Target
from squeeze.numerics import jit
from squeeze.numerics.compiling import kernel as compiled, lossy_kernel as lossily_compiled
from squeeze.numerics.entries import Kernel, entry_table

_MOST = 256  # signatures of a kernel


def record(target: Target, folder: Path, workload: str, whole: bool) -> None:
    """Run the workload, a module, and write a list of kernels and signatures.

    Args:
        target: the processor that objects are made for, which has to be able to run here.
        folder: where signatures.pickle and the objects are written.
        workload: a module with a function `run`.
        whole: exit with an error if the workload does not call every kernel that is not left out.
    """
    Recorded.begin(target, folder)
    jit.kernel = lambda function: Recorded(function, compiled(function))  # before a module with kernels is imported
    jit.lossy_kernel = lambda **options: lambda function: Recorded(function, lossily_compiled(**options)(function))
    import_module(workload).run()
    if whole:
        _check(workload)
    (folder / "signatures.pickle").write_bytes(pickle.dumps(sorted(FOUND, key=str)))


def _check(workload: str) -> None:
    """Write the list of kernels, or exit with an error if the workload leaves out some."""
    wanted = kernels.wanted()
    if missing := wanted.difference(name for name, _ in FOUND):
        raise SystemExit(f"{workload} does not call {', '.join(sorted(missing))}: add calls, or an entry of LEFT_OUT")
    kernels.RECORDED.write_text("".join(f"{name}\n" for name in sorted(wanted)))


FOUND: set[tuple[str, Any]] = set()
_lock = threading.RLock()


class Recorded(Kernel):
    """A kernel whose signatures are written down and compiled as they come."""

    target: Target
    folder: Path
    call: Any  # call.c
    engine: Any  # LLVM's, which loads objects

    @classmethod
    def begin(cls, target: Target, folder: Path) -> None:
        """Compile call.c, and start LLVM's loader of objects."""
        cls.target, cls.folder, library = target, folder, folder / "call.so"
        subprocess.run([*target.compiler(), "-o", library, ROOT / "prebuilt" / "call.c"], check=True)
        cls.call = ctypes.PyDLL(str(library))
        module = llvm.parse_assembly(f'target triple = "{target.triple}"')
        machine = llvm.Target.from_triple(target.triple).create_target_machine(reloc="pic", codemodel="default")
        cls.engine = llvm.create_mcjit_compiler(module, machine)

    def __init__(self, function: Any, dispatcher: Any) -> None:
        super().__init__(function)
        self._dispatcher = dispatcher
        self._numba_type_ = dispatcher._numba_type_  # other kernels call it
        self._known: set[int] = set()

    def _load(self) -> None:
        self._call, self._types, table = entry_table(self.call, [], _MOST)
        self._place, self._entries = ctypes.addressof(table), 0
        self._table = table

    def _compile(self) -> Any:
        return self._call_new

    def _call_new(self, *arguments: Any) -> Any:
        name = f"{self.__module__}:{self.py_func.__qualname__}"
        with _lock:
            signature = tuple(writable(self._dispatcher.typeof_pyval(argument)) for argument in arguments)
            key = signature_hash(signature)
            if key not in self._known:
                _, entry, result = entry_point(self.target.name, self.folder, name, signature)
                loaded = llvm.ObjectFileRef.from_path(str(self.folder / f"{entry}.o"))
                self.engine.add_object_file(loaded)
                self.engine.finalize_object()
                row = self._table[self._entries]
                row.signature, row.run, row.result = key, self.engine.get_function_address(entry), result.encode()
                self._entries += 1  # last: other threads call as soon as it is there
                self._known.add(key)
                FOUND.add((name, signature))
                print(f"{len(FOUND)} {name}", flush=True)
        return self(*arguments)


def writable(kind: Any) -> Any:
    """Return the type of the same argument with arrays that may be written: their machine code is the same."""
    if isinstance(kind, types.Array):
        return kind.copy(readonly=False)
    if isinstance(kind, types.BaseTuple):
        named = kind.instance_class if isinstance(kind, types.BaseNamedTuple) else None
        return types.BaseTuple.from_types([writable(item) for item in kind], named)
    return kind
