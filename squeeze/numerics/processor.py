"""Which instructions the processor has that numba compiles for: kernels choose by it, and give the same bytes."""

from typing import Any

import llvmlite.binding as llvm
from numba.core import config

_config: Any = config


def has(feature: str) -> bool:
    """Whether it has a feature by LLVM's name, such as "avx512vnni". NUMBA_CPU_NAME may ask for another processor than
    this machine's: that one has what NUMBA_CPU_FEATURES says."""
    if _config.CPU_NAME:
        return f"+{feature}" in (_config.CPU_FEATURES or "").split(",")
    return bool(llvm.get_host_cpu_features().get(feature, False))
