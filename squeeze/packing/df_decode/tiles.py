"""Coded tensors of floats on the CPU, decoded or multiplied by the threads of torch. cpu.py is what each does."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from squeeze.numerics import openmp
from squeeze.packing.df_decode import cpu
from squeeze.packing.tensors import fixed
from squeeze.packing.tensors.fixed_blocks import SLACK
from squeeze.packing.tensors.fixed_groups import KINDS
from squeeze.packing.tensors.float_payload import Coded
from squeeze.packing.tensors.tables import damaged
from squeeze.system.arena import scratch

__all__ = ["DTYPES", "Tiles"]

DTYPES = ("BF16", "F16", "F32")
_REST = 1 << 10  # bytes of working space besides tiles


class Tiles:
    """A parsed payload, in tiles of `values`."""

    def __init__(self, coded: Coded | fixed.Coded, dtype: str) -> None:
        """dtype: one of DTYPES."""
        self.coded, self.itemsize = coded, np.dtype(KINDS[dtype][0]).itemsize
        self._is_fixed = isinstance(coded, fixed.Coded)
        self.segments = 1 if self._is_fixed else cpu.SEGMENTS  # of a tile
        self.values = coded.lanes * coded.rows * self.segments
        self.count = -(-coded.count // self.values)
        self._worker = _worker(dtype, self._is_fixed)
        self._job = self._template()

    def _template(self) -> np.ndarray:
        coded, job = self.coded, np.zeros(cpu.SIZE, np.int64)
        job[cpu.PER_TILE], job[cpu.COUNT] = self.values, coded.count
        job[cpu.PAYLOAD], job[cpu.PAYLOAD_SIZE] = coded.payload.ctypes.data, coded.payload.size
        space = self.values * self.itemsize + _REST
        if isinstance(coded, fixed.Coded):
            job[cpu.BLOCKS], job[cpu.RECORD] = coded.segments, coded.record
            for place, array in ((cpu.NAMES, coded.names), (cpu.COUNTS, coded.counts), (cpu.STARTS, coded.starts)):
                job[place] = array.ctypes.data
            space += 2 * (self.values + SLACK)
        else:
            job[cpu.BITS], job[cpu.ROTATED], job[cpu.LANES] = coded.bits, coded.rotated, coded.lanes
            job[cpu.SEGMENT_ROWS], job[cpu.PLANES] = coded.rows, len(coded.fields)
            job[cpu.FIELDS] = coded.fields.ctypes.data
        job[cpu.SPACE_SIZE] = -(-space // 64) * 64
        return job

    def decode(self, first: int, last: int, out: np.ndarray, threads: int) -> None:
        """Tiles first to last into the memory of `out`, contiguous. Raises DamagedError."""
        self._run(first, last, out.ctypes.data, threads, self._job.copy())

    def multiply(self, x: torch.Tensor, outputs: int, threads: int) -> torch.Tensor:
        """x [..., I], times the tensor as a matrix [outputs, I]: [..., outputs], in float32. Raises DamagedError."""
        inputs, x, job = x.shape[-1], x.float().contiguous(), self._job.copy()
        out = torch.empty((*x.shape[:-1], outputs), dtype=torch.float32)
        job[cpu.ROWS], job[cpu.INPUTS], job[cpu.OUTPUTS] = x.numel() // inputs, inputs, outputs
        job[cpu.X] = x.data_ptr()
        self._run(0, self.count, out.data_ptr(), threads, job)
        return out

    def _run(self, first: int, last: int, out: int, threads: int, job: np.ndarray) -> None:
        threads = threads if last - first > 1 else 1
        size = min(threads, last - first) * int(job[cpu.SPACE_SIZE])
        space = scratch(size + 4 * last * int(job[cpu.ROWS]))
        job[cpu.FIRST], job[cpu.LAST], job[cpu.OUT], job[cpu.SPACE] = first, last, out, space.ctypes.data
        job[cpu.PARTS] = job[cpu.SPACE] + size
        if isinstance(self.coded, Coded):
            slots = self.coded.slots()
            job[cpu.SLOTS], job[cpu.SLOTS_SIZE] = slots.ctypes.data, slots.size
        openmp.run(self._worker, job, threads)
        if job[cpu.FAULT]:
            raise damaged(f"{'block' if self._is_fixed else 'segment'} {job[cpu.FAULT] - 1} does not decode")


@cache
def _worker(dtype: str, is_fixed: bool) -> Any:
    return (cpu.fixed_worker if is_fixed else cpu.rans_worker)(KINDS[dtype][0])
