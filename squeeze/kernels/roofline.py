"""How long products take on a device: each as the larger of the time to read it and the time to multiply.

A roofline (Williams et al. 2009) with the constants of one device: measured here where it is at hand, else published
peaks times the share of them that products reach.
"""

import time
from dataclasses import dataclass

import torch

from squeeze.errors import SqueezeError

__all__ = ["GEMM_ROWS", "KNOWN", "WORTH", "Constants", "constants_of", "fastest", "predict"]

GEMM_ROWS = 32  # more rows than these go to the dense product
_REACHED = 0.75  # of a published peak


WORTH = 1.05  # less than this is no gain that anybody would see


@dataclass(frozen=True)
class Constants:
    """bandwidth: bytes a second; flops: a second, of dense 16-bit products; structured: by how much sparse tensor cores
    are faster than these, 0 where there are none; unpacking: share of the bandwidth that kernels reach which put 2:4
    values in their places as they read them, 0 where there are no such kernels; overhead: seconds a product takes to
    begin; source: where these come from."""

    bandwidth: float
    flops: float
    structured: float
    unpacking: float
    overhead: float
    source: str


def _published(terabytes: float, teraflops: float) -> Constants:
    """structured and unpacking are guesses that no run here has confirmed: sparse tensor cores are reported to gain 1.2
    to 1.6 on whole layers and not 2, and fetching activations by place costs instructions."""
    source = "published peaks, of which 75 % are taken to be reached; nothing was measured"
    return Constants(_REACHED * terabytes * 1e12, _REACHED * teraflops * 1e12, 1.4, 0.7, 4e-6, source)


KNOWN = {  # memory in TB/s, dense bf16 in TFLOP/s, as NVIDIA gives them
    "h200": _published(4.8, 989),
    "h100": _published(3.35, 989),
    "a100": _published(2.04, 312),
    "l40s": _published(0.864, 362),
    "rtx 4090": _published(1.008, 165),
    "l4": _published(0.3, 121),
}


def constants_of(device: str) -> Constants:
    """Of "cpu" or "cuda", measured, or of a GPU by a name in KNOWN. Raises SqueezeError for others."""
    if device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available()):
        return _measured(device)
    constants = next((known for name, known in KNOWN.items() if name in device.lower()), None)
    if constants is None:
        raise SqueezeError(f"nothing is known of the device {device!r}: choose from cpu, cuda, {', '.join(KNOWN)}")
    return constants


def _measured(device: str) -> Constants:
    """Read by a product of one row with a matrix beyond caches, and by a square product."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    large = torch.randn((8192, 4096), device=device, dtype=dtype)
    square = torch.randn((1024, 1024), device=device, dtype=dtype)
    reading = _seconds(lambda: torch.mv(large, large[0]), device)
    product = _seconds(lambda: square @ square, device)
    tiny = _seconds(lambda: square[0, :8] @ square[0, :8], device)
    known = next((k for n, k in KNOWN.items() if device != "cpu" and n in torch.cuda.get_device_name().lower()), None)
    gains = (known.structured, known.unpacking) if known else (0.0, 0.0)
    return Constants(large.nbytes / reading, 2 * 1024**3 / product, *gains, tiny, "measured on this machine")


def _seconds(work: object, device: str) -> float:
    """The least of a few runs."""
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        work()  # type: ignore[operator]
        if device != "cpu":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def predict(constants: Constants, outputs: int, inputs: int, rows: int, bits: int, width: int = 2) -> dict[str, float]:
    """Seconds of each product of x [rows, inputs] with a 2:4 weight whose values have `bits`, by its name; "dense" is
    that of a weight of all values in as many bits (of 4: a w4a16 kernel's). width: bytes of an activation."""
    weights, moved = outputs * inputs, rows * (outputs + inputs) * width
    multiplying = 2 * rows * weights / constants.flops
    scales = weights * width / 128 if bits == 4 else 0.0
    full = weights * (0.5 if bits == 4 else width) + scales
    seconds_of = {"dense": max((full + moved) / constants.bandwidth, multiplying)}
    if constants.unpacking:
        nbytes = weights * ((0.25 if bits == 4 else width / 2) + 0.125) + scales
        seconds_of["kernel"] = max((nbytes / constants.unpacking + moved) / constants.bandwidth, multiplying)
    if constants.structured and bits == 16 and outputs % 32 == 0 and inputs % 64 == 0:
        nbytes = weights * (width / 2 + 0.125)
        seconds_of["structured"] = max((nbytes + moved) / constants.bandwidth, multiplying / constants.structured)
    return {name: seconds + constants.overhead for name, seconds in seconds_of.items()}


def fastest(constants: Constants, outputs: int, inputs: int, rows: int, bits: int) -> str:
    """The product that is predicted to be fastest; "dense" where the others gain too little."""
    seconds = predict(constants, outputs, inputs, rows, bits)
    if rows > GEMM_ROWS:
        seconds.pop("kernel", None)
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds["dense"] > WORTH * seconds[best] else "dense"
