"""The coder's code compiled for GPUs that are not there: it is compiled at all, fits, and keeps to integers."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from squeeze.codecs.bytewise import arrays as bytewise
from squeeze.codecs.tokenwise import batches, presets
from squeeze.codecs.tokenwise.arrays import EXTRA, build_mix
from squeeze.numerics import trie

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install -e '.[cuda]'")
pytest.importorskip("triton", reason="triton is not installed")

from numba import typeof

from squeeze.codecs.tokenwise import cuda
from squeeze.kernels.proof import broken

ARCHITECTURES = [(8, 0), (9, 0), (10, 0)]
MOST_CONSTANTS = 1 << 16  # bytes that a kernel may have


def arguments(name):
    leaves = trie.build([bytes([byte]) for byte in range(256)])
    longs, table, words = np.zeros(3, np.int64), np.zeros((3, 2), np.int64), np.zeros(3, np.int32)
    counts = np.zeros((2, 257), np.uint64)
    if name == "follow":
        return leaves, counts, longs, longs, words, longs
    if name == "add":
        return counts, longs, longs, words
    m = bytewise.build_model(np.zeros(1000, np.uint8), presets.BYTEWISE, 0, EXTRA)
    x = build_mix(m, leaves, np.array([10, 10]))
    m, log, own = batches.build(m, x, leaves, 2, 2, cuda.CUT)
    models = (
        m._replace(state=own.state),
        x._replace(state=own.token_state),
        leaves,
        log._replace(cursor=own.cursor),
        own,
    )
    steps = batches.Steps(table, counts, longs, longs, longs, words, table, table)
    codes = batches.Codes(np.zeros((2, batches.CODER), np.uint64), np.zeros((2, 100), np.uint8), longs, 2, 1)
    return *models, steps, codes, False, batches.fresh_tickets()


def is_exact(name, architecture):
    ptx = cuda.compiled(name, tuple(map(typeof, arguments(name))), architecture)
    assert f".target sm_{architecture[0]}{architecture[1]}" in ptx
    assert sum(map(int, re.findall(r"^\.const .*\[(\d+)\]", ptx, re.MULTILINE))) < MOST_CONSTANTS
    assert "llvm.prefetch" not in ptx
    if not re.search(r"\b(?:add|sub)\S*\.f(?:32|64)", ptx):
        ptx = ptx.replace("mul.f32", "mul.rn.f32")  # there is no sum that it could be joined with
    return broken(SimpleNamespace(ptx=ptx, ttir="", fused=False)) == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", ["follow", "add"])
def test_small_kernels(name, architecture):
    assert is_exact(name, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_coder(architecture):
    assert is_exact("code_batches", architecture)
