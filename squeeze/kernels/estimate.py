"""How near a kernel can come to its roofline on a GPU, on paper: no time is measured.

The roofline of a launch is the time for the bytes and operations of its reference at the published peaks. The kernel
takes about as long as the longest of four, or longer: its own bytes, scratch among them, as if none stayed in a cache;
its instructions; its products on tensor cores; and the chains of results in its loops that wait for each other (the
recurrence that bounds modulo scheduling: Rau, 1994). What only a run can tell is left out, so this is no forecast.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from squeeze.errors import SqueezeError
from squeeze.kernels.compiled import Compiled
from squeeze.kernels.launch import Launch
from squeeze.kernels.loops import listing
from squeeze.kernels.roofline import Gpu

__all__ = ["Estimate", "estimate", "recurrence"]

_SCHEDULERS = 4  # of a processor; each begins one instruction a cycle
_REGISTERS = 65536  # of a processor
_RESERVED = 1024  # bytes of shared memory that each program takes beyond its own

# Cycles until a result can be used, as on Volta, where a load finds what it asks for in the nearest cache (Jia et al.,
# "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018). Most moves vanish in ptxas.
_CYCLES = {"ld.global": 28, "ld.shared": 19, "ldmatrix": 19, "mov": 0, "cvt.u": 0}
_ARITHMETIC = 4

_MMA = re.compile(r"H(G?)MMA\.(\d+x\d+x\d+|16816|1688)\b")
_SHAPES = {"16816": "16x8x16", "1688": "16x8x8"}
_PTX = re.compile(r"^\s*(?:@!?(%p\d+) )?([a-z][\w.:]*)\s*([^;\n]*);", re.MULTILINE)
_INNER = re.compile(r"^(\$L\w+):[^\n]*?(?:\n *//[^\n]*?)*?=> *This Inner Loop Header", re.MULTILINE)  # LLVM's own words
_NAME = re.compile(r"%[a-z]+\d+")
_KEEPS = ("st.", "red.", "bra", "bar.", "cp.", "ret", "fence", "stmatrix", "mbarrier")  # instructions without a result


@dataclass(frozen=True)
class Estimate:
    """roofline, seconds: of the reference, and of the kernel at least. bound: what takes the kernel so long."""

    roofline: float
    seconds: float
    bound: str

    @property
    def share(self) -> float:
        return self.roofline / self.seconds


def estimate(launch: Launch, kernel: Compiled, gpu: Gpu) -> Estimate:
    """Raises SqueezeError where a launch does not say how often each loop of its kernel runs."""
    clock, peak, bandwidth = gpu.gigahertz * 1e9, gpu.teraflops * 1e12, gpu.terabytes * 1e12
    code = _Code(kernel, launch.trips(kernel.arguments))
    warps, filled = kernel.programs * kernel.warps, kernel.programs / gpu.processors
    even = filled / -(-filled // 1)
    waves = -(-kernel.programs // (gpu.processors * _resident(kernel, gpu)))
    bounds = {
        "memory": max(kernel.nbytes, launch.nbytes) / bandwidth,  # a kernel may be told of tensors by address
        "instructions": warps * sum(code.times) / (_SCHEDULERS * gpu.processors * clock) / even,
        "tensor cores": warps * code.products / peak / even,
        "latency": waves * code.cycles / clock,
    }
    bound = max(bounds, key=lambda name: bounds[name])
    roofline = max(launch.nbytes / bandwidth, launch.operations / peak)
    return Estimate(roofline, bounds[bound], bound)


class _Code:
    """Of one warp: how often it runs each instruction, the multiplications and additions of its matrix products, and
    the cycles that its loops take at least."""

    def __init__(self, kernel: Compiled, trips: Sequence[int]) -> None:
        names, ends = listing(kernel.sass)
        if len(ends) != len(trips):
            raise SqueezeError(f"the kernel has {len(ends)} loops, and its launch says how often {len(trips)} run")
        self.times = [1] * len(names)
        loops = sorted(ends.items())
        for (first, last), count in zip(loops, trips, strict=True):  # an inner loop begins after its outer one
            self.times[first : last + 1] = [count] * (last + 1 - first)
        self.products = sum(times * _multiplied(name) for times, name in zip(self.times, names, strict=True))
        inner = [self.times[first] for first, last in loops if not any(first < other <= last for other, _ in loops)]
        self.cycles = sum(count * recurrence(body) for count, body in zip(inner, _bodies(kernel.ptx), strict=True))


def _bodies(ptx: str) -> Iterator[str]:
    """Of the loops that hold no other."""
    for header in _INNER.finditer(ptx):
        yield ptx[header.end() : ptx.rindex(f"{header[1]};")]


def recurrence(body: str) -> float:
    """Cycles from one turn of a loop (PTX) to the next, were there any number of units: of its longest chain."""
    instructions = [(name, *_registers(name, guard, operands)) for guard, name, operands in _PTX.findall(body)]
    ready: dict[str, int] = {}
    ends = []
    for _ in range(8):
        for name, results, sources in instructions:
            cycles = next((cycles for start, cycles in _CYCLES.items() if name.startswith(start)), _ARITHMETIC)
            begin = max((ready.get(source, 0) for source in sources), default=0)
            ready.update(dict.fromkeys(results, begin + cycles))
        ends.append(max(ready.values(), default=0))
    return (ends[7] - ends[3]) / 4


def _registers(name: str, guard: str, operands: str) -> tuple[list[str], list[str]]:
    """That an instruction writes, and that it reads."""
    if name.startswith(_KEEPS):
        return [], []
    end = operands.find("}") if operands.startswith("{") else operands.find(",")
    results, sources = _NAME.findall(operands[:end]), _NAME.findall(operands[end:])
    old = results if guard or name.startswith("wgmma") else []  # what it leaves as it was, or adds to
    return results, [*sources, *old, *filter(None, [guard])]


def _multiplied(name: str) -> int:
    """Multiplications and additions on a tensor core."""
    if not (found := _MMA.match(name)):
        return 0
    rows, columns, depth = map(int, _SHAPES.get(found[2], found[2]).split("x"))
    return 2 * rows * columns * depth // (4 if found[1] else 1)  # four warps share an HGMMA


def _resident(kernel: Compiled, gpu: Gpu) -> int:
    """Programs that a processor holds at a time."""
    registers = -(-kernel.registers // 8) * 8 * 32 * kernel.warps
    shared = gpu.shared * 1024 // (kernel.shared + _RESERVED)
    return max(1, min(gpu.warps // kernel.warps, gpu.blocks, _REGISTERS // registers, shared))
