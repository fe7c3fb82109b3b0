"""Decoding speed of packed bf16 on a GPU; the result is compared with the original first.

Without checkpoints, weights drawn from a normal distribution whose scale differs by row are packed. Times are
of the kernel alone, by CUDA events, the median of 20 runs after a warm-up; GB/s are of bf16 written.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from bench.entry import Row
from squeeze.checkpoint import safetensors as tensorfile
from squeeze.codecs.tensors import floats
from squeeze.kernels import df_decode


def rows(options: argparse.Namespace) -> Iterator[Row]:
    if not torch.cuda.is_available():
        raise SystemExit("Error: no GPU is at hand; tests/kernels/test_df_decode.py runs the kernel interpreted")
    sources = [("one tensor", draw(options.values, 4096))]
    for shape in options.shapes.split(","):
        outputs, inputs = map(int, shape.split("x"))
        sources.append((shape, draw(outputs * inputs, inputs)))
    for path in options.paths:
        sources += checkpoint(path)
    size, milliseconds = 0, 0.0
    for name, values in sources:
        row = {"tensor": name, "device": torch.cuda.get_device_name(), **measure(values)}
        if "x" in name:
            size, milliseconds = size + 2 * values.size, milliseconds + row["milliseconds"]
        yield row
    whole = {"milliseconds": milliseconds, "gigabytes_per_second": size / milliseconds / 1e6}
    yield {"tensor": "all shapes", "device": torch.cuda.get_device_name(), "values": size // 2, **whole}


def draw(count: int, columns: int) -> np.ndarray:
    """bf16 weights, as uint16."""
    torch.manual_seed(1)
    scale = torch.exp(torch.randn(-(-count // columns), 1) * 0.3 - 4)
    pieces = [(torch.randn(len(part), columns) * part).bfloat16() for part in scale.split(1 << 13)]
    return torch.cat(pieces).view(-1)[:count].view(torch.int16).numpy().view(np.uint16)


def checkpoint(path: Path) -> list[tuple[str, np.ndarray]]:
    file = tensorfile.read(path)
    with path.open("rb") as reading:
        return [
            (tensor.name, tensorfile.read_tensor(reading, tensor).view(np.uint16))
            for tensor in file.tensors
            if tensor.dtype == "BF16" and tensor.size >= 1 << 20
        ]


def measure(values: np.ndarray) -> dict:
    data = values.view(np.uint8)
    payload = floats.encode(data, "BF16", threads=8)
    assert payload is not None
    prepared = df_decode.prepare(torch.from_numpy(payload).cuda(), "BF16", data.size)
    out = torch.empty(values.size, dtype=torch.bfloat16, device="cuda")
    df_decode.decode(prepared, out)
    expected = torch.from_numpy(values.view(np.int16)).cuda()
    if not torch.equal(out.view(torch.int16), expected):
        raise SystemExit("Error: the kernel's result is wrong")
    del expected
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        df_decode.decode(prepared, out)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    milliseconds = sorted(times)[len(times) // 2]
    return {
        "values": values.size,
        "ratio": payload.size / data.size,
        "segments": prepared.segments,
        "milliseconds": milliseconds,
        "gigabytes_per_second": data.size / milliseconds / 1e6,
    }
