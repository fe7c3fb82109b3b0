"""Products with packed integer weights beside dense ones; each result is compared with the reference first.

So many copies of each weight are multiplied by in turn that none stays in a cache, as when a model is run; times are
of one product. On a GPU: Triton kernels against torch's product in float16, in CUDA graphs, the median of 20 runs, on
codes as they are stored, and reshuffled where that can be; a row is of the order that layers have, and names the kernel
of each. --tune also tries other tiles and names the best. Without a GPU: QuantLinear against float32 and bfloat16,
taken alternately, the median of 7 runs.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from bench.entry import Row
from bench.shared.contest import graph_time
from squeeze.checkpoint.bits import unpack, words_for
from squeeze.checkpoint.quantized import QuantizedTensor
from squeeze.kernels.dequant import Packed, reference as expansion
from squeeze.kernels.w4a16 import reference
from squeeze.kernels.w4a16.order import Ordered, fits
from squeeze.quant.linear import QuantLinear

_GPU_SHAPES = "4096x4096,1024x4096,14336x4096,4096x14336"  # of Llama-3.1-8B
_CPU_SHAPES = "576x576,1536x576,576x1536,4096x4096"  # of SmolLM2-135M, and a large one
_APART = 1 << 29  # bytes of copies on a GPU
_CPU_APART = 1 << 26


def rows(options: argparse.Namespace) -> Iterator[Row]:
    gpu = torch.cuda.is_available()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    torch.set_grad_enabled(False)
    for shape in (options.shapes or (_GPU_SHAPES if gpu else _CPU_SHAPES)).split(","):
        outputs, inputs = map(int, shape.split("x"))
        size = options.group_size if inputs % options.group_size == 0 else 64
        packed = draw(outputs, inputs, options.bits, size, options.asymmetric)
        for count in map(int, (options.rows or ("1,2,4,8,16,32,64" if gpu else "1,2,4,8,16")).split(",")):
            about = {"device": torch.cuda.get_device_name() if gpu else "cpu", "shape": shape, "rows": count}
            about |= {"bits": options.bits, "group": size, "symmetric": not options.asymmetric}
            yield about | (on_gpu(packed, count, options.tune) if gpu else on_cpu(packed, count))


def draw(outputs: int, inputs: int, bits: int, size: int, asymmetric: bool) -> Packed:
    words = torch.randint(-(1 << 31), 1 << 31, (outputs, words_for(inputs, bits)), dtype=torch.int64).to(torch.int32)
    groups = -(-inputs // size)
    scales = (torch.rand(1, outputs, groups) + 0.5) / (1 << bits) / inputs**0.5
    zeros = torch.randint(0, 1 << bits, (outputs, groups), dtype=torch.uint8) if asymmetric else None
    return Packed(words, scales.to(torch.float16), zeros, bits, size, inputs)


def check(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    error = ((found.float() - expected.float()).norm() / expected.float().norm()).item()
    if not error <= tolerance:
        raise SystemExit(f"Error: the result is wrong: it is {error:.2e} of the product away from the reference's")


def on_gpu(packed: Packed, rows: int, tune: bool, device: str = "cuda") -> dict:
    from squeeze.kernels import w4a16
    from squeeze.kernels.w4a16 import kernel

    x = torch.randn(rows, packed.inputs, dtype=torch.float16, device=device)
    dense = expansion.dequantize(packed, torch.float16)
    expected = reference.matmul(x.cpu(), packed).to(device)
    weights = [dense.to(device, copy=True) for _ in range(max(1, _APART // dense.nbytes))]
    theirs = graph_time([lambda w=w: functional.linear(x, w) for w in weights])
    del weights
    packs = [moved(packed, device) for _ in range(max(1, _APART // packed.words.nbytes))]
    found: dict[str, dict] = {}
    for order in (w4a16.STORED, w4a16.RESHUFFLED)[: 1 + fits(packed, x.dtype)]:
        stored = packs if order == w4a16.STORED else [Ordered.of(one) for one in packs]
        check(w4a16.matmul(x, stored[0]), expected, 3e-3)
        ours = graph_time([lambda p=p: w4a16.matmul(x, p) for p in stored])
        found[order] = {"us": ours, "x float16": theirs / ours, "kernel": w4a16.way_of(x, stored[0])}
    chosen = w4a16.RESHUFFLED if isinstance(w4a16.arranged(packs[0], x.dtype), Ordered) else w4a16.STORED
    row = {**found[chosen], "order": chosen, "float16 us": theirs}
    row |= {f"{key} {order}": value for order, one in found.items() if len(found) > 1 for key, value in one.items()}
    if tune:
        best = row["us"], ""
        for tile in tiles(rows):
            try:
                check(kernel.matmul(x, packs[0], tile), expected, 3e-3)
                us = graph_time([lambda p=p, t=tile: kernel.matmul(x, p, t) for p in packs])
            except RuntimeError:  # a tile that needs more registers or shared memory than there are
                continue
            best = min(best, (us, str(tile)))
        row |= {"best us": best[0], "x best": theirs / best[0], "tile": best[1]}
    return row


def moved(packed: Packed, device: str = "cuda") -> Packed:
    """A copy on a device."""
    words, scales, zeros = (
        None if one is None else one.to(device, copy=True) for one in (packed.words, packed.scales, packed.zeros)
    )
    return Packed(words, scales, zeros, packed.bits, packed.group_size, packed.inputs)


def tiles(rows: int) -> list:
    from squeeze.kernels.w4a16.kernel import Tile

    columns = [size for size in (8, 16, 32, 64) if size >= min(rows, 64)]
    grid = itertools.product((64, 128, 256), (32, 64, 128), (4, 8), columns[:2], (1, 2, 4, 8, 16))
    return [Tile(outputs, inputs, warps, tall, split) for outputs, inputs, warps, tall, split in grid]


def on_cpu(packed: Packed, rows: int) -> dict:
    values = unpack(packed.words, packed.bits, packed.inputs)
    weight = QuantizedTensor(values, packed.scales, packed.zeros, packed.bits, packed.group_size)
    x, dense = torch.randn(rows, packed.inputs), weight.dequantize()
    narrow, half = x.to(torch.bfloat16), dense.to(torch.bfloat16)
    count = -(-_CPU_APART // packed.words.nbytes)
    layers = [QuantLinear.of(weight) for _ in range(count)]
    wide, short = [dense.clone() for _ in range(count)], [half.clone() for _ in range(count)]
    for layer in layers:
        check(layer(x), functional.linear(x, dense), 3e-4)
    calls: dict[str, Callable[[], object]] = {
        "us": lambda: [layer(x) for layer in layers],
        "float32 us": lambda: [functional.linear(x, w) for w in wide],
        "bfloat16 us": lambda: [functional.linear(narrow, w) for w in short],
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e6 * (time.perf_counter() - start) / count)
    row = {name: statistics.median(values) for name, values in times.items()}
    return row | {"x float32": row["float32 us"] / row["us"], "x bfloat16": row["bfloat16 us"] / row["us"]}
