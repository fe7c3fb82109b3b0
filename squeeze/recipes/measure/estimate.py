"""Estimates of the memory, disk and time that compressing a checkpoint takes, from its headers and one timed
product."""

import re
import time
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from squeeze.checkpoint.checkpoint import Checkpoint
from squeeze.engine.calibration import spacing
from squeeze.engine.method import LARGE
from squeeze.quant.sources import floats

__all__ = ["Estimate", "estimate"]

_BLOCK = re.compile(r"(.*?\.\d+)\.")
_BASE = 500 << 20  # bytes of torch and transformers themselves
_SHARED = 0.6  # of the matrices: those that share inputs share their statistics
_SWEEP = 12  # times the products that the sweep over a matrix costs beside its O I^2 multiplications


@dataclass(frozen=True)
class Estimate:
    """Peak memory in bytes, temporary disk in bytes beyond the output, and seconds."""

    memory: int
    disk: int
    seconds: float

    def __str__(self) -> str:
        minutes = f"{self.seconds / 60:.0f} min" if self.seconds >= 90 else f"{self.seconds:.0f} s"
        return f"This will take about {self.memory >> 20} MiB of memory, {self.disk >> 20} MiB of disk and {minutes}."


def estimate(source: Path | str, tokens: int, correction: bool, device: str = "cpu") -> Estimate:
    """Estimate what compressing a checkpoint takes.

    Args:
        source: The checkpoint.
        tokens: Tokens of the calibration set, 0 without calibration.
        correction: Whether errors are propagated, so that the original runs as well.
        device: Torch device, on which one product is timed.

    Raises:
        FormatError: If `source` is not a checkpoint.
    """
    checkpoint = floats(Checkpoint.open(source))
    blocks: dict[str, int] = {}
    block_inputs: dict[str, int] = {}  # inputs of a block's matrices, those that share inputs counted again
    outer, largest, squares, multiplications, width, widest = 0, 0, 0, 0, 0, 1
    for name in checkpoint.files:
        shape = checkpoint.info(name).shape
        match = _BLOCK.match(name)
        if not match:
            outer = max(outer, checkpoint.info(name).size)
            continue
        blocks[match[1]] = blocks.get(match[1], 0) + prod(shape)
        if len(shape) == 2:
            rows, inputs = shape
            block_inputs[match[1]] = block_inputs.get(match[1], 0) + inputs
            squares += inputs * inputs
            multiplications += rows * inputs * inputs
            factors = 16 if inputs > LARGE else 24  # two moments, and what is factorised, before and after
            largest = max(largest, 12 * rows * inputs + factors * inputs * inputs, 28 * rows * inputs)
            width, widest = max(width, min(rows, inputs)), max(widest, inputs)
    memory = max(4 * max(blocks.values(), default=0) + largest, 2 * outer) + _BASE
    if not tokens:
        return Estimate(memory, 0, 2 * sum(blocks.values()) * 100 / _speed(device))
    paired = 1 / spacing(tokens, widest) if correction else 0.0  # of the tokens: those on which the original runs, too
    forward = 2 * sum(blocks.values()) * tokens * (1.4 + paired)  # runs of a block; its stages' are partial
    gram = 2 * squares * tokens * (0.6 + paired) * _SHARED
    recorded = max(block_inputs.values(), default=0) * _SHARED * paired  # inputs of matrices in the original
    disk = 4 * tokens * (2 * (1 + paired) * width + recorded)
    return Estimate(memory, int(disk), (forward + gram + _SWEEP * multiplications) / _speed(device))


def _speed(device: str) -> float:
    """Measure the floating point operations a second of a float32 product."""
    a = torch.randn((512, 1024), device=device)
    b = torch.randn((1024, 1024), device=device)
    a @ b
    started = time.perf_counter()
    float((a @ b).sum())
    return 2 * 512 * 1024 * 1024 / max(time.perf_counter() - started, 1e-6)
