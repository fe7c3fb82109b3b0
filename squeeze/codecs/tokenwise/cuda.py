"""The tokenwise coder's compiled code on GPUs of CUDA, by numba-cuda: batches.py and what it calls, as it is.

A GPU's threads are the workers of a batch. All of them start at once and wait for each other; the first ones code, each
with an arithmetic coder of its own, and all learn, by warps (warps.py). Only integers are computed, so that the bytes
are the same.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from llvmlite import ir
from numba import cuda
from numba.core import cgutils, types
from numba.cuda import compiler, descriptor, dispatcher
from numba.cuda.core import config
from numba.cuda.cudadrv.driver import CudaAPIError

from squeeze.codecs.tokenwise import batches, bias, model as tokenwise, warps
from squeeze.codecs.tokenwise.log import Cut
from squeeze.errors import DeviceError
from squeeze.numerics.frequencies import Cdf
from squeeze.numerics.jit import cache_folder, replaced

__all__ = ["CUT", "KERNELS", "Gpu", "compiled"]

CUT = Cut(slots=256, columns=1, cells=32, contexts=1)  # some 1,500 tasks
_WARP, _BLOCK = 32, 128  # threads
_ALL = 0xFFFFFFFF  # threads of a warp
_GLOBAL = 1  # number of the address space


@cuda.jit(device=True)
def _first(tickets, rank):  # type: ignore[no-untyped-def]
    return rank


@cuda.jit(device=True)
def _next(tickets, number, size):  # type: ignore[no-untyped-def]
    return number + size


@cuda.jit(device=True)
def _meet(barrier, size):  # type: ignore[no-untyped-def]
    cuda.cg.this_grid().sync()
    return True


@cuda.jit(device=True)
def _vote(yes):  # type: ignore[no-untyped-def]
    return np.int64(cuda.ballot_sync(_ALL, yes)) & _ALL


@cuda.jit(device=True)
def _first_of(votes):  # type: ignore[no-untyped-def]
    return np.int64(cuda.ffs(votes)) - 1


@cuda.jit(device=True)
def _settle():  # type: ignore[no-untyped-def]
    cuda.syncwarp()


@cuda.jit(device=True)
def _sum(array, i, value):  # type: ignore[no-untyped-def]
    cuda.atomic.add(array, i, value)


@cuda.jit(device=True)
def _learn(m, x, t, log, own, first, lanes, tickets, rank, size, barrier):  # type: ignore[no-untyped-def]
    warps.fill_in(own, t, log, lanes, rank, size)
    warps.list_notes(log, lanes, rank, size)
    _meet(barrier, size)
    warps.count_uses(m, x, log, rank, size, _sum)
    _meet(barrier, size)
    warps.learn(m, x, log, first, lanes, rank, size, _WARP, _vote, _first_of, _settle, _sum)
    _meet(barrier, size)
    warps.clear_uses(m, x, log, rank, size, _sum)
    return _meet(barrier, size)


def _code_batches(m, x, t, log, own, steps, codes, decoding, tickets):  # type: ignore[no-untyped-def]
    """As that of batches.py. Neighbouring ranks are threads of different warps: coders that differ in what they do
    would wait for each other in one."""
    thread, count = cuda.grid(1), cuda.gridDim.x * cuda.blockDim.x // _WARP
    rank, size = thread % _WARP * count + thread // _WARP, count * _WARP
    steps = replaced(steps, "counts", Cdf(steps.counts, None))
    batches.work(
        m, x, t, log, own, steps, codes, decoding, tickets, rank, size, tickets, None, _first, _next, _meet, _learn
    )


def _follow(t, counts, entries, starts, logits, top_nlls):  # type: ignore[no-untyped-def]
    """As that of model.py, a row a thread."""
    row = cuda.grid(1)
    if row < entries.size:
        tokenwise.follow_row(t, Cdf(counts, None), entries[row], starts[row], logits, top_nlls, row)


def _add(cdf, rows, entries, gradient):  # type: ignore[no-untyped-def]
    """As that of bias.py, a leaf a thread."""
    leaf = cuda.grid(1)
    if leaf < gradient.size:
        for r in range(entries.size):
            if entries[r] >= 0:
                gradient[leaf] += bias.gradient_of(cdf[rows[r]], leaf, entries[r])


KERNELS = {"code_batches": _code_batches, "follow": _follow, "add": _add}


_one_at_a_time = RLock()  # what numba-cuda keeps for all threads is changed meanwhile


@contextmanager
def _our_way() -> Iterator[None]:
    """While code is compiled and launched: numba-cuda puts tables into constant memory, once for each use, and there
    are 64 KiB; and it warns of few threads."""
    context = descriptor.cuda_target.target_context
    with _one_at_a_time, patch.object(config, "CUDA_LOW_OCCUPANCY_WARNINGS", 0):
        context.make_constant_array = lambda builder, kind, values: _table(context, builder, kind, values)
        try:
            yield
        finally:
            del context.make_constant_array


def _table(context: Any, builder: Any, kind: Any, values: np.ndarray) -> Any:
    values = np.ascontiguousarray(values)
    name = f"squeeze_table_{hashlib.sha256(values.tobytes()).hexdigest()[:16]}_{values.dtype}"
    table = builder.module.globals.get(name)
    if table is None:
        content = ir.Constant(ir.ArrayType(ir.IntType(8), values.nbytes), bytearray(values.tobytes()))
        table = cgutils.add_global_variable(builder.module, content.type, name, addrspace=_GLOBAL)
        table.linkage, table.global_constant, table.initializer = "linkonce_odr", True, content
        table.align = values.itemsize
    pointer = builder.addrspacecast(table, ir.IntType(8).as_pointer(), "generic")
    array = context.make_array(kind)(context, builder)
    context.populate_array(
        array,
        data=builder.bitcast(pointer, array.data.type),
        shape=[context.get_constant(types.intp, size) for size in values.shape],
        strides=[context.get_constant(types.intp, size) for size in values.strides],
        itemsize=context.get_constant(types.intp, values.itemsize),
        parent=None,
        meminfo=None,
    )
    return array._getvalue()


def compiled(name: str, signature: tuple[Any, ...], architecture: tuple[int, int]) -> str:
    """The PTX of one of KERNELS for arguments of these types of numba's; no GPU is needed."""
    device = SimpleNamespace(compute_capability=architecture)
    with patch.object(dispatcher, "get_current_device", lambda: device), _our_way():
        return str(compiler.compile_ptx(KERNELS[name], signature, cc=architecture)[0])


