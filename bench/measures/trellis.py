"""Trellis codes: squared error on normal weights, beside Lloyd and Max's points and the least possible; and products.

A product is of one row with a weight of --shape, one thread, beside torch's in bfloat16; both take turns.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from bench.entry import Row
from squeeze.kernels.trellis import column_bytes, cpu, reference
from squeeze.kv.lloyd_max import lloyd_max
from squeeze.quant.trellis.viterbi import Viterbi

_ROWS, _TURNS = 1024, 15


def rows(options: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(1)
    targets = np.random.default_rng(0).standard_normal((options.columns, _ROWS)).astype(np.float32)
    for bits in map(float, options.bits.split(",")):
        yield {"bits": bits, "columns": options.columns, **errors(bits, targets), **speed(bits, options.shape)}


def errors(bits: float, targets: np.ndarray) -> Row:
    """Of the variance of the weights. points: of a scalar code, at whole numbers of bits."""
    coder, ones = Viterbi(_ROWS, round(16 * bits)), np.ones(_ROWS, np.float32)
    coder.encode(targets[0], ones)
    started, total = time.process_time(), 0.0
    for column in targets:
        codes, levels = coder.encode(column, ones)
        decoded = reference.decode(torch.from_numpy(codes)[None], _ROWS, coder.rate)[:, 0].numpy()
        assert np.array_equal(decoded, levels)
        total += float(np.square(column - levels).sum())
    seconds = time.process_time() - started
    found = {"error": total / targets.size, "bound": 4.0**-bits, "microseconds": 1e6 * seconds / targets.size}
    return found | {"scalar": scalar_error(int(bits), targets) if bits == int(bits) else None}


def scalar_error(bits: int, targets: np.ndarray) -> float:
    points = lloyd_max(bits)
    values = torch.from_numpy(targets)
    nearest = points[torch.bucketize(values, (points[1:] + points[:-1]) / 2)]
    return float((values - nearest).square().mean())


def speed(bits: float, shape: str) -> Row:
    """times: of the product, over that in bfloat16, the median of pairs."""
    outputs, inputs = map(int, shape.split("x"))
    rate, generator = round(16 * bits), torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (inputs, column_bytes(outputs, rate)), dtype=torch.uint8, generator=generator)
    padded, x = cpu.padded(codes), torch.randn(1, inputs, generator=generator)
    dense = reference.decode(codes, outputs, rate)
    assert torch.allclose(cpu.matmul(x, padded, outputs, rate), x @ dense.T, atol=1e-2)
    half, short = dense.bfloat16().contiguous(), x.bfloat16()
    pairs = [
        (timed(lambda: cpu.matmul(x, padded, outputs, rate)), timed(lambda: functional.linear(short, half)))
        for _ in range(_TURNS)
    ]
    return {"shape": shape, "times": median(ours / theirs for ours, theirs in pairs)}


def timed(call: Callable[[], object]) -> float:
    call()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
