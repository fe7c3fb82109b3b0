"""Compiled code is cached where a change of its sources is noticed, and nowhere else."""

from pathlib import Path

import numpy as np

import squeeze
from squeeze.kernels.lowrank import cpu
from squeeze.numerics import jit

PACKAGE = Path(squeeze.__file__).parent


def test_lossy_kernels_are_guarded_too():
    sources = jit.compiled_sources(PACKAGE)
    assert {"squeeze.kernels.kv_attention.loops", "squeeze.kernels.lowrank.cpu", "squeeze.kv.unpacking"} <= set(sources)
    assert Path(cpu._halves._cache._cache_path).is_relative_to(jit.cache_folder())


def test_no_other_file_caches_compiled_code():
    users = [path for path in PACKAGE.rglob("*.py") if "njit" in path.read_text("utf-8")]
    assert users == [PACKAGE / "numerics" / "jit.py"]


@jit.lossy_kernel(fastmath=False)
def reversed_copy(x):
    out = np.empty_like(x)
    for i in range(x.size):
        out[i] = x[x.size - 1 - i]
    return out


def test_a_lossy_kernel_may_allocate():
    assert reversed_copy(np.arange(3)).tolist() == [2, 1, 0]
