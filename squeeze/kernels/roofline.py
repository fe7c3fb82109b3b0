"""A roofline model of products on a device: the larger of the time to read the operands and the time to multiply.

The model (Williams et al. 2009) uses constants of one device: measured if it is in this machine, else published peaks
times the share of them that products reach.
"""

import time
from dataclasses import dataclass

import torch

from squeeze.errors import SqueezeError
from squeeze.kernels.split_k import GEMV_ROWS

__all__ = ["GEMM_ROWS", "GPUS", "WORTH", "Constants", "Gpu", "constants_of", "fastest", "known", "predict"]

GEMM_ROWS = 32  # more rows than these go to the dense product
_REACHED = 0.75  # of a published peak
WORTH = 1.05  # a smaller speed-up is ignored


@dataclass(frozen=True)
class Constants:
    """The constants of a device.

    bandwidth: bytes a second. flops: a second, of dense 16-bit products. structured: speed-up of sparse tensor cores, 0
    if there are none. unpacking: share of the bandwidth that kernels reach which unpack 2:4 values, 0 if there are no
    such kernels. overhead: seconds to launch a product. source: where the numbers come from.
    """

    bandwidth: float
    flops: float
    structured: float
    unpacking: float
    overhead: float
    source: str


@dataclass(frozen=True)
class Gpu:
    """Peaks as NVIDIA publishes them.

    driver: the name that the driver reports. architecture: 90 for sm_90. terabytes: memory bandwidth, TB a second.
    teraflops: a second, of dense bf16 products with float32 sums. processors: streaming multiprocessors. gigahertz:
    their boost clock. warps, blocks, shared: limits of one multiprocessor, the last in KiB.
    """

    driver: str
    architecture: int
    terabytes: float
    teraflops: float
    processors: int
    gigahertz: float
    warps: int
    blocks: int
    shared: int

    def constants(self) -> Constants:
        """Return the constants of the model.

        structured and unpacking are guesses that were not measured: sparse tensor cores are reported to gain 1.2 to 1.6
        on whole layers instead of 2, and loading activations by place costs instructions.
        """
        source = "75 % of published peaks, not measured"
        return Constants(_REACHED * self.terabytes * 1e12, _REACHED * self.teraflops * 1e12, 1.4, 0.7, 4e-6, source)


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 80, 2.039, 312, 108, 1.41, 64, 32, 164),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 90, 3.35, 989, 132, 1.98, 64, 32, 228),
    "h200": Gpu("NVIDIA H200", 90, 4.8, 989, 132, 1.98, 64, 32, 228),
    "l4": Gpu("NVIDIA L4", 89, 0.3, 121, 58, 2.04, 48, 24, 100),
    "l40s": Gpu("NVIDIA L40S", 89, 0.864, 362, 142, 2.52, 48, 24, 100),
    "rtx 4090": Gpu("NVIDIA GeForce RTX 4090", 89, 1.008, 165, 128, 2.52, 48, 24, 100),
    "rtx 5090": Gpu("NVIDIA GeForce RTX 5090", 120, 1.792, 209, 170, 2.41, 48, 24, 100),
}


def known(name: str) -> Gpu | None:
    """Return the GPU of a name in GPUS or of a driver's name, whatever the case; None for variants with other peaks."""
    names = {word.lower(): gpu for short, gpu in GPUS.items() for word in (short, gpu.driver)}
    return names.get(name.strip().lower())


def constants_of(device: str) -> Constants:
    """Return the constants of "cpu", "cuda" or "cuda:N", measured, or of a GPU in GPUS.

    Raises SqueezeError for other names.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device in ("cpu", *["cuda"][:count], *(f"cuda:{number}" for number in range(count))):
        return _measured(device)
    if gpu := known(device):
        return gpu.constants()
    if device.startswith("cuda"):
        raise SqueezeError(f"this machine has no device {device!r}: choose from cpu, {', '.join(GPUS)}")
    raise SqueezeError(f"unknown device {device!r}: choose from cpu, cuda, {', '.join(GPUS)}")


def _measured(device: str) -> Constants:
    """Measure reading by a matrix-vector product beyond caches, and arithmetic by a square product."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    large = torch.randn((8192, 4096), device=device, dtype=dtype)
    square = torch.randn((1024, 1024), device=device, dtype=dtype)
    reading = _seconds(lambda: torch.mv(large, large[0]), device)
    product = _seconds(lambda: square @ square, device)
    tiny = _seconds(lambda: square[0, :8] @ square[0, :8], device)
    gpu = None if device == "cpu" else known(torch.cuda.get_device_name(device))
    gains = (gpu.constants().structured, gpu.constants().unpacking) if gpu else (0.0, 0.0)
    return Constants(large.nbytes / reading, 2 * 1024**3 / product, *gains, tiny, "measured on this machine")


def _seconds(work: object, device: str) -> float:
    """Return the shortest of a few runs."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        work()  # type: ignore[operator]
        if device != "cpu":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best


def predict(constants: Constants, outputs: int, inputs: int, rows: int, bits: int, width: int = 2) -> dict[str, float]:
    """Predict the seconds of each product of x [rows, inputs] with a 2:4 weight [outputs, inputs], by its name.

    "dense" is the product with a weight of all values in as many bits (with 4, that of a w4a16 kernel). There is no
    kernel for 4-bit codes and more than a few rows, as it would reach 4 % of the roofline by calculation.

    Args:
        constants: of the device.
        outputs: output channels.
        inputs: input channels.
        rows: rows of x.
        bits: bits of a value of the weight.
        width: bytes of an activation.
    """
    weights, moved = outputs * inputs, rows * (outputs + inputs) * width
    multiplying = 2 * rows * weights / constants.flops
    scales = weights * width / 128 if bits == 4 else 0.0
    full = weights * (0.5 if bits == 4 else width) + scales
    seconds_of = {"dense": max((full + moved) / constants.bandwidth, multiplying)}
    if constants.unpacking and (bits != 4 or rows <= GEMV_ROWS):
        nbytes = weights * ((0.25 if bits == 4 else width / 2) + 0.125) + scales
        seconds_of["kernel"] = max((nbytes / constants.unpacking + moved) / constants.bandwidth, multiplying)
    if constants.structured and bits == 16 and outputs % 32 == 0 and inputs % 64 == 0:
        nbytes = weights * (width / 2 + 0.125)
        seconds_of["structured"] = max((nbytes + moved) / constants.bandwidth, multiplying / constants.structured)
    return {name: seconds + constants.overhead for name, seconds in seconds_of.items()}


def fastest(constants: Constants, outputs: int, inputs: int, rows: int, bits: int) -> str:
    """Return the product that is predicted to be fastest, or "dense" if the others gain too little.

    Args are as in `predict`.
    """
    seconds = predict(constants, outputs, inputs, rows, bits)
    if rows > GEMM_ROWS:
        seconds.pop("kernel", None)
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds["dense"] > WORTH * seconds[best] else "dense"
