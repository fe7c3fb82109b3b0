"""Decoding speed of packed bf16 on a GPU; the result is compared with the original first.

python bench/gpu_decode.py [--values 268435456] [--shapes 4096x4096,14336x4096] [--json] [CHECKPOINT.safetensors...]

Without checkpoints, weights drawn from a normal distribution whose scale differs by row are packed. Times are
of the kernel alone, by CUDA events, the median of 20 runs after a warm-up; GB/s are of bf16 written. Also
shown: the time that all linear weights of a layer of Llama-3.1-8B's shapes take one after the other.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from squeeze.checkpoint import safetensors as tensorfile
from squeeze.codecs.tensors import floats
from squeeze.kernels import df_decode

_LAYER = "4096x4096,1024x4096,1024x4096,4096x4096,14336x4096,14336x4096,4096x14336"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=1 << 28)
    parser.add_argument("--shapes", default=_LAYER)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Error: no GPU is at hand; tests/kernels/test_df_decode.py runs the kernel interpreted")
    sources = [("one tensor", draw(options.values, 4096))]
    for shape in options.shapes.split(","):
        rows, columns = map(int, shape.split("x"))
        sources.append((shape, draw(rows * columns, columns)))
    for path in options.paths:
        sources += checkpoint(path)
    total = [0, 0.0]
    for name, values in sources:
        row = {"tensor": name, "device": torch.cuda.get_device_name(), **measure(values)}
        print(json.dumps(row) if options.json else describe(row), flush=True)
        if "x" in name:
            total = [total[0] + 2 * values.size, total[1] + row["milliseconds"]]
    if total[1] and not options.json:
        print(f"all shapes one after the other: {total[1]:.3f} ms, {total[0] / total[1] / 1e6:.0f} GB/s")


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


def describe(row: dict) -> str:
    sizes = f"{row['values']} values, {100 * row['ratio']:.2f} %, {row['segments']} segments"
    return f"{row['tensor']}: {sizes}: {row['milliseconds']:.3f} ms, {row['gigabytes_per_second']:.0f} GB/s"


if __name__ == "__main__":
    main()