class _Kernel:
    """Compiled for a GPU when it is first launched, and kept on disk as that of numerics/jit.py is.

    A launch takes some thousand numbers, of which numba-cuda makes most anew each time, for milliseconds. Those of
    tuples that were launched before are kept here.
    """

    def __init__(self, function: Any):
        before, config.CACHE_DIR = config.CACHE_DIR, str(cache_folder(Path(__file__)))
        try:
            self._dispatcher = cuda.jit(cache=True)(function)
        finally:
            config.CACHE_DIR = before
        self._compiled: dict[tuple[Any, ...], Any] = {}
        self._known: dict[int, tuple[Any, Any, list[Any]]] = {}  # by id: a tuple, its type, its numbers

    def launch(self, blocks: int, arguments: tuple[Any, ...]) -> None:
        """With _BLOCK threads each."""
        signature, where = tuple(map(self._type, arguments)), self._dispatcher[blocks, _BLOCK]
        if compiled := self._compiled.get(signature):
            compiled.launch(arguments, where.griddim, where.blockdim, where.stream, where.sharedmem)
            return
        where(*arguments)
        if compiled := self._dispatcher.overloads.get(signature):
            prepare = compiled._prepare_args
            compiled._prepare_args = lambda kind, value, *rest: self._prepare(prepare, kind, value, *rest)
            self._compiled[signature] = compiled

    def keep(self, values: Iterable[tuple[Any, ...]]) -> None:
        """These tuples, which do not change, will be launched often."""
        self._known |= {id(value): (value, self._dispatcher.typeof_pyval(value), []) for value in values}

    def forget(self, values: Iterable[tuple[Any, ...]]) -> None:
        for value in values:
            self._known.pop(id(value), None)

    def _type(self, value: Any) -> Any:
        known = self._known.get(id(value))
        return known[1] if known else self._dispatcher.typeof_pyval(value)

    def _prepare(self, prepare: Any, kind: Any, value: Any, stream: Any, writes: list[Any], numbers: list[Any]) -> None:
        known = self._known.get(id(value))
        if known is None:
            prepare(kind, value, stream, writes, numbers)
            return
        if not known[2]:
            prepare(kind, value, stream, writes, known[2])
        numbers += known[2]


class Gpu:
    """One GPU, by its number; used from any thread."""

    cut = CUT

    def __init__(self, number: int):
        self._number, self.name = number, f"cuda:{number}"
        self._kernels = {name: _Kernel(kernel) for name, kernel in KERNELS.items()}
        cuda.select_device(number)
        self._processors = int(cuda.get_current_device().MULTIPROCESSOR_COUNT)

    def put(self, values: Any) -> Any:
        """A copy there of an array, or of each member of a tuple; a number as it is; a tensor, which is there already,
        as an array, of uint64 where it is of int64."""
        if isinstance(values, tuple):
            moved = [self.put(value) for value in values]
            return type(values)(*moved) if hasattr(values, "_fields") else tuple(moved)
        if isinstance(values, int):
            return values
        with self._in_use():
            if isinstance(values, np.ndarray):
                return cuda.to_device(np.ascontiguousarray(values))
            return cuda.as_cuda_array(values.view(torch.uint64) if values.dtype == torch.int64 else values)

    def get(self, values: Any, out: np.ndarray) -> None:
        """Copy an array from there."""
        with self._in_use():
            out[...] = values.copy_to_host()

    def keep(self, name: str, values: Iterable[tuple[Any, ...]], while_there_is: Any) -> None:
        """These tuples will be given to one of KERNELS often, and do not change."""
        kept = list(values)
        self._kernels[name].keep(kept)
        weakref.finalize(while_there_is, self._kernels[name].forget, kept)

    def room(self, *shape: int, kind: str = "int64") -> torch.Tensor:
        """Zeros there."""
        return torch.zeros(shape, dtype=getattr(torch, kind), device=self.name)

    def run(self, name: str, arguments: tuple[Any, ...], threads: int | None = None) -> None:
        """Launch one of KERNELS on so many threads, or as many as can wait for each other."""
        blocks = self._processors if threads is None else -(-threads // _BLOCK)
        with self._in_use(), _our_way():
            self._kernels[name].launch(blocks, arguments)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """By this thread. Raises DeviceError where the driver refuses something."""
        try:
            cuda.select_device(self._number)
            yield
        except CudaAPIError as error:
            raise DeviceError(f"{self.name}: {str(error).strip()}: use --device cpu") from error
